"""Arguments, contexts and results as JSON text: checked before they are stored, and given back exactly.

The text goes into text columns, not JSON ones: so every database returns what it was given.
"""

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise

from .exceptions import InvalidWork, UnserializableWork

#: Bytes of one JSON text. More belongs into a file or a row of its own, and would exceed what MySQL takes in one packet.
PAYLOAD_MAX = 16 * 1024 * 1024
#: Levels of lists and dictionaries; far below what the recursion of any JSON reader stands.
DEPTH_MAX = 100
#: Decimal digits of a whole number: Python's own default limit, as the reader may be another process with that default.
DIGITS_MAX = 4300
#: Characters kept of an error text or a traceback.
TEXT_MAX = 64 * 1024

_TOO_BIG = 10**DIGITS_MAX
_KEY_SHOWN = 50
_NOTE_ROOM = 40

_HINTS: tuple[tuple[type, str], ...] = (
    (datetime.datetime, "pass value.isoformat()"),
    (datetime.date, "pass value.isoformat()"),
    (datetime.time, "pass value.isoformat()"),
    (datetime.timedelta, "pass value.total_seconds()"),
    (uuid.UUID, "pass str(value)"),
    (decimal.Decimal, "pass str(value)"),
    (Promise, "pass str(value), the text in one language"),
    (enum.Enum, "pass value.value"),
    (bytes, "pass text, such as base64.b64encode(value).decode()"),
    (bytearray, "pass text, such as base64.b64encode(value).decode()"),
    (set, "pass a list"),
    (frozenset, "pass a list"),
)


class _UnstorableText(InvalidWork):
    """Text that not every database can store: cleaned in results, refused elsewhere."""


def _mapping(value: Any) -> dict[Any, Any]:
    return dict(value.items())


_dump = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    # The check before it has already refused what is too deep, and with that what is circular.
    check_circular=False,
    separators=(",", ":"),
    default=_mapping,
).encode


def encode(value: Any, place: str) -> str:
    """Return ``value`` as compact JSON text, from which ``decode`` makes an equal value.

    Tuples become lists; subclasses of str, int and float become these. Nothing else is changed.

    Args:
        value: None, bool, int, float, str, lists, tuples, and mappings with str keys.
        place: what the value is, for the error text: "argument 1".

    Raises:
        UnserializableWork: a value, or a key, of a type that JSON does not have.
        InvalidWork: NaN, infinity, NUL, a lone surrogate; too deep, too long, a number with too many digits.
    """
    check = _Check(place)
    check.value(value)
    return _text_of(value, place)


