"""What an operator asks for: that a finished work runs again, that a waiting one runs now.

A work keeps its id. Its row of the archive is locked, then deleted by the transaction that inserts it anew, so that of several who
ask at the same time one gets it. A work whose last run still holds its slot is refused: its running row would be taken for that of
the next run. Rows that the loop may be working on are never changed: whoever is later finds them gone.
"""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from django.db import transaction

from . import archive, conf, eventlog, keys, retry_texts, tallies
from .callbacks import lane_of
from .database import Database, database
from .database.base import lock_rows
from .database.rows import KEPT_COLUMNS, STANDS
from .exceptions import WorkExists
from .ids import parse_work_id, parse_work_ids
from .kick import Source, kick_after_commit
from .models import Archive, PendingStart, Work
from .settle import lock_works
from .types import CallbackState, FnType, Lane, ResultKind

#: Works that one transaction requeues.
CHUNK = 500
#: Seconds in which the loop frees the slot of a work that has ended, and between two looks whether it has.
FREED_WITHIN, LOOK_EVERY = 1.0, 0.1
#: The work's columns that are as they were.
_KEPT = (*(set(KEPT_COLUMNS) - {"batch_id", "retry"}), "attempts")


class Refusal(StrEnum):
    """Why a work was not taken."""

    GONE = "it is unknown, of another pool, or no longer kept"
    NOT_ENDED = "it has not ended"
    SUCCEEDED = "it has succeeded"
    HOLDS_SLOT = "its last run still holds its slot: ask again"
    CANCELING = "a cancelation that covers it waits: ask again"
    CALLBACK_WAITS = "its on_complete has yet to be called for its last end: ask again"
    KEY_TAKEN = "another work has its unique key"


#: Refusals that mostly are none a moment later.
_PASSES = (Refusal.HOLDS_SLOT, Refusal.CANCELING, Refusal.CALLBACK_WAITS)


@dataclass(frozen=True, slots=True)
class Requeued:
    """What became of works that were to run again."""

    #: Those that will, in the order of their ids.
    taken: list[uuid.UUID] = field(default_factory=list)
    refused: dict[uuid.UUID, Refusal] = field(default_factory=dict)
    #: For those whose key is taken: the key, and the work that has it.
    holders: dict[uuid.UUID, tuple[str, uuid.UUID]] = field(default_factory=dict)


def retry(pool: str, work_id: object) -> bool:
    """Let a finished work that has failed or was canceled run again; return whether it will.

    Outside of a transaction it waits for a moment where the loop has not yet freed the slot of the last run.

    Raises:
        WorkExists: another work has its unique key.
    """
    conf.pool(pool)
    parsed = parse_work_id(work_id)
    if parsed is None:
        return False
    deadline = time.monotonic() + FREED_WITHIN
    while True:
        done = requeue(pool, [parsed])
        waits = done.refused.get(parsed) in _PASSES
        if not waits or time.monotonic() >= deadline or database(conf.database_alias(pool)).connection.in_atomic_block:
            break
        time.sleep(LOOK_EVERY)
    if parsed in done.holders:
        raise WorkExists(*done.holders[parsed])
    return bool(done.taken)


def retry_callback(pool: str, work_id: object) -> bool:
    """Let the exhausted callback of a finished work, or of a batch, run again; return whether it will."""
    exhausted = exhausted_callback(pool, work_id)
    return exhausted is not None and retry(pool, exhausted)


def exhausted_callback(pool: str, work_id: object) -> uuid.UUID | None:
    """Return the callback work of a finished work, or of a batch, that has failed for good; None if there is none."""
    conf.pool(pool)
    parsed, using = parse_work_id(work_id), conf.database_alias(pool)
    if parsed is None:
        return None
    fate = Archive.objects.using(using).filter(id=parsed).values_list("callback", flat=True).first()
    # A work that was let run again may have an exhausted callback of an earlier end: that is not what is asked for.
    if fate not in (None, CallbackState.FAILED) or Work.objects.using(using).filter(id=parsed).exists():
        return None
    exhausted = Archive.objects.using(using).filter(kind=ResultKind.FAILED, fn_type=FnType.CALLBACK, callback_of=parsed, pool=pool)
    return exhausted.order_by("-finished").values_list("id", flat=True).first()


