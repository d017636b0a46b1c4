"""The processes that run functions: which of them live, what each is doing, who leads."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .. import health
from ..models import FunctionSet, Lead, RunningWork, Work, Worker
from ..segments import SEGMENT_MS
from ..serialization import clean
from .base import Listed, ReadOnly
from .databases import shown_database
from .shown import EMPTY, ago, link, moment, plain, segment_moment, with_payloads

#: Rows that a count of a pool counts at most.
COUNT_MAX = 10_000
#: Runs that a worker's page names.
RUNS_MAX = 100


def looked(model_admin: ReadOnly, request: HttpRequest, pools: Sequence[str]) -> health.Health | None:
    """Return how pools and all workers are; None, and a message to the user, where that cannot be asked."""
    try:
        return health.look(shown_database(request), pools, COUNT_MAX)
    except health.Unasked as error:
        model_admin.message_user(request, f"How the pools are cannot be told: {error}", messages.WARNING)
        return None


def state_of(one: health.WorkerHealth | None, leader: health.LeaderHealth | None) -> str:
    """Return what a worker's state is, in words."""
    if one is None:
        return EMPTY
    if one.left:
        return "has left"
    state = ("lives" if one.accepting else "stops: takes nothing more") if one.alive else "does not show life"
    return f"{state}, leads" if leader is not None and leader.present and leader.worker == one.id else state


@admin.register(Worker)
class WorkerAdmin(Listed):
    """The processes that run functions."""

    list_display = ("process_name", "state", "running", "capacity", "async_capacity", "pools_served", "started", "last_seen")
    search_fields = ("host",)
    search_help_text = "A part of a host's name."
    text_fields = ("host",)
    fieldsets = (
        (None, {"fields": ("host", "pid", "process", "state", "last_seen", "started", "lockless")}),
        ("What it takes", {"fields": ("capacity", "async_capacity", "pools_served", "functions")}),
        ("What it runs", {"fields": ("runs",)}),
    )

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read one, and how it is."""
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            self.enrich(request, [row])
        return row

    def enrich(self, request: HttpRequest, rows: list[Any]) -> None:
        """Ask once how all of them are."""
        found = looked(self, request, ()) if rows else None
        by_id = {one.id: one for one in found.workers} if found else {}
        for row in rows:
            row.health = by_id.get(row.pk)
            row.state = state_of(row.health, found.leader if found else None)

    @admin.display(description="worker", ordering="id")
    def process_name(self, row: Any) -> str:
        """Its host and its process."""
        return str(row)

    @admin.display
    def state(self, row: Any) -> str:
        """Whether it lives, and whether it leads."""
        return str(row.state)

    @admin.display
    def running(self, row: Any) -> SafeString | str:
        """How many works it runs now."""
        if row.health is None:
            return EMPTY
        return link(self.address(row._state.db, "runningwork_changelist", worker=row.pk), row.health.running)

    @admin.display(description="last seen")
    def last_seen(self, row: Any) -> str:
        """How long its last beat is ago."""
        return f"{ago(row.health.beat_age_s)} ago" if row.health is not None else moment(row.beat)

    @admin.display(description="pools")
    def pools_served(self, row: Any) -> str:
        """The pools that it runs works of."""
        if row.health is None or row.health.pools is None:
            return "all" if row.pools == "null" else clean(row.pools, 500)
        return clean(", ".join(row.health.pools), 500)

    @admin.display
    def functions(self, row: Any) -> SafeString | str:
        """The functions that it knows."""
        known = FunctionSet.objects.using(row._state.db).filter(pk=row.function_set).defer("functions")
        found = with_payloads(known, ("functions",)).first()
        return plain("functions", found.begin_functions, found.length_functions) if found else EMPTY

    @admin.display(description="runs now")
    def runs(self, row: Any) -> SafeString | str:
        """What it runs, and since when."""
        using = row._state.db
        runs = list(RunningWork.objects.using(using).filter(worker_id=row.pk).order_by("id")[: RUNS_MAX + 1])
        names = dict(Work.objects.using(using).filter(pk__in=[run.work_id for run in runs]).values_list("pk", "name"))
        told = format_html_join(
            "",
            "<li>{} in {}, since {}</li>",
            (
                (
                    link(self.address(using, "work_change", run.work_id), names.get(run.work_id) or run.work_id),
                    run.pool,
                    moment(run.started),
                )
                for run in runs[:RUNS_MAX]
            ),
        )
        more = link(self.address(using, "runningwork_changelist", worker=row.pk), "All of them") if len(runs) > RUNS_MAX else ""
        return format_html("<ul>{}</ul>{}", told, more) if runs else EMPTY


@admin.register(Lead)
class LeadAdmin(ReadOnly):
    """Which process leads."""

    list_display = ("owner", "term", "leader", "expires")
    fields = ("owner", "term", "leader", "expires")
    ordering = ("id",)

    @admin.display
    def leader(self, row: Any) -> SafeString | str:
        """The worker that it is."""
        found = Worker.objects.using(row._state.db).filter(process=row.owner).first() if row.owner else None
        return link(self.address(row._state.db, "worker_change", found.pk), found) if found else EMPTY

    @admin.display
    def expires(self, row: Any) -> str:
        """When the lease ends, if it is not renewed; where the lead is a lock on a file, it has no end."""
        at = None if row.expires_ms is None else segment_moment(row.expires_ms // SEGMENT_MS)
        return moment(at)