def encode_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the JSON text of ``{"args": [...], "kwargs": {...}}``.

    Raises:
        UnserializableWork, InvalidWork: as ``encode`` does, naming "argument 1" or "argument name".
    """
    check = _Check("")
    for number, value in enumerate(args, start=1):
        check.argument = number
        check.value(value)
    for name, value in kwargs.items():
        check.argument = name
        check.key(name)
        check.value(value)
    return _text_of({"args": args, "kwargs": kwargs}, "the arguments")


def encode_result(value: Any) -> str:
    """Return a function's return value as JSON text, with NUL and lone surrogates escaped.

    Raises:
        UnserializableWork, InvalidWork: as ``encode`` does, but not for text.
    """
    place = "the return value"
    try:
        return encode(value, place)
    except _UnstorableText:
        # The first check stopped at the text: what comes after it is still unknown.
        _Check(place, texts=False).value(value)
    return _text_of(_cleaned(value, place), place)


def decode(text: str) -> Any:
    """Return the value that an ``encode`` function stored."""
    return json.loads(text)


def clean(text: str, limit: int = TEXT_MAX) -> str:
    r"""Return ``text`` as every database stores it, at most ``limit`` characters long. Never raises.

    NUL becomes the four characters ``\x00``, lone surrogates become backslash escapes; a cut ends in a note of its length.
    """
    kept = str.__getitem__(text, slice(0, limit))
    if "\0" in kept:
        kept = kept.replace("\0", "\\x00")
    if not kept.isascii():
        kept = kept.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(kept) <= limit and str.__len__(text) <= limit:
        return kept
    total = len(kept) + max(str.__len__(text) - limit, 0)
    kept = kept[: max(limit - _NOTE_ROOM, 0)]
    return f"{kept}… ({total - len(kept)} characters left out)"[:limit]


class _Check:
    """One walk through a value: raises at the first thing that cannot be stored."""

    __slots__ = ("argument", "place", "room", "texts", "trail")

    def __init__(self, place: str, *, texts: bool = True) -> None:
        self.place = place
        #: Without a place: the number or name of the argument, put into words only for an error.
        self.argument: Any = None
        self.texts = texts
        self.trail: list[Any] = []
        #: What is shared is written each time: counted here, so that a small value cannot become an endless text.
        self.room = PAYLOAD_MAX

    def value(self, value: Any) -> None:
        # type() and not isinstance(): a lazy object pretends to be of the class it stands for, but the encoder knows better.
        kind = type(value)
        if kind is str:
            self.text(value)
        elif value is None or kind is bool:
            pass
        elif kind is int or issubclass(kind, int):
            if value.bit_length() > DIGITS_MAX * 3 and not -_TOO_BIG < value < _TOO_BIG:
                raise InvalidWork(f"{self.where()}: a whole number of more than {DIGITS_MAX} digits cannot be stored.")
        elif kind is dict or issubclass(kind, Mapping):
            self.members(value)
        elif issubclass(kind, (list, tuple)):
            self.items(value)
        elif issubclass(kind, float):
            if not math.isfinite(value):
                raise InvalidWork(f"{self.where()}: {float(value)!r} is not JSON; pass None or text.")
        elif issubclass(kind, str):
            self.text(value)
        else:
            raise UnserializableWork(f"{self.where()}: {kind.__name__} is not JSON; {_hint(kind)}.")

    def items(self, value: list[Any] | tuple[Any, ...]) -> None:
        self.enter(len(value))
        for index, item in enumerate(value):
            self.trail.append(index)
            self.value(item)
            self.trail.pop()

    def members(self, value: Mapping[Any, Any]) -> None:
        self.enter(len(value))
        for key, item in value.items():
            self.key(key)
            self.trail.append(key)
            self.value(item)
            self.trail.pop()

    def key(self, key: Any) -> None:
        if not issubclass(type(key), str):
            raise UnserializableWork(f"{self.where()}: a key is {_shown(key)}, {type(key).__name__} is not JSON; keys must be str.")
        self.text(key, "a key")

    def text(self, text: str, what: str = "the text") -> None:
        self.take(len(text))
        if not self.texts:
            return
        if "\0" in text:
            raise _UnstorableText(f"{self.where()}: {what} contains NUL, which not every database can store.")
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise _UnstorableText(f"{self.where()}: {what} contains a lone surrogate, which is not Unicode text.") from None

    def enter(self, size: int) -> None:
        self.take(size)
        if len(self.trail) >= DEPTH_MAX:
            raise InvalidWork(f"{self.where()}: lists and dictionaries are nested more than {DEPTH_MAX} deep, or circular.")

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise _too_long(self.named())

    def where(self) -> str:
        shown = "".join(f"[{_shown(key)}]" for key in self.trail[:5])
        return self.named() + shown + ("…" if len(self.trail) > 5 else "")

    def named(self) -> str:
        return self.place or f"argument {_shown(self.argument)}"


def _shown(key: Any) -> str:
    """Return a key for an error text: short, printable."""
    if not isinstance(key, (str, int, float)):
        return f"<{type(key).__name__}>"
    if isinstance(key, str) and key.isidentifier() and len(key) <= _KEY_SHOWN:
        return str.__repr__(key)
    shown = ascii(key[:_KEY_SHOWN] if isinstance(key, str) else key)
    return shown if len(shown) <= 4 * _KEY_SHOWN else shown[:_KEY_SHOWN] + "…"


def _hint(kind: type) -> str:
    for known, hint in _HINTS:
        if issubclass(kind, known):
            return hint
    if hasattr(kind, "_meta"):
        return "pass its primary key, and read the row in the function"
    if dataclasses.is_dataclass(kind):
        return "pass dataclasses.asdict(value)"
    return "pass None, bool, int, float, str, lists, and dictionaries with str keys"


def _too_long(place: str) -> InvalidWork:
    return InvalidWork(f"{place}: more than {PAYLOAD_MAX} bytes of JSON; store the data elsewhere and pass where it is.")


def _text_of(value: Any, place: str) -> str:
    try:
        text = _dump(value)
    except ValueError as error:
        # The interpreter's limit of digits can be set lower than ours.
        raise InvalidWork(f"{place}: {error}.") from error
    if len(text) > PAYLOAD_MAX or not text.isascii() and len(text.encode("utf-8")) > PAYLOAD_MAX:
        raise _too_long(place)
    return text


def _cleaned(value: Any, place: str) -> Any:
    """Return a copy with cleaned texts of a value whose structure has been checked."""
    if isinstance(value, str):
        return clean(value, PAYLOAD_MAX)
    if isinstance(value, (list, tuple)):
        return [_cleaned(item, place) for item in value]
    if isinstance(value, Mapping):
        copy = {clean(key, PAYLOAD_MAX): _cleaned(item, place) for key, item in value.items()}
        if len(copy) != len(value):
            raise InvalidWork(f"{place}: two keys differ only in characters that cannot be stored.")
        return copy
    return value
