"""Works that have not ended: where each of them is, and why it does not run."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import Exists, OuterRef, QuerySet, Subquery
from django.db.models.expressions import RawSQL
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString

from .. import health
from ..database import database
from ..ids import parse_work_id
from ..models import Archive, PendingCancelation, PendingCompletion, PendingStart, Progress, RunningWork, Work, Worker
from ..permissions import may_cancel, may_retry
from ..pools import Workpool
from .acts import Act
from .databases import AnyModelAdmin, shown_database
from .filters import BatchFilter, CreatedFilter, FunctionTypeFilter, Narrowing, PoolFilter
from .history import WorkPages
from .shown import EMPTY, link, moment, payload, segment_moment, with_payloads

CANCEL = Act(
    name="cancel",
    label="Cancel",
    done="Asked to cancel",
    refused="ended, or being canceled already",
    allowed=may_cancel,
    do=lambda pool, work_id: Workpool(pool).cancel(work_id),
    fits=lambda row: not (row.canceled or row.asked),
)

RUN_NOW = Act(
    name="run_now",
    label="Run now",
    done="Due now",
    refused="running, ended, or being canceled",
    allowed=may_retry,
    do=lambda pool, work_id: Workpool(pool).run_now(work_id),
    fits=lambda row: row.start_segment is not None and not (row.canceled or row.asked),
)
#: What is asked of a work to tell why it does not run.
_ASKED = ("id", "pool", "fn_type", "func_path", "attempts", "held_since")


class StateFilter(Narrowing):
    """Where works are."""

    title = "state"
    parameter_name = "state"
    #: States that a short index finds.
    SERVED = frozenset({"running", "canceled", "held"})

    def lookups(self, request: HttpRequest, model_admin: AnyModelAdmin) -> Sequence[tuple[str, str]]:
        """Offer the states."""
        return [(name, name) for name in ("due", "later", "running", "held", "canceled", "callback")]

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the works in a state."""
        using = queryset.db
        if value == "running":
            return queryset.filter(id__in=RunningWork.objects.using(using).values("work_id"))
        if value in ("due", "later"):
            order = "lte" if value == "due" else "gt"
            starts = PendingStart.objects.using(using).filter(**{f"segment__{order}": _now(using)})
            return queryset.filter(id__in=starts.values("work_id"))
        plain: dict[str, dict[str, Any]] = {
            "held": {"held_since__isnull": False},
            "canceled": {"canceled": True},
            "callback": {"callback_of__isnull": False},
        }
        return queryset.filter(**plain[value])


def _now(using: str) -> RawSQL:
    """SQL for the segment that is now: a statement of its own would be one more for each page."""
    return RawSQL(f"floor(({database(using).clock_ms_sql}) / 100)", ())  # noqa: S611 - nothing of it comes from outside


#: What ``with_places`` adds.
PLACE = ("now", "start_segment", "run_token", "run_worker", "run_started", "follow", "asked")


def with_places(queryset: QuerySet[Any], using: str) -> QuerySet[Any]:
    """Add where each work is: a probe of an index for each of the queues."""
    mine = {"work_id": OuterRef("pk")}
    running = RunningWork.objects.using(using).filter(**mine)
    placed: QuerySet[Any] = queryset.annotate(
        now=_now(using),
        start_segment=Subquery(PendingStart.objects.using(using).filter(**mine).values("segment")[:1]),
        run_token=Subquery(running.values("id")[:1]),
        run_worker=Subquery(running.values("worker_id")[:1]),
        run_started=Subquery(running.values("started")[:1]),
        follow=Subquery(PendingCompletion.objects.using(using).filter(**mine).values("follow")[:1]),
        asked=Exists(PendingCancelation.objects.using(using).filter(**mine)),
    )
    return placed


def state_of(row: Any) -> str:
    """Return where a work is, read by ``with_places``, in words."""
    if row.follow is not None:
        return f"attempt ended ({row.follow})"
    if row.run_token is not None:
        return "running, to be stopped" if row.canceled or row.asked else "running"
    if row.canceled or row.asked:
        return "being canceled"
    if row.start_segment is None:
        return "between two steps"
    if row.held_since is not None:
        return "held"
    return "due" if row.start_segment <= row.now else "due later"


