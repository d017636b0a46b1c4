"""Finished work: kept with its result for the pool's retention, then pruned in small chunks.

The only room that writes the archive, and that deletes failed attempts: they go with their work.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import OuterRef, Q, Subquery

from . import conf
from .database import Database, database
from .models import Archive, InternalState
from .types import CallbackState, FnType, ResultKind

#: Rows that one transaction prunes: a few milliseconds, so that nobody waits for it.
PRUNE_CHUNK = 500

_COPIED = "id, pool, fn_type, func_path, name, arguments, priority, created, on_complete, on_complete_context, callback_of"
_INSERT = (
    f"INSERT INTO {{Archive}} ({_COPIED}, attempts, kind, value, error, worker, started, finished, callback, callback_error) "
    f"SELECT {_COPIED}, %s, %s, %s, %s, %s, %s, %s, %s, '' FROM {{Work}} WHERE id = %s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What the archive adds to the row of a work that ends."""

    work_id: uuid.UUID
    pool: str
    fn_type: str
    attempts: int
    kind: str
    value: str
    error: str
    worker: str
    started_ms: float | None
    callback: str


def keep(db: Database, finished: Sequence[Finished], now_ms: float) -> None:
    """Copy works that end into the archive; of those that are not kept, delete the attempts. Their rows must still be there."""
    kept = [one for one in finished if _is_kept(one)]
    started = {one.work_id: None if one.started_ms is None else db.moment_param(one.started_ms) for one in kept}
    now = db.moment_param(now_ms)
    db.execute_many(
        _INSERT,
        [
            (one.attempts, one.kind, one.value, one.error, one.worker, started[one.work_id], now, one.callback, db.uuid_param(one.work_id))
            for one in kept
        ],
    )
    # A first attempt that succeeds has left no rows.
    gone = [one.work_id for one in finished if not _is_kept(one) and (one.attempts > 1 or one.kind != ResultKind.SUCCESS)]
    if gone:
        _delete_attempts(db, gone)


def _delete_attempts(db: Database, work_ids: Sequence[uuid.UUID]) -> None:
    among, param = db.among("work_id", work_ids)
    db.execute(f"DELETE FROM {{Attempt}} WHERE {among}", [param])


def _is_kept(one: Finished) -> bool:
    # An exhausted callback stays whatever the retention, for an operator to requeue it.
    exhausted = one.fn_type == FnType.CALLBACK and one.kind == ResultKind.FAILED
    return exhausted or retention(one.pool) != timedelta(0)


def retention(pool: str) -> timedelta | None:
    """Return how long a pool's finished work is kept; None for ever. A pool that the settings no longer name: the default."""
    settings = conf.pools().get(pool)
    return settings.retention if settings is not None else conf.DEFAULT_RETENTION


def callback_fate(using: str, work_id: uuid.UUID, state: CallbackState, error: str = "") -> None:
    """Note what became of the on_complete of a finished work, if the work is kept."""
    Archive.objects.using(using).filter(id=work_id).update(callback=state.value, callback_error=error)


#: What an operator may requeue is never pruned.
_EXHAUSTED = Q(fn_type=FnType.CALLBACK, kind=ResultKind.FAILED)


def overdue(using: str) -> list[str]:
    """Return the pools that keep finished work for longer than their retention, in one statement for all of them."""
    oldest = Archive.objects.using(using).filter(~_EXHAUSTED, pool=OuterRef("pool")).order_by("finished").values("finished")[:1]
    states = InternalState.objects.using(using).annotate(oldest=Subquery(oldest)).filter(oldest__isnull=False)
    found = list(states.values_list("pool", "oldest"))
    if not found:
        return []
    now = database(using).moment(database(using).clock_ms())
    return [pool for pool, finished in found if (keep_for := retention(pool)) is not None and now - finished > keep_for]


def prune(using: str, pool: str) -> int:
    """Delete one chunk of the finished work that is older than the pool's retention; return how much it was."""
    keep_for = retention(pool)
    if keep_for is None:
        return 0
    db = database(using)
    before = db.moment(db.clock_ms() - keep_for / timedelta(milliseconds=1))
    with transaction.atomic(using=using):
        old = Archive.objects.using(using).filter(~_EXHAUSTED, pool=pool, finished__lt=before).order_by("finished")
        ids: list[Any] = list(old.values_list("id", flat=True)[:PRUNE_CHUNK])
        if ids:
            _delete_attempts(db, ids)
            among, param = db.among("id", ids)
            db.execute(f"DELETE FROM {{Archive}} WHERE {among}", [param])
    return len(ids)
