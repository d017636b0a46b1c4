"""The admin shows what there is, and changes nothing: rows belong to the rooms that their contracts name."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from . import conf
from .models import Archive, Attempt, Globals, InternalState, Lead, PendingCancelation, PendingStart, RunningWork, RunStatus, Work, Worker

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin

#: Columns that may be large: lists do not load them.
PAYLOADS = ("arguments", "on_complete_context", "value", "error", "callback_error", "traceback", "text")


def shown_database(request: HttpRequest) -> str:
    """Return the database whose rows a page shows: what the list's filter says, else where the router writes if pools are there."""
    chosen = request.GET.get(DatabaseFilter.parameter_name)
    if chosen is None:
        # A page of details keeps what its list was filtered by.
        kept = parse_qs(request.GET.get("_changelist_filters", ""))
        chosen = kept.get(DatabaseFilter.parameter_name, [""])[0]
    return chosen if chosen in conf.database_aliases() else _home()


def _home() -> str:
    home, aliases = conf.database_alias(), conf.database_aliases()
    return home if home in aliases else aliases[0]


class DatabaseFilter(admin.SimpleListFilter):
    """Chooses the database whose rows are shown, where pools are in several."""

    title = "database"
    parameter_name = "database"

    def lookups(self, request: HttpRequest, model_admin: AnyModelAdmin) -> list[tuple[str, str]]:
        """Return the databases that hold pools."""
        return [(alias, alias) for alias in conf.database_aliases()]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield them: there is no list of all."""
        shown = self.value() or _home()
        for alias, _ in self.lookup_choices:
            yield {"selected": alias == shown, "query_string": changelist.get_query_string({"database": alias}), "display": alias}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return it as it is: its rows are of that database already."""
        return queryset


class ReadOnly(AnyModelAdmin):
    """A list and a page of details, without a way to change anything, and without counting a whole table."""

    show_full_result_count = False
    actions = None
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Leave payloads out of lists."""
        # Named: a router may send reads to a replica that is late.
        queryset = super().get_queryset(request).using(shown_database(request))
        match = request.resolver_match
        if match is None or not (match.url_name or "").endswith("_changelist"):
            return queryset
        names = {field.name for field in self.model._meta.get_fields()}
        return queryset.defer(*(name for name in PAYLOADS if name in names))

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Offer the databases where there is a choice."""
        own = super().get_list_filter(request)
        return [DatabaseFilter, *own] if len(conf.database_aliases()) > 1 else own

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
