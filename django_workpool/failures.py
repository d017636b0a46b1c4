"""What a function raised, as text that can be stored; and which of the database's errors are not the function's fault.

An exception is the user's object: its class, its text, its chain and its notes may lie, raise, or have no end. So every step
here is assumed to fail and has a fallback, and reads the interpreter's own slots instead of attributes that a class can replace.
"""

import inspect
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

from .exceptions import NonRetryableError
from .serialization import clean
from .types import Failure

#: Characters of an error's text: what is shown in lists and given to callbacks.
TEXT_LENGTH = 10_000
#: Characters of a traceback. Its end says most, so the beginning is what goes.
TRACEBACK_LENGTH = 50_000
#: Characters of a class path: what its column takes.
CLASS_PATH_LENGTH = 500
#: Exceptions shown in one traceback: causes, contexts and members of groups together.
EXCEPTIONS = 30
#: Calls shown of one exception, the innermost ones: endless recursion has a thousand.
FRAMES = 100
#: Notes shown of one exception.
NOTES = 20
#: Exceptions of one chain whose frames are let go: all, but for a chain that has no end.
RELEASED = 1_000

T = TypeVar("T")

_slots = vars(BaseException)
get_cause: Callable[[BaseException], Any] = _slots["__cause__"].__get__
_get_context: Callable[[BaseException], Any] = _slots["__context__"].__get__
_get_suppress: Callable[[BaseException], bool] = _slots["__suppress_context__"].__get__
_get_traceback: Callable[[BaseException], TracebackType | None] = _slots["__traceback__"].__get__
_set_traceback: Callable[[BaseException, None], None] = _slots["__traceback__"].__set__
_get_members: Callable[[BaseException], tuple[BaseException, ...]] = vars(BaseExceptionGroup)["exceptions"].__get__
_get_module: Callable[[type], Any] = vars(type)["__module__"].__get__
_get_qualname: Callable[[type], str] = vars(type)["__qualname__"].__get__

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_BECAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def describe(exc: BaseException, *, keep: bool = False) -> Failure:
    """Return what ``exc`` says, as text that every database can store. Takes the exception over, and never raises.

    Afterwards its traceback is gone, and with it that of its causes, contexts and group members, and the local variables of the
    calls that have ended: they would live as long as anybody keeps the exception. Log it before.

    Args:
        exc: anything that was raised, SystemExit and its like too.
        keep: leave it as it is: the caller calls ``release`` when nobody needs its traceback any more.
    """
    kind = type(exc)
    failure = Failure(
        class_path=class_path_of(exc),
        text=guarded(_shown_text, "<no text>", exc),
        traceback=guarded(_traceback_of, "", exc),
        # Not isinstance(): it would believe a __class__ that pretends.
        retryable=not issubclass(kind, NonRetryableError),
    )
    if not keep:
        release(exc)
    return failure


def class_path_of(exc: BaseException) -> str:
    """Return ``module.QualName`` of the class of ``exc``, which is left as it is. Never raises."""
    return guarded(_class_path, "builtins.BaseException", type(exc))


def release(exc: BaseException) -> None:
    """Let go of the traceback of an exception, and of all that it holds. Never raises."""
    guarded(_release, None, exc)


def guarded(step: Callable[..., T], fallback: T, *args: Any) -> T:
    """Return what ``step(*args)`` returns, or ``fallback`` whatever it raises."""
    try:
        return step(*args)
    except BaseException:
        return fallback


def _class_path(kind: type) -> str:
    module = _get_module(kind)
    name = _get_qualname(kind)
    return clean(f"{module}.{name}" if type(module) is str else name, CLASS_PATH_LENGTH)


def _shown_text(exc: BaseException) -> str:
    """Return the text with the class's name, where it alone would say nothing: "SystemExit: 0", "ValueError"."""
    text, kind = text_of(exc), type(exc)
    if text and issubclass(kind, Exception):
        return text
    name = clean(_get_qualname(kind), CLASS_PATH_LENGTH)
    return clean(f"{name}: {text}", TEXT_LENGTH) if text else name


def text_of(exc: BaseException) -> str:
    """Return the text of an exception; never raises."""
    try:
        # str() may return a subclass of str, with methods of its own.
        text = str.__str__(str(exc))
    except BaseException as error:
        text = f"<no text: str() raised {_get_qualname(type(error))}>"
    return clean(text, TEXT_LENGTH)


