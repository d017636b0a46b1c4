"""The composite state of one work: which rows it has in which table."""

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import F, Model

from django_workpool import RetryBehavior, serialization
from django_workpool.database import database
from django_workpool.functions import known
from django_workpool.ids import new_work_id
from django_workpool.models import Archive, Attempt, PendingCancelation, PendingCompletion, PendingStart, RunningWork, RunStatus, Work
from django_workpool.types import FnType, Lane, Run

from . import functions

USING, POOL = "default", "default"
#: The tables that hold nothing of finished work.
HOT: tuple[type[Model], ...] = (Work, PendingStart, PendingCompletion, PendingCancelation, RunningWork)


@dataclass(frozen=True, kw_only=True)
class CompositeState:
    """The rows of one work."""

    #: None: the work has no row.
    attempts: int | None = 0
    canceled: bool = False
    pending_start: bool = False
    running: bool = False
    #: What follows the pending completion; empty: there is none.
    follow: str = ""
    #: How many single cancelations wait, and whether a cancel_all that covers the work does.
    pending_cancelation: int = 0
    covered: bool = False
    #: The archived result's kind; empty: not archived.
    archived: str = ""


#: The contract's table, one row each; where a state has several forms, the first.
S1 = CompositeState(pending_start=True)
S2 = CompositeState(running=True)
S3 = CompositeState(attempts=None, running=True, follow="end", archived="success")
S4 = replace(S3, pending_cancelation=1)
S5 = CompositeState(attempts=1, running=True, follow="retry")
S6 = replace(S5, pending_cancelation=1)
S7 = replace(S1, pending_cancelation=1)
S8 = replace(S2, pending_cancelation=1)
S9 = replace(S5, canceled=True)
S10 = CompositeState(attempts=1, pending_start=True)
S12 = replace(S2, canceled=True)
FINISHED = CompositeState(attempts=None, archived="success")
S11 = replace(FINISHED, pending_cancelation=1)
ABSENT = CompositeState(attempts=None)

STATES = {
    "S1": S1,
    "S2": S2,
    "S3": S3,
    "S4": S4,
    "S5": S5,
    "S6": S6,
    "S7": S7,
    "S8": S8,
    "S9": S9,
    "S10": S10,
    "S11": S11,
    "S12": S12,
    "finished": FINISHED,
}


def finished(kind: str) -> CompositeState:
    """Return the state of work that ended so."""
    return replace(FINISHED, archived=kind)


def name_of(state: CompositeState) -> str | None:
    """Return the name of a state in the contract's table; None if the table does not have it."""
    asked = state.pending_cancelation > 0 or (state.covered and not state.canceled and state.attempts is not None)
    goes_back = state.follow in ("retry", "return")
    live = state.attempts is not None and not state.archived
    gone = state.attempts is None and state.archived != ""
    shape = (live, gone, state.canceled, state.pending_start, state.running, state.follow == "end", goes_back, asked)
    _ = False
    names = {
        (True, _, _, True, _, _, _, _): "S10" if state.attempts else "S1",
        (True, _, _, _, True, _, _, _): "S2",
        (_, True, _, _, True, True, _, _): "S3",
        (_, True, _, _, True, True, _, True): "S4",
        (True, _, _, _, True, _, True, _): "S5",
        (True, _, _, _, True, _, True, True): "S6",
        (True, _, _, True, _, _, _, True): "S7",
        (True, _, _, _, True, _, _, True): "S8",
        (True, _, True, _, True, _, True, _): "S9",
        (_, True, _, _, _, _, _, True): "S11",
        (True, _, True, _, True, _, _, _): "S12",
        (_, True, _, _, _, _, _, _): "finished",
    }
    return names.get(shape)


