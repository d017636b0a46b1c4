"""Finished works, and the attempts that failed."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString

from ..ids import parse_work_id
from ..models import Archive, Attempt, Work
from ..permissions import may_retry
from ..pools import Workpool
from ..types import CallbackState, ResultKind
from .acts import Act
from .base import Listed
from .databases import shown_database
from .filters import BatchFilter, CallbackFilter, CreatedFilter, FinishedFilter, FunctionTypeFilter, KindFilter, PoolFilter
from .history import WorkPages, attempts_of
from .shown import EMPTY, line, link, moment, payload, with_payloads

#: Characters of an error that a list loads.
ERROR_SHOWN = 160

RETRY = Act(
    name="retry",
    label="Let run again",
    done="Enqueued again",
    refused="succeeded, does not exist any more, or still holds its slot",
    allowed=may_retry,
    do=lambda pool, work_id: Workpool(pool).retry(work_id),
    do_many=lambda pool, work_ids: Workpool(pool).retry_many(work_ids),
    fits=lambda row: row.kind != ResultKind.SUCCESS,
)

RETRY_CALLBACK = Act(
    name="retry_callback",
    label="Call exhausted callbacks again",
    done="Callbacks enqueued again",
    refused="there is no callback that has failed for good",
    allowed=may_retry,
    do=lambda pool, work_id: Workpool(pool).retry_callback(work_id),
    fits=lambda row: row.callback == CallbackState.FAILED,
)


@admin.register(Archive)
class ArchiveAdmin(WorkPages):
    """Finished works."""

    list_display = ("label", "pool", "kind", "error_line", "attempts", "callback", "worker", "created_at", "finished_at")
    list_filter = (PoolFilter, KindFilter, CallbackFilter, FunctionTypeFilter, FinishedFilter, CreatedFilter, BatchFilter)
    acts = (RETRY, RETRY_CALLBACK)
    fieldsets = (
        (None, {"fields": ("name", "id", "pool", "func_path", "fn_type", "kind", "error_shown", "worker")}),
        ("Call", {"fields": ("arguments_shown", "value_shown", "priority", "attempts", "retry", "time_allowed")}),
        (
            "Callback",
            {"fields": ("on_complete", "callback", "callback_work", "callback_error_shown", "context_shown", "callback_for", "batch")},
        ),
        ("History", {"fields": ("moments", "attempts_shown")}),
    )
    arguments_shown, value_shown, error_shown = payload("arguments"), payload("value", "return value"), payload("error")
    context_shown, callback_error_shown = payload("on_complete_context", "context"), payload("callback_error")

    def window(self, chosen: Mapping[str, str]) -> tuple[tuple[str, ...], Collection[str]]:
        """By their ids, failed ones too; those of one pool by when they have ended."""
        if "batch" in chosen:
            return ("id",), {"batch", "created"}
        if chosen.get("kind", ResultKind.SUCCESS) != ResultKind.SUCCESS:
            return ("id",), {"kind", "created"}
        return (("finished", "id"), {"pool", "finished"}) if "pool" in chosen else (("id",), {"created"})

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """Offer the order that the window has."""
        names, _ = self.window({name: value for name, value in request.GET.items() if isinstance(value, str) and value})
        return ["finished_at" if names[0] == "finished" else "created_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add the beginnings of errors; on its own page, those of all payloads."""
        queryset = super().get_queryset(request)
        if self.is_details(request):
            return with_payloads(queryset, ("arguments", "value", "error", "on_complete_context", "callback_error"))
        listed: QuerySet[Any] = queryset.annotate(begin_error=Left("error", ERROR_SHOWN))
        return listed

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Follow a work that runs again."""
        work_id, using = parse_work_id(object_id), shown_database(request)
        again = self.address(using, "work_change", object_id)
        if again and work_id is not None and Work.objects.using(using).filter(id=work_id).exists():
            return HttpResponseRedirect(again)
        return super().gone(request, object_id)

    def told(self, row: Any) -> Iterator[tuple[datetime | None, object]]:
        """Add how it ended."""
        yield from super().told(row)
        if row.started not in {one.started for one in attempts_of(row)}:
            yield row.started, f"last attempt started on {row.worker or EMPTY}"
        yield row.finished, f"finished: {row.kind}" + (f"; its callback is {row.callback}" if row.callback else "")

    @admin.display(description="error")
    def error_line(self, row: Any) -> str:
        """The first words of its error."""
        return line(row.pool, row.func_path, "error", row.begin_error)

    @admin.display(description="finished", ordering="finished")
    def finished_at(self, row: Any) -> str:
        """When it has ended."""
        return moment(row.finished)

    @admin.display(description="callback work")
    def callback_work(self, row: Any) -> SafeString | str:
        """The work by which its callback is, or was, called again."""
        using = row._state.db
        if row.callback == CallbackState.PENDING:
            found = Work.objects.using(using).filter(callback_of=row.pk).values_list("pk", flat=True).first()
            return link(self.address(using, "work_change", found), found) if found else EMPTY
        if row.callback != CallbackState.FAILED:
            return EMPTY
        ended = Archive.objects.using(using).filter(callback_of=row.pk, kind=ResultKind.FAILED).order_by("-finished")
        last = ended.values_list("pk", flat=True).first()
        return link(self.address(using, "archive_change", last), last) if last else EMPTY


@admin.register(Attempt)
class AttemptAdmin(Listed):
    """Failed attempts with their tracebacks."""

    list_display = ("work", "number", "class_path", "worker", "started", "ended")
    list_display_links = ("number",)
    search_fields = ("class_path", "worker")
    search_help_text = "The id of a work or its beginning, or a part of an exception's class or of a worker's name."
    id_fields, text_fields = ("work_id",), ("class_path", "worker")
    fields = ("work", "number", "worker", "started", "ended", "class_path", "text_shown", "traceback_shown")
    text_shown, traceback_shown = payload("text"), payload("traceback")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Load payloads on an attempt's own page alone."""
        queryset = super().get_queryset(request)
        return with_payloads(queryset, ("text", "traceback")) if self.is_details(request) else queryset

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read one, and of its work what decides on how it is shown."""
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.pool = row.func_path = ""
            for model in (Work, Archive):
                found = model._default_manager.using(row._state.db).filter(pk=row.work_id).values_list("pool", "func_path").first()
                row.pool, row.func_path = found or (row.pool, row.func_path)
        return row

    @admin.display
    def work(self, row: Any) -> SafeString:
        """Its work."""
        return link(self.address(row._state.db, "work_change", row.work_id), row.work_id)