def requeue(pool: str, work_ids: Iterable[object]) -> Requeued:
    """Let finished works run again, in a transaction for each ``CHUNK`` of them (all in the caller's, where there is one).

    Raises:
        InvalidWork: something is not the id of a work. Nothing has been written.
    """
    conf.pool(pool)
    db, wanted, whole = database(conf.database_alias(pool)), parse_work_ids(work_ids), Requeued()
    for start in range(0, len(wanted), CHUNK):
        with transaction.atomic(using=db.using):
            done = _requeue(db, pool, wanted[start : start + CHUNK])
        whole.taken.extend(done.taken)
        whole.refused.update(done.refused)
        whole.holders.update(done.holders)
    return whole


def look(pool: str, work_ids: Iterable[object]) -> Requeued:
    """Return what ``requeue`` would do now, and do nothing. Keys are not looked at."""
    conf.pool(pool)
    db, ids = database(conf.database_alias(pool)), parse_work_ids(work_ids)
    refused = _refused(db, pool, ids, list(Archive.objects.using(db.using).filter(id__in=ids, pool=pool)))
    return Requeued(taken=sorted(set(ids) - set(refused)), refused=refused)


def _requeue(db: Database, pool: str, ids: Sequence[uuid.UUID]) -> Requeued:
    """Requeue works in the caller's transaction."""
    db.take_turn()
    # What is refused anyway is not locked: those who end its callback would wait for the end of the caller's transaction.
    looked = look(pool, ids)
    ids, early = looked.taken, looked.refused
    rows = [row for row in _lock(db, ids) if row.id in set(ids) and row.pool == pool]
    done = Requeued(refused=early | _refused(db, pool, ids, rows))
    rows = [row for row in rows if row.id not in done.refused]
    done.holders.update(keys.regain(db, [row.id for row in rows]))
    done.refused.update(dict.fromkeys(done.holders, Refusal.KEY_TAKEN))
    rows = [row for row in rows if row.id not in done.refused]
    if not rows:
        return done
    among, param = db.among("id", [row.id for row in rows])
    db.execute(f"DELETE FROM {{Archive}} WHERE {among}", [param])
    Work.objects.using(db.using).bulk_create(
        Work(**{name: getattr(row, name) for name in _KEPT}, retry=retry_texts.raised(row.retry, row.attempts)) for row in rows
    )
    segment = db.segment()
    PendingStart.objects.using(db.using).bulk_create(
        PendingStart(work_id=row.id, pool=pool, lane=lane_of(row.fn_type), priority=row.priority, segment=segment) for row in rows
    )
    for row in rows:
        if row.callback_of is not None:
            archive.callback_fate(db.using, row.callback_of, CallbackState.PENDING, callback=row.id)
    for lane in Lane:
        number = sum(lane_of(row.fn_type) is lane for row in rows)
        if number:
            tallies.count_requeued(db.using, pool, number, lane)
    done.taken.extend(row.id for row in rows)

    def tell(one: Archive = rows[0], works: int = len(rows)) -> None:
        eventlog.log("requeued", "REPORT", pool, works=works, work_id=one.id, name=one.name)

    transaction.on_commit(tell, using=db.using, robust=True)
    kick_after_commit(db.using, pool, Source.RETRY)
    return done


def _lock(db: Database, ids: Sequence[uuid.UUID]) -> list[Archive]:
    """Lock finished works, and those whose callbacks they are: all at once in one order, so that nobody waits for each other."""
    callbacks = Archive.objects.using(db.using).filter(id__in=ids, callback_of__isnull=False).values_list("callback_of", flat=True)
    return list(lock_rows(Archive, db.using).filter(id__in={*ids, *callbacks}).order_by("id"))


