"""The admin shows what there is, and changes nothing: rows belong to the rooms that their contracts name.

Periodic works are for people to edit: see ``periodic``.
"""

from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern

from ..models import (
    Archive,
    Attempt,
    Batch,
    BatchFailure,
    Globals,
    InternalState,
    Lead,
    PendingCancelation,
    PendingStart,
    Periodic,
    RunningWork,
    RunStatus,
    UniqueKey,
    Work,
    Worker,
)
from ..permissions import may_view
from . import dashboard
from .databases import ShowsDatabase
from .periodic import PeriodicAdmin

#: Columns that may be large: lists do not load them.
PAYLOADS = ("arguments", "on_complete_context", "value", "error", "callback_error", "traceback", "text")


class ReadOnly(ShowsDatabase):
    """A list and a page of details, without a way to change anything, and without counting a whole table."""

    show_full_result_count = False
    actions = None
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Leave payloads out of lists."""
        queryset = super().get_queryset(request)
        match = request.resolver_match
        if match is None or not (match.url_name or "").endswith("_changelist"):
            return queryset
        names = {field.name for field in self.model._meta.get_fields()}
        return queryset.defer(*(name for name in PAYLOADS if name in names))

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Only the permission to view lets anybody see rows: that to change them has no meaning here."""
        return may_view(request.user, self.model)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds rows by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody changes rows by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes rows by hand."""
        return False


@admin.register(Work)
class WorkAdmin(ReadOnly):
    """Work that has not ended."""

    list_display = ("name", "pool", "fn_type", "priority", "attempts", "canceled", "held_since", "created")
    list_filter = ("pool", "fn_type", "canceled")
    search_fields = ("name",)
    # Identifiers sort by time, and have an index.
    ordering = ("-id",)


@admin.register(Archive)
class ArchiveAdmin(ReadOnly):
    """Finished work."""

    list_display = ("name", "pool", "kind", "attempts", "callback", "worker", "created", "finished")
    list_filter = ("pool", "kind", "callback")
    search_fields = ("name",)
    ordering = ("-id",)


@admin.register(Attempt)
class AttemptAdmin(ReadOnly):
    """Failed attempts with their tracebacks."""

    list_display = ("work_id", "number", "class_path", "worker", "started", "ended")
    ordering = ("-id",)


@admin.register(Batch)
class BatchAdmin(ReadOnly):
    """Works that were enqueued together."""

    list_display = ("id", "name", "pool", "total", "created", "ended")
    list_filter = ("pool",)
    search_fields = ("name",)
    ordering = ("-id",)


@admin.register(BatchFailure)
class BatchFailureAdmin(ReadOnly):
    """Works of batches that have not succeeded."""

    list_display = ("batch_id", "work_id", "kind")
    ordering = ("-id",)


@admin.register(UniqueKey)
class UniqueKeyAdmin(ReadOnly):
    """Which work a key was given to last."""

    list_display = ("key", "pool", "work_id")
    list_filter = ("pool",)
    search_fields = ("key",)
    ordering = ("-id",)


@admin.register(RunningWork)
class RunningWorkAdmin(ReadOnly):
    """What runs now."""

    list_display = ("work_id", "pool", "lane", "worker_id", "started")
    list_filter = ("pool", "lane")
    ordering = ("-id",)


@admin.register(PendingStart)
class PendingStartAdmin(ReadOnly):
    """What waits."""

    list_display = ("work_id", "pool", "lane", "priority", "segment")
    list_filter = ("pool", "lane")
    ordering = ("-id",)


@admin.register(PendingCancelation)
class PendingCancelationAdmin(ReadOnly):
    """What is to be canceled."""

    list_display = ("pool", "work_id", "created_up_to")
    ordering = ("-id",)


@admin.register(Globals)
class GlobalsAdmin(ReadOnly):
    """Each pool's live configuration."""

    list_display = ("pool", "max_parallelism", "log_level")
    ordering = ("pool",)

    def get_urls(self) -> list[URLPattern]:
        """Put the dashboard before them."""
        return [*dashboard.urls(self), *super().get_urls()]


@admin.register(InternalState)
class InternalStateAdmin(ReadOnly):
    """Each pool's fence and counters."""

    list_display = ("pool", "generation", "completed", "succeeded", "failed", "retries", "canceled")
    ordering = ("pool",)


@admin.register(RunStatus)
class RunStatusAdmin(ReadOnly):
    """What the main loop does with each pool."""

    list_display = ("pool", "state", "saturated", "generation")
    ordering = ("pool",)


@admin.register(Worker)
class WorkerAdmin(ReadOnly):
    """The processes that run functions."""

    list_display = ("host", "pid", "capacity", "async_capacity", "accepting", "started", "beat")
    ordering = ("-id",)


@admin.register(Lead)
class LeadAdmin(ReadOnly):
    """Which process leads."""

    list_display = ("owner", "term", "expires_ms")
    ordering = ("id",)


admin.site.register(Periodic, PeriodicAdmin)