@admin.register(Work)
class WorkAdmin(WorkPages):
    """Works that have not ended."""

    list_display = ("label", "pool", "state", "why", "due", "attempts", "worker", "fn_type", "priority", "created_at")
    list_filter = (PoolFilter, StateFilter, FunctionTypeFilter, CreatedFilter, BatchFilter)
    sortable_by = ("created_at",)
    acts = (CANCEL, RUN_NOW)
    fieldsets = (
        (None, {"fields": ("name", "id", "pool", "func_path", "fn_type", "state", "why", "due", "worker", "progress")}),
        ("Call", {"fields": ("arguments_shown", "priority", "attempts", "returns", "retry", "time_allowed")}),
        ("Callback", {"fields": ("on_complete", "context_shown", "callback_for", "batch")}),
        ("History", {"fields": ("moments", "attempts_shown")}),
    )
    arguments_shown, context_shown = payload("arguments"), payload("on_complete_context", "context")

    def window(self, chosen: Mapping[str, str]) -> tuple[tuple[str, ...], Collection[str]]:
        """The primary key, and the short indexes beside it."""
        if "batch" in chosen:
            return ("id",), {"batch", "created"}
        return ("id",), {"created", "state"} if chosen.get("state") in StateFilter.SERVED else {"created"}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Load payloads on a work's own page alone."""
        queryset = super().get_queryset(request)
        return with_payloads(queryset, ("arguments", "on_complete_context")) if self.is_details(request) else queryset

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read one, and what its page shows of other tables."""
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            self.enrich(request, [row])
        return row

    def enrich(self, request: HttpRequest, rows: list[Any]) -> None:
        """Read where the works are, the workers, and why what waits does not run: one look for all rows."""
        db = database(shown_database(request))
        # Not together with the rows: the server would look for those that it passes over on the way to a late page, too.
        places = with_places(Work.objects.using(db.using).filter(pk__in=[row.pk for row in rows]), db.using).values("pk", *PLACE)
        found = {place["pk"]: place for place in places} if rows else {}
        for row in rows:
            for name in PLACE:
                # What has gone meanwhile is nowhere.
                setattr(row, name, found[row.pk][name] if row.pk in found else None)
        columns = {row.pk: {name: getattr(row, name) for name in _ASKED} for row in rows}
        for row in rows:
            row.state = state_of(row)
        due = {row.pk: (columns[row.pk], row.start_segment) for row in rows if row.state in ("due", "held")}
        look = health.look_at(db, due) if due else None
        reasons = health.why_due(db, due, look) if look else {}
        running = {row.run_worker for row in rows if row.run_worker is not None}
        workers = {one.pk: one for one in look.rows} if look else Worker.objects.using(db.using).in_bulk(running) if running else {}
        for row in rows:
            row.on = workers.get(row.run_worker)
            if row.state == "due later":
                reasons[row.pk] = health.why_later(columns[row.pk], row.start_segment)
            row.why = reasons[row.pk].text if row.pk in reasons else EMPTY

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Follow a work that has ended meanwhile."""
        work_id, using = parse_work_id(object_id), shown_database(request)
        ended = self.address(using, "archive_change", object_id)
        if ended and work_id is not None and Archive.objects.using(using).filter(id=work_id).exists():
            return HttpResponseRedirect(ended)
        return super().gone(request, object_id)

    def told(self, row: Any) -> Iterator[tuple[datetime | None, object]]:
        """Add what is going on."""
        yield from super().told(row)
        if row.follow is None and row.run_token is None:
            due = segment_moment(row.start_segment)
            # A segment begins before what is enqueued in it.
            yield due and max(due, row.created), "due"
        if row.run_token is not None:
            yield row.run_started, f"attempt {row.attempts + 1} started on {row.on or row.run_worker}"
        yield row.held_since, "held: no live worker knew its function"

    @admin.display
    def state(self, row: Any) -> str:
        """Where it is."""
        return str(row.state)

    @admin.display(description="why it does not run")
    def why(self, row: Any) -> str:
        """The reason, in a line."""
        return str(row.why)

    @admin.display
    def due(self, row: Any) -> str:
        """When it may start."""
        if row.start_segment is None:
            return EMPTY
        at = segment_moment(row.start_segment)
        return moment(at) if at is not None else f"segment {row.start_segment}"

    @admin.display
    def worker(self, row: Any) -> SafeString | str:
        """Who runs it, and since when."""
        if row.run_worker is None:
            return EMPTY
        return link(
            self.address(row._state.db, "worker_change", row.run_worker), f"{row.on or row.run_worker}, since {moment(row.run_started)}"
        )

    @admin.display
    def progress(self, row: Any) -> str:
        """How far the function says that it has come."""
        if row.run_token is None:
            return EMPTY
        said = Progress.objects.using(row._state.db).filter(work_id=row.pk, token=row.run_token).first()
        return f"{said}, said {moment(said.said)}" if said else EMPTY
