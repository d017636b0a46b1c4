"""Why single works do not run: one line for each, however many are asked for in a constant number of statements (for each thousand)."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.utils import timezone

from .. import conf
from ..callbacks import lane_of
from ..database import Database, database
from ..database.rows import STANDS
from ..ids import parse_work_ids
from ..models import Archive, PendingCompletion, PendingStart, RunningWork, Work, Worker
from ..plain import WORDS
from ..segments import segment_ms
from ..types import FnType, Lane
from .reading import COUNT_EACH, Look
from .states import Reason

#: Works that one statement asks for.
CHUNK = 1_000


class WhyCode(StrEnum):
    """Why a work does not run."""

    #: It does.
    RUNS = "runs"
    #: Its attempt has ended; what follows is being written.
    ENDING = "ending"
    #: It is to be canceled: it will not start any more.
    CANCELED = "canceled"
    #: Its time has not come; its next attempt's has not.
    LATER = "later"
    BACKOFF = "backoff"
    #: As for pools: see ``Reason``.
    PAUSED = "paused"
    FULL = "full"
    HELD = "held"
    NO_ROOM = "no_room"
    NO_WORKER = "no_worker"
    NO_LEADER = "no_leader"
    STALLED = "stalled"
    #: Nothing is in its way.
    SOON = "soon"
    ENDED = "ended"
    #: There is no such work, or it is no longer kept.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a work does not run, or that it does."""

    work_id: uuid.UUID
    code: WhyCode
    #: One line for people.
    text: str
    #: Empty for what is unknown.
    pool: str = ""
    #: Since when that is so, and until when, where it is known.
    since: datetime | None = None
    until: datetime | None = None


def why(using: str, work_ids: Iterable[object]) -> dict[uuid.UUID, Why]:
    """Return why works do not run. Reads only, on the caller's connection.

    Whether a process lives is known by its beat alone here: one that was killed counts as alive for half a minute. Whatever is due
    costs a look at the pools of these works, the workers and the leader (a dozen statements, for one work as for a thousand).

    Args:
        using: The database of their pools.
        work_ids: Ids of works, as UUIDs or text.

    Returns:
        One for each id, in their order.

    Raises:
        InvalidWork: something is not the id of a work.
    """
    db, wanted = database(using), parse_work_ids(work_ids)
    found: dict[uuid.UUID, Why] = {}
    due: dict[uuid.UUID, tuple[dict[str, Any], int]] = {}
    for start in range(0, len(wanted), CHUNK):
        found |= _chunk(db, wanted[start : start + CHUNK], due)
    if due:
        found |= why_due(db, due, look_at(db, due))
    return {work_id: found[work_id] for work_id in wanted}


def _chunk(db: Database, ids: Sequence[uuid.UUID], due: dict[uuid.UUID, tuple[dict[str, Any], int]]) -> dict[uuid.UUID, Why]:
    """Return what the rows of works alone tell; put those that are due, with their segments, into ``due``."""
    using = db.using
    columns = ("id", "pool", "fn_type", "func_path", "attempts", "canceled", "held_since")
    works: list[dict[str, Any]] = list(Work.objects.using(using).filter(id__in=ids).values(*columns))
    found = _gone(using, set(ids) - {work["id"] for work in works})
    if not works:
        return found
    starts = dict(PendingStart.objects.using(using).filter(work_id__in=ids).values_list("work_id", "segment"))
    ending = set(PendingCompletion.objects.using(using).filter(work_id__in=ids).values_list("work_id", flat=True))
    runs = {row.work_id: row for row in RunningWork.objects.using(using).filter(work_id__in=ids)}
    workers = Worker.objects.using(using).in_bulk([row.worker_id for row in runs.values()])
    among, param = db.among("w.id", [work["id"] for work in works])
    fall = db.fetch(f"SELECT w.id FROM {{Work}} w WHERE {among} AND w.callback_of IS NULL AND NOT ({STANDS})", [param])
    canceled = {db.read_uuid(work_id) for (work_id,) in fall}
    now = db.segment()
    for work in works:
        work_id, segment = work["id"], starts.get(work["id"])
        if work_id in ending:
            found[work_id] = _why(work, WhyCode.ENDING, "its attempt has ended, and what follows is being written")
        elif work_id in runs:
            found[work_id] = _runs(work, runs[work_id], workers, work_id in canceled)
        elif work_id in canceled:
            found[work_id] = _why(work, WhyCode.CANCELED, "it was canceled, and ends as soon as the loop comes to it")
        elif segment is None:
            found[work_id] = _why(work, WhyCode.SOON, "it has just ended a run, or is just about to start")
        elif segment > now and work["held_since"] is None:
            found[work_id] = why_later(work, segment)
        else:
            due[work_id] = work, segment
    return found


