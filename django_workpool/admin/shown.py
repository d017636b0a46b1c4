"""How values are shown: payloads as far as a page stands them, moments to the millisecond. Whatever is stored, it is shown as text."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Length, Substr
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .. import masks
from ..segments import segment_ms
from ..serialization import clean

#: Characters of a payload that a page loads, and that it shows of one that indentation has made longer.
LOADED_MAX, SHOWN_MAX = 100_000, 400_000
#: Columns that hold JSON; the other payloads are text.
JSON_COLUMNS = ("arguments", "on_complete_context", "value", "functions")
EMPTY = "-"


def with_payloads(queryset: QuerySet[Any], names: Iterable[str]) -> QuerySet[Any]:
    """Add the beginnings of payloads, and how long they are: a page must not load megabytes to show a screen of them."""
    for name in names:
        queryset = queryset.annotate(**{f"begin_{name}": Substr(name, 1, LOADED_MAX), f"length_{name}": Length(name)})
    return queryset


def payload(name: str, title: str = "") -> Any:
    """Return a field of a page of details that shows a payload of its row, read by ``with_payloads``."""

    @admin.display(description=title or name.replace("_", " "))
    def field(model_admin: Any, row: Any) -> SafeString | str:
        text, length = getattr(row, f"begin_{name}", "") or "", getattr(row, f"length_{name}", 0) or 0
        return shown(row.pool, row.func_path, name, text, length)

    return field


def shown(pool: str, func_path: str, name: str, text: str, length: int) -> SafeString | str:
    """Return a payload as the page shows it.

    Args:
        pool: The pool of the work.
        func_path: Its function.
        name: The column.
        text: What was loaded of it.
        length: Its characters in all.
    """
    if not text:
        return EMPTY
    if length > len(text) and not _unmasked():
        return "(not shown: too large to be masked)"
    said = text if length > len(text) else masks.masked(pool, func_path, name, _decoded(name, text))
    return _pre(said, text, length)


def plain(name: str, text: str, length: int) -> SafeString:
    """Return a text that is no payload of a work, and so is never masked; as ``shown`` does."""
    return _pre(text if length > len(text) else _decoded(name, text), text, length)


def _pre(said: object, text: str, length: int) -> SafeString:
    note = format_html('<p class="help">The first {} of {} characters.</p>', f"{len(text):,}", f"{length:,}") if length > len(text) else ""
    return format_html('<pre class="workpool">{}</pre>{}', _text(said), note)


def line(pool: str, func_path: str, name: str, text: str, most: int = 120) -> str:
    """Return the first line of a text, for a list."""
    said = masks.masked(pool, func_path, name, text) if text else ""
    return clean(" ".join(_text(said).split()), most) or EMPTY


def _unmasked() -> bool:
    return getattr(settings, masks.SETTING, None) is None


def _decoded(name: str, text: str) -> Any:
    if name not in JSON_COLUMNS:
        return text
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
        return _Json(value) if _unmasked() else value
    # What is too deep or has too many digits is no JSON for this reader, either.
    except (ValueError, RecursionError):
        return text


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


class _Json:
    """A decoded value: a text in it is told from one that could not be decoded by its quotation marks."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _text(value: object) -> str:
    """Return a value as text that every page carries; JSON indented, as far as that stays short."""
    if isinstance(value, str):
        return clean(value, SHOWN_MAX)
    value = value.value if isinstance(value, _Json) else value
    parts, size = [], 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=repr).iterencode(value):
            parts.append(part)
            size += len(part)
            if size > SHOWN_MAX:
                parts.append("…")
                break
    except Exception as error:
        return f"(cannot be shown: {type(error).__name__})"
    return clean("".join(parts), SHOWN_MAX + 1)


# Moments ----------------------------------------------------------------------------------------------------------


def moment(at: datetime | None) -> str:
    """Return a moment in the zone of the page, to the millisecond."""
    if at is None:
        return EMPTY
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    return local.isoformat(sep=" ", timespec="milliseconds")


def segment_moment(segment: int | None) -> datetime | None:
    """Return when a segment begins; None if there is none, or no calendar has it."""
    try:
        at = None if segment is None else datetime.fromtimestamp(segment_ms(segment) / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return at if at is None or settings.USE_TZ else timezone.make_naive(at)


def ago(seconds: float) -> str:
    """Return a span in one unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def link(address: str, text: object) -> SafeString:
    """Return a link; the text alone where there is no such page."""
    if not address:
        return format_html("{}", clean(str(text), 500))
    return format_html('<a href="{}">{}</a>', address, clean(str(text), 500))


def timeline(moments: Iterable[tuple[datetime | None, object]]) -> SafeString | str:
    """Return what happened when, in its order; what has no moment is left out."""
    known = sorted(((at, what) for at, what in moments if at is not None), key=lambda one: one[0])
    rows = [(moment(at), what) for at, what in known]
    return (
        format_html('<ol class="workpool-timeline">{}</ol>', format_html_join("", "<li><time>{}</time> {}</li>", rows)) if rows else EMPTY
    )