def given(
    state: CompositeState,
    *,
    worker_id: int = 0,
    func: str = "act",
    retry: RetryBehavior | None = None,
    callback: str = "",
    priority: int = 0,
    due_in: int = -1,
) -> uuid.UUID:
    """Insert the rows of a state, due ``due_in`` segments from now; return the work's id."""
    db = database(USING)
    now_ms = db.clock_ms()
    now, segment, work_id = db.moment(now_ms), int(now_ms // 100), new_work_id()
    path = func if "." in func else f"{functions.__name__}.{func}"
    common: dict[str, Any] = {
        "id": work_id,
        "pool": POOL,
        "fn_type": known().get(path, "action").partition(":")[0],
        "func_path": path,
        "name": path,
        "arguments": '{"args": [], "kwargs": {}}',
        "priority": priority,
        "created": now,
        "on_complete": f"{functions.__name__}.{callback}" if callback else "",
    }
    if state.attempts is not None:
        text = serialization.encode(retry.to_json(), "retry") if retry else ""
        Work.objects.create(**common, attempts=state.attempts, canceled=state.canceled, retry=text)
    for number in range(1, 1 + (int(state.archived == "failed") if state.attempts is None else state.attempts)):
        Attempt.objects.create(work_id=work_id, number=number, worker="w", ended=now, class_path="x.Y", text="earlier")
    if state.archived:
        Archive.objects.create(**common, attempts=1, kind=state.archived, started=now, finished=now)
    if state.pending_start:
        PendingStart.objects.create(work_id=work_id, pool=POOL, priority=priority, segment=segment + due_in)
    if state.running:
        RunningWork.objects.create(work_id=work_id, pool=POOL, worker_id=worker_id, due=segment, started=now)
    if state.follow:
        kind = state.archived or "failed"
        PendingCompletion.objects.create(work_id=work_id, pool=POOL, segment=segment, kind=kind, follow=state.follow)
    for _ in range(state.pending_cancelation):
        PendingCancelation.objects.create(work_id=work_id, pool=POOL, segment=segment)
    if state.covered:
        PendingCancelation.objects.create(pool=POOL, segment=segment, created_up_to=now)
    return work_id


def observe(work_id: uuid.UUID) -> CompositeState:
    """Return which rows a work has."""
    return observe_many([work_id])[work_id]


def observe_many(ids: Iterable[uuid.UUID] | None = None) -> dict[uuid.UUID, CompositeState]:
    """Return the same for several works (None: all that have any row), in a fixed number of statements."""
    db = database(USING)
    covered = "EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.created_up_to >= w.created)"

    def read(columns: str, table: str) -> dict[uuid.UUID, Any]:
        rows = db.fetch(f"SELECT w.{columns} FROM {{{table}}} w")
        return {db.read_uuid(row[0]): row[1:] for row in rows if row[0] is not None}

    works, kept = read(f"id, w.attempts, w.canceled, {covered}", "Work"), read(f"id, w.kind, {covered}", "Archive")
    starts, runs = read("work_id", "PendingStart"), read("work_id", "RunningWork")
    follows = read("work_id, w.follow", "PendingCompletion")
    singles = Counter(db.read_uuid(one) for (one,) in db.fetch("SELECT work_id FROM {PendingCancelation}") if one is not None)
    found = {}
    for work_id in {*works, *kept, *starts, *runs, *follows, *singles} if ids is None else ids:
        attempts, canceled, is_covered = works.get(work_id, (None, False, False))
        kind, was_covered = kept.get(work_id, ("", False))
        found[work_id] = CompositeState(
            attempts=attempts,
            canceled=bool(canceled),
            pending_start=work_id in starts,
            running=work_id in runs,
            follow=follows.get(work_id, [""])[0],
            pending_cancelation=singles[work_id],
            covered=bool(is_covered or was_covered),
            archived=kind,
        )
    return found


def run_of(work_id: uuid.UUID) -> Run:
    """Return the run that a work's running row stands for, whether the work is still there or not."""
    row = RunningWork.objects.get(work_id=work_id)
    work: Any = Work.objects.filter(id=work_id).first() or Archive.objects.get(id=work_id)
    return Run(
        token=row.id,
        work_id=work_id,
        pool=row.pool,
        fn_type=FnType(work.fn_type),
        func_path=work.func_path,
        name=work.name,
        arguments=work.arguments,
        attempts=work.attempts,
        has_callback=work.on_complete != "",
        retryable=getattr(work, "retry", "") != "",
        started=row.started,
    )


def snapshot() -> dict[str, list[Any]]:
    """Return all rows that a no-op must leave as they are."""
    models: tuple[type[Model], ...] = (*HOT, Attempt, Archive, RunStatus)
    return {model.__name__: list(model._default_manager.order_by("pk").values()) for model in models}


def pass_time(segments: int) -> None:
    """Let all that waits have waited longer; to the loop's cursors it looks like the late commit of a slow transaction."""
    for model in (PendingStart, PendingCompletion, PendingCancelation):
        model._default_manager.update(segment=F("segment") - segments)


def callback_work(of: uuid.UUID) -> Work | None:
    """Return the callback work of a finished work, if it is waiting or running."""
    return Work.objects.filter(callback_of=of).first()


def numbers(work_id: uuid.UUID) -> list[int]:
    """Return the numbers of the failed attempts that are kept of a work."""
    return list(Attempt.objects.filter(work_id=work_id).order_by("number").values_list("number", flat=True))


def running(lane: Lane = Lane.WORK) -> set[uuid.UUID]:
    """Return which works of a lane hold a slot."""
    return set(RunningWork.objects.filter(lane=lane).values_list("work_id", flat=True))


def waiting() -> list[uuid.UUID]:
    """Return the works that wait, in the order of the queue."""
    return list(PendingStart.objects.order_by("-priority", "segment", "id").values_list("work_id", flat=True))


def left_over() -> dict[str, int]:
    """Return how many rows are in the hot tables, those that are empty left out."""
    return {model.__name__: count for model in HOT if (count := model._default_manager.count())}
