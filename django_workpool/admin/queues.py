"""The queues that the main loop works off, batches and unique keys: for whoever wants to know how the rows stand."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from ..batches import status
from ..exceptions import WorkpoolError
from ..models import Batch, BatchFailure, PendingCancelation, PendingCompletion, PendingStart, RunningWork, UniqueKey, Worker
from ..permissions import may_cancel
from ..pools import Workpool
from ..serialization import clean
from .acts import Act
from .base import Listed
from .databases import shown_database
from .filters import BatchFilter, KindFilter, LaneFilter, PoolFilter, WorkerFilter
from .finished import RETRY_CALLBACK as RETRY_CALLBACK_OF_WORKS
from .shown import EMPTY, link, moment, payload, segment_moment, with_payloads

CANCEL_BATCH = Act(
    name="cancel_batch",
    label="Cancel its works",
    done="Asked to cancel the works of batches",
    refused="all of its works have ended, or are being canceled already",
    allowed=may_cancel,
    do=lambda pool, batch_id: bool(Workpool(pool).cancel_batch(batch_id)),
    fits=lambda row: row.ended is None,
)
RETRY_CALLBACK = replace(RETRY_CALLBACK_OF_WORKS, fits=lambda row: row.ended is not None and bool(row.on_complete))


class QueueRows(Listed):
    """Rows that each belong to one work."""

    list_filter: ClassVar[Any] = (PoolFilter,)
    list_display_links = ("id",)
    search_fields = ("work_id",)
    search_help_text = "The id of a work, or its beginning."
    id_fields: ClassVar[tuple[str, ...]] = ("work_id",)

    @admin.display
    def work(self, row: Any) -> SafeString | str:
        """Its work."""
        return link(self.address(row._state.db, "work_change", row.work_id), row.work_id) if row.work_id else EMPTY

    @admin.display
    def since(self, row: Any) -> str:
        """The moment of its segment."""
        at = segment_moment(row.segment)
        return moment(at) if at is not None else f"segment {row.segment}"


@admin.register(PendingStart)
class PendingStartAdmin(QueueRows):
    """What waits."""

    list_display = ("id", "work", "pool", "lane", "priority", "since")
    fields = ("id", "work", "pool", "lane", "priority", "segment", "since")
    list_filter = (PoolFilter, LaneFilter)


@admin.register(RunningWork)
class RunningWorkAdmin(QueueRows):
    """What runs now."""

    list_display = ("id", "work", "pool", "lane", "on", "started")
    fields = ("id", "work", "pool", "lane", "on", "due_at", "started")
    list_filter = (PoolFilter, LaneFilter, WorkerFilter)

    def window(self, chosen: Mapping[str, str]) -> tuple[tuple[str, ...], Collection[str]]:
        """An index has the workers."""
        return ("id",), {"worker"}

    def enrich(self, request: HttpRequest, rows: list[Any]) -> None:
        """Read the workers' names."""
        workers = Worker.objects.using(shown_database(request)).in_bulk({row.worker_id for row in rows})
        for row in rows:
            row.ran_by = workers.get(row.worker_id)

    @admin.display(description="worker")
    def on(self, row: Any) -> SafeString:
        """The worker that runs it."""
        return link(self.address(row._state.db, "worker_change", row.worker_id), getattr(row, "ran_by", None) or row.worker_id)

    @admin.display(description="due")
    def due_at(self, row: Any) -> str:
        """When it was due."""
        return moment(segment_moment(row.due))


@admin.register(PendingCompletion)
class PendingCompletionAdmin(QueueRows):
    """Attempts that have ended, and still hold their slots."""

    list_display = ("id", "work", "pool", "kind", "follow", "since")
    fields = ("id", "work", "pool", "kind", "follow", "since")


@admin.register(PendingCancelation)
class PendingCancelationAdmin(QueueRows):
    """What is to be canceled."""

    list_display = ("id", "work", "pool", "created_up_to", "since")
    fields = ("id", "work", "pool", "created_up_to", "since")


@admin.register(Batch)
class BatchAdmin(Listed):
    """Works that were enqueued together."""

    list_display = ("label", "pool", "total", "created", "ended")
    list_filter = (PoolFilter,)
    search_fields = ("name", "id")
    search_help_text = "The id of a batch or its beginning, or a part of its name."
    id_fields, text_fields = ("id",), ("name",)
    fieldsets = (
        (None, {"fields": ("name", "id", "pool", "total", "far", "created", "ended", "works")}),
        ("Callback", {"fields": ("on_complete", "context_shown")}),
    )
    acts = (CANCEL_BATCH, RETRY_CALLBACK)
    context_shown = payload("on_complete_context", "context")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Load the context on a batch's own page alone."""
        queryset = super().get_queryset(request)
        return with_payloads(queryset, ("on_complete_context",)) if self.is_details(request) else queryset

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read one; its context is masked as one of its callback's."""
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.func_path = row.on_complete
        return row

    @admin.display(description="name")
    def label(self, row: Any) -> str:
        """Its name, else its id."""
        return str(row)

    @admin.display(description="how far")
    def far(self, row: Any) -> str:
        """How many of its works have ended, and how."""
        try:
            found = status(row.pool, row.pk)
        except WorkpoolError as error:
            return clean(str(error), 200)
        return EMPTY if found is None else f"{found.unfinished:,} unfinished"

    @admin.display
    def works(self, row: Any) -> SafeString:
        """Lists of its works."""
        using = row._state.db
        pages = (("work", "not ended"), ("archive", "finished"), ("batchfailure", "not succeeded"))
        return format_html_join(
            ", ", "{}", ((link(self.address(using, f"{page}_changelist", batch=row.pk), text),) for page, text in pages)
        )


@admin.register(BatchFailure)
class BatchFailureAdmin(QueueRows):
    """Works of batches that have not succeeded."""

    list_display = ("id", "work", "batch", "kind")
    fields = ("work", "batch", "kind")
    list_filter = (KindFilter, BatchFilter)
    id_fields = ("work_id", "batch_id")

    def window(self, chosen: Mapping[str, str]) -> tuple[tuple[str, ...], Collection[str]]:
        """An index has the batches."""
        return ("id",), {"batch"}

    @admin.display
    def batch(self, row: Any) -> SafeString:
        """Its batch."""
        return link(self.address(row._state.db, "batch_change", row.batch_id), row.batch_id)


@admin.register(UniqueKey)
class UniqueKeyAdmin(QueueRows):
    """Which work a key was given to last."""

    list_display = ("key", "pool", "work")
    list_display_links = ("key",)
    fields = ("key", "pool", "work")
    search_fields = ("key",)
    search_help_text = "A part of a key, or the id of a work."
    text_fields = ("key",)
