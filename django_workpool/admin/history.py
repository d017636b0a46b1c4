"""What the pages of a work tell whether it has ended or not: its attempts, its time line, what belongs to it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ..models import Archive, Attempt
from .base import Listed
from .shown import EMPTY, line, link, moment, shown, timeline, with_payloads

#: Attempts that a page shows: the last ones.
ATTEMPTS_MAX = 20


def attempts_of(row: Any) -> list[Any]:
    """Return the last failed attempts of a work, read once for a page."""
    if not hasattr(row, "attempt_rows"):
        found = Attempt.objects.using(row._state.db).filter(work_id=row.pk).order_by("-number").defer("text", "traceback")
        row.attempt_rows = list(with_payloads(found, ("text", "traceback"))[:ATTEMPTS_MAX])
    rows: list[Any] = row.attempt_rows
    return rows


class WorkPages(Listed):
    """What both tables of works have in common."""

    search_fields = ("name", "func_path")
    search_help_text = "An id or its beginning, or a part of a name or of a function's path."
    id_fields, text_fields = ("id",), ("name", "func_path")

    @admin.display(description="name")
    def label(self, row: Any) -> str:
        """Its label, else its function."""
        return row.name or row.func_path or str(row.pk)

    @admin.display(description="created", ordering="id")
    def created_at(self, row: Any) -> str:
        """When it was enqueued."""
        return moment(row.created)

    @admin.display(description="failed attempts")
    def attempts_shown(self, row: Any) -> SafeString | str:
        """The last failed attempts, each with its traceback."""
        rows = attempts_of(row)
        if not rows:
            return EMPTY
        parts = [
            (
                f"{one.number}: {one.class_path}",
                f"{moment(one.started)} to {moment(one.ended)} on {one.worker or EMPTY}",
                line(row.pool, row.func_path, "text", one.begin_text),
                shown(row.pool, row.func_path, "text", one.begin_text, one.length_text),
                shown(row.pool, row.func_path, "traceback", one.begin_traceback, one.length_traceback),
            )
            for one in rows
        ]
        told = format_html_join("", "<details><summary><strong>{}</strong> {}<br>{}</summary>{}{}</details>", parts)
        listed = link(self.address(row._state.db, "attempt_changelist", q=row.pk), "All that are kept")
        return format_html("{}{}", told, listed)

    @admin.display(description="time line")
    def moments(self, row: Any) -> SafeString | str:
        """What happened when."""
        return timeline(self.told(row))

    def told(self, row: Any) -> Iterator[tuple[datetime | None, object]]:
        """Yield what is known of a work: moments, and what happened then."""
        yield row.created, "created"
        for one in attempts_of(row):
            yield one.started, f"attempt {one.number} started on {one.worker or EMPTY}"
            yield one.ended, f"attempt {one.number} failed: {one.class_path}"

    @admin.display(description="batch")
    def batch(self, row: Any) -> SafeString | str:
        """The batch that it was enqueued with."""
        return link(self.address(row._state.db, "batch_change", row.batch_id), row.batch_id) if row.batch_id else EMPTY

    @admin.display(description="callback of")
    def callback_for(self, row: Any) -> SafeString | str:
        """The finished work, or the batch, whose callback it is."""
        if not row.callback_of:
            return EMPTY
        finished = Archive.objects.using(row._state.db).filter(id=row.callback_of).exists()
        return link(self.address(row._state.db, "archive_change" if finished else "batch_change", row.callback_of), row.callback_of)

    @admin.display(description="timeout")
    def time_allowed(self, row: Any) -> str:
        """How long an attempt may take."""
        return EMPTY if row.timeout_ms is None else f"{row.timeout_ms / 1000:g} s"