def first_line(exc: BaseException) -> str:
    """Return the first line of an exception's text, for a line of the log; never raises."""
    return text_of(exc).strip().partition("\n")[0]


def _traceback_of(exc: BaseException) -> str:
    text = "".join(_Rendering().chain(exc))
    # Before the cut, as escapes make it longer.
    text = clean(text, 10 * len(text))
    if len(text) <= TRACEBACK_LENGTH:
        return text
    note = "[the beginning is left out]\n"
    return note + text[len(note) - TRACEBACK_LENGTH :]


class _Rendering:
    """One traceback being written: as Python's own looks, but bounded, and without asking the exception for anything else."""

    def __init__(self) -> None:
        self.room = EXCEPTIONS

    def chain(self, exc: BaseException) -> list[str]:
        """Return the lines of ``exc`` after those of what it came from."""
        blocks: list[list[str]] = []
        seen: set[int] = set()
        error, link = exc, ""
        while self.room > 0 and id(error) not in seen:
            seen.add(id(error))
            self.room -= 1
            blocks.append([*self.single(error), link])
            cause, context = get_cause(error), _get_context(error)
            if cause is not None:
                error, link = cause, _BECAUSE
            elif context is not None and not _get_suppress(error):
                error, link = context, _DURING
            else:
                break
        else:
            blocks.append([f"[{EXCEPTIONS} exceptions are shown, or the chain goes round]\n", link])
        return [line for block in reversed(blocks) for line in block]

    def single(self, exc: BaseException) -> list[str]:
        """Return the lines of ``exc`` alone: its calls, itself, its notes, the members of a group."""
        lines: list[str] = []
        tb = _get_traceback(exc)
        if tb is not None:
            lines.append("Traceback (most recent call last):\n")
            lines += _stack(tb)
        name = guarded(_class_path, "BaseException", type(exc)).removeprefix("builtins.")
        text = text_of(exc)
        lines.append(f"{name}: {text}\n" if text else f"{name}\n")
        lines += guarded(_notes_of, [], exc)
        if issubclass(type(exc), BaseExceptionGroup):
            lines += self.members(exc)
        return lines

    def members(self, group: BaseException) -> list[str]:
        lines: list[str] = []
        members = _get_members(group)
        for number, member in enumerate(members, start=1):
            if self.room <= 0:
                lines.append(f"  | [{len(members) - number + 1} more]\n")
                break
            lines.append(f"  +---- {number} of {len(members)}\n")
            lines += [f"  | {line}\n" for line in "".join(self.chain(member)).splitlines()]
        return lines


def _stack(tb: TracebackType) -> list[str]:
    calls = list(traceback.walk_tb(tb))
    left_out = max(len(calls) - FRAMES, 0)
    note = [f"  [{left_out} outer calls left out]\n"] if left_out else []
    calls = calls[left_out:]
    # Reads the source: from the file, or from a loader of the user's.
    lines: list[str] | None = guarded(_with_source, None, calls)
    return note + (lines or _without_source(calls))


def _with_source(calls: list[tuple[FrameType, int]]) -> list[str] | None:
    return traceback.StackSummary.extract(iter(calls)).format()


def _without_source(calls: list[tuple[FrameType, int]]) -> list[str]:
    return [f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_name}\n' for frame, line in calls]


def _notes_of(exc: BaseException) -> list[str]:
    notes = getattr(exc, "__notes__", None)
    if type(notes) is not list:
        return []
    return [f"{clean(str.__str__(str(note)), TEXT_LENGTH)}\n" for note in notes[:NOTES]]


def _release(exc: BaseException) -> None:
    """Let go of the frames of ``exc`` and of all it came from or consists of."""
    waiting, seen = [exc], {id(exc)}
    # Appended to as it goes.
    for error in waiting:
        tb = _get_traceback(error)
        _set_traceback(error, None)
        while tb is not None:
            # A suspended coroutine may be somebody else's, still at work: clearing its frame would end it.
            if not tb.tb_frame.f_code.co_flags & _SUSPENDABLE:
                with suppress(RuntimeError):
                    tb.tb_frame.clear()
            tb = tb.tb_next
        members = _get_members(error) if issubclass(type(error), BaseExceptionGroup) else ()
        for other in (get_cause(error), _get_context(error), *members):
            if other is not None and id(other) not in seen and len(waiting) < RELEASED:
                seen.add(id(other))
                waiting.append(other)