def _refused(db: Database, pool: str, ids: Sequence[uuid.UUID], rows: Sequence[Archive]) -> dict[uuid.UUID, Refusal]:
    """Return which works cannot run again, and why. What is asked here is read after the lock was had."""
    found = {row.id for row in rows}
    missing = [work_id for work_id in ids if work_id not in found]
    refused = dict.fromkeys(missing, Refusal.GONE)
    if missing:
        stands = Work.objects.using(db.using).filter(id__in=missing, pool=pool)
        refused |= dict.fromkeys(stands.values_list("id", flat=True), Refusal.NOT_ENDED)
    if not rows:
        return refused
    # Its function may come to another end sooner than the call that is to tell of the last one.
    refused |= dict.fromkeys([row.id for row in rows if row.callback == CallbackState.PENDING], Refusal.CALLBACK_WAITS)
    refused |= dict.fromkeys([row.id for row in rows if row.kind == ResultKind.SUCCESS], Refusal.SUCCEEDED)
    among, param = db.among("a.id", [row.id for row in rows])
    tables = ("RunningWork", "PendingCompletion", "PendingStart")
    slot = " OR ".join(f"EXISTS (SELECT 1 FROM {{{table}}} q WHERE q.work_id = a.id)" for table in tables)
    # What waits is for the work as it was, but would end it as it is now.
    canceling = (
        "a.callback_of IS NULL AND (EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.work_id = a.id) OR EXISTS "
        "(SELECT 1 FROM {PendingCancelation} c WHERE c.pool = a.pool AND c.created_up_to IS NOT NULL AND c.created_up_to >= a.created))"
    )
    for refusal, condition in ((Refusal.CANCELING, canceling), (Refusal.HOLDS_SLOT, slot)):
        for (work_id,) in db.fetch(f"SELECT a.id FROM {{Archive}} a WHERE {among} AND ({condition})", [param]):
            refused.setdefault(db.read_uuid(work_id), refusal)
    return refused


def run_now(pool: str, work_id: object) -> bool:
    """Let a work that waits for its time be due now; inside a transaction, as soon as that is committed.

    Returns:
        False if it runs, has ended, is unknown, of another pool, or being canceled. True if it is due already, too.
    """
    conf.pool(pool)
    parsed = parse_work_id(work_id)
    using = conf.database_alias(pool)
    db = database(using)
    if parsed is None or (due := _due(db, pool, parsed)) is None:
        return False
    if due <= db.segment():
        return True
    # The transaction around a test, which is never committed, is nobody's.
    if all(getattr(block, "_from_testcase", False) for block in db.connection.atomic_blocks):
        return _bring_forward(db, pool, parsed)
    # The loop comes to these rows as soon as the work is due by itself, and would wait for the end of the caller's transaction: with all
    # other works of the pool.
    transaction.on_commit(lambda: _bring_forward(db, pool, parsed), using=using, robust=True)
    return True


def _bring_forward(db: Database, pool: str, work_id: uuid.UUID) -> bool:
    """Let a waiting work be due now, in a short transaction; return whether it is."""
    with transaction.atomic(using=db.using):
        # Cancelations and holds pass over what is locked; a start does not ask for the lock, so the row itself decides.
        db.take_turn()
        works = lock_works(db.using, [work_id])
        if work_id not in works or (due := _due(db, pool, work_id)) is None:
            return False
        now, work = db.segment(), works[work_id]
        if due <= now:
            return True
        if not db.execute("DELETE FROM {PendingStart} WHERE work_id = %s AND segment = %s", [db.uuid_param(work_id), due]):
            return False
        row = PendingStart(work_id=work_id, pool=pool, lane=lane_of(work.fn_type), priority=work.priority, segment=now)
        PendingStart.objects.using(db.using).bulk_create([row])
        kick_after_commit(db.using, pool, Source.RETRY)
    return True


def _due(db: Database, pool: str, work_id: uuid.UUID) -> int | None:
    """Return the segment at which a waiting work is due; None if it does not wait, or is being canceled."""
    rows = db.fetch(
        "SELECT s.segment FROM {PendingStart} s JOIN {Work} w ON w.id = s.work_id WHERE s.work_id = %s AND w.pool = %s "
        f"AND (w.callback_of IS NOT NULL OR ({STANDS}))",
        [db.uuid_param(work_id), pool],
    )
    return int(rows[0][0]) if rows else None