def _gone(using: str, ids: set[uuid.UUID]) -> dict[uuid.UUID, Why]:
    """Return what became of works that are there no more."""
    if not ids:
        return {}
    found = {work_id: Why(work_id=work_id, code=WhyCode.UNKNOWN, text="it is unknown, or no longer kept") for work_id in ids}
    for row in Archive.objects.using(using).filter(id__in=ids).values("id", "pool", "kind", "finished"):
        text = f"it has ended as {row['kind']} at {_shown(row['finished'])}"
        found[row["id"]] = _why(row, WhyCode.ENDED, text, since=row["finished"])
    return found


def _runs(work: dict[str, Any], row: RunningWork, workers: Mapping[int, Worker], canceled: bool) -> Why:
    worker = workers.get(row.worker_id)
    place = f"{worker.host}:{worker.pid}" if worker else "a worker that is gone"
    told = ", and was told to stop" if canceled else ""
    text = f"it runs since {_shown(row.started)} on {place}, attempt {work['attempts'] + 1}{told}"
    return _why(work, WhyCode.RUNS, text, since=row.started)


def why_later(work: Mapping[str, Any], segment: int) -> Why:
    """Return why a work is not started before its segment: given its columns ``id``, ``pool`` and ``attempts``."""
    until = Database.moment(segment_ms(segment))
    if work["attempts"]:
        return _why(
            work, WhyCode.BACKOFF, f"attempt {work['attempts']} has failed, and the next one is due at {_shown(until)}", until=until
        )
    return _why(work, WhyCode.LATER, f"it is not due before {_shown(until)}", until=until)


def look_at(db: Database, due: Mapping[uuid.UUID, tuple[Mapping[str, Any], int]]) -> Look:
    """Look at the pools of due works."""
    return Look(db, None, sorted({work["pool"] for work, _ in due.values()}), most=COUNT_EACH)


def why_due(db: Database, due: Mapping[uuid.UUID, tuple[Mapping[str, Any], int]], look: Look) -> dict[uuid.UUID, Why]:
    """Return why due works are not started: what a look at their pools says of each.

    Args:
        db: The database.
        due: For each work its columns ``id``, ``pool``, ``fn_type``, ``func_path`` and ``held_since``, and its segment.
        look: A look at their pools.
    """
    figures = {one.pool: one for one in look.figures}
    found = {}
    for work_id, (work, segment) in due.items():
        lane = lane_of(work["fn_type"])
        pool = figures.get(work["pool"])
        if pool is None:
            found[work_id] = _why(work, WhyCode.NO_WORKER, f"the pool {work['pool']} has no rows: no workpool_main has ever served it")
            continue
        reason = look.reason(pool, lane, (segment, work["func_path"], work["fn_type"]))
        found[work_id] = _told(look, work, lane, reason, look.limit(pool, lane))
    return found


def _told(look: Look, work: Mapping[str, Any], lane: Lane, reason: Reason, limit: int) -> Why:
    pool, path = work["pool"], work["func_path"]
    if reason is Reason.HELD or (reason is Reason.OK and work["held_since"] is not None):
        return _held(work, reason)
    if reason is Reason.OK:
        return _why(work, WhyCode.SOON, "it is due, and starts any moment")
    if reason is Reason.NO_LEADER:
        gone = look.leader.absent_s
        since = None if gone is None else look.db.moment(look.now_ms - gone * 1000)
        return _why(work, WhyCode.NO_LEADER, "no process leads" + (f" since {_shown(since)}" if since else ""), since=since)
    texts = {
        Reason.PAUSED: f"the pool {pool} is paused",
        Reason.FULL: f"the pool {pool} is full: {look.running[pool, lane]} of {limit} run",
        Reason.NO_WORKER: f"no live worker serves the pool {pool}",
        Reason.NO_ROOM: f"all live workers that know {path} are full",
        Reason.STALLED: "the leader could start it, and does not: see workpool_status",
    }
    return _why(work, WhyCode(reason.value), texts[reason])


def _held(work: Mapping[str, Any], reason: Reason) -> Why:
    since, path = work["held_since"], f"{work['func_path']} as {WORDS[FnType(work['fn_type'])]}"
    if reason is Reason.OK:
        return _why(work, WhyCode.SOON, f"a worker knows {path} by now: it starts within seconds", since=since)
    if since is None:
        return _why(work, WhyCode.HELD, f"no live worker knows {path}")
    settings = conf.pools().get(work["pool"])
    until = since + (settings.hold if settings else conf.DEFAULT_HOLD)
    text = f"no live worker knows {path}: held since {_shown(since)}, it fails at {_shown(until)}"
    return _why(work, WhyCode.HELD, text, since=since, until=until)


def _why(row: Mapping[str, Any], code: WhyCode, text: str, *, since: datetime | None = None, until: datetime | None = None) -> Why:
    return Why(work_id=row["id"], code=code, text=text, pool=row["pool"], since=since, until=until)


def _shown(at: datetime) -> str:
    """Return a time in the active time zone."""
    return (timezone.localtime(at) if timezone.is_aware(at) else at).isoformat(" ", "seconds")
