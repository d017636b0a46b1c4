"""Finished work: kept with its result for the pool's retention, then pruned in small chunks.

The only room that writes the archive, and that deletes failed attempts: they go with their work.
"""

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import OuterRef, Q, QuerySet, Subquery

from . import conf
from .database import Database, database
from .database.base import lock_rows
from .database.rows import KEPT_COLUMNS
from .models import Archive, InternalState, Work
from .types import CallbackState, FnType, ResultKind

#: Rows that one transaction prunes: a few milliseconds, so that nobody waits for it.
PRUNE_CHUNK = 500

#: What the archive adds, in the order of ``Finished``, with the types of their columns.
_ADDED = {"attempts": "bigint", "kind": "text", "value": "text", "error": "text", "worker": "text", "callback": "text"}


class Finished(NamedTuple):
    """A work that ends, and what the archive adds to its row."""

    work_id: uuid.UUID
    pool: str
    fn_type: str
    attempts: int
    kind: str
    value: str
    error: str
    worker: str
    callback: str


def keep(db: Database, finished: Sequence[Finished]) -> None:
    """Copy works that end into the archive; of those that are not kept, delete the attempts.

    Their rows must still be there, and where they have run, their running rows: these tell when they were started.
    """
    kept = [one for one in finished if _is_kept(one)]
    if kept:
        _copy(db, kept)
    # A first attempt that succeeds has left no rows.
    forget(db, [one.work_id for one in finished if (one.attempts > 1 or one.kind != ResultKind.SUCCESS) and not _is_kept(one)])


def _copy(db: Database, kept: Sequence[Finished]) -> None:
    now, moment = db.moment_sql()
    added = {name: (kind, [getattr(one, name) for one in kept]) for name, kind in _ADDED.items()}
    table, params = db.table(id=("uuid", [one.work_id for one in kept]), **added)
    db.execute(
        f"INSERT INTO {{Archive}} (finished, {', '.join(KEPT_COLUMNS)}, {', '.join(_ADDED)}, started, callback_error) "
        f"SELECT {now}, {', '.join(f'w.{name}' for name in KEPT_COLUMNS)}, {', '.join(f'm.{name}' for name in _ADDED)}, "
        f"(SELECT r.started FROM {{RunningWork}} r WHERE r.work_id = m.id), '' FROM {table} JOIN {db.each('{Work}', 'w', 'w.id = m.id')}",
        [*moment, *params],
    )


def forget(db: Database, work_ids: Sequence[uuid.UUID]) -> None:
    """Delete the attempts of works."""
    if not work_ids:
        return
    among, param = db.among("work_id", work_ids)
    db.execute(f"DELETE FROM {{Attempt}} WHERE {among}", [param])


def _is_kept(one: Finished) -> bool:
    # An exhausted callback stays whatever the retention, for an operator to requeue it.
    exhausted = one.fn_type == FnType.CALLBACK and one.kind == ResultKind.FAILED
    return exhausted or retains(one.pool)


def retains(pool: str) -> bool:
    """Return whether a pool's finished work is kept at all."""
    return retention(pool) != timedelta(0)


def retention(pool: str) -> timedelta | None:
    """Return how long a pool's finished work is kept; None for ever. A pool that the settings no longer name: the default."""
    settings = conf.pools().get(pool)
    return settings.retention if settings is not None else conf.DEFAULT_RETENTION


def callback_fate(using: str, work_id: uuid.UUID, state: CallbackState, error: str = "", callback: uuid.UUID | None = None) -> None:
    """Note what became of the on_complete of a finished work, if the work is kept.

    Args:
        using: The database.
        work_id: The finished work.
        state: What became of it.
        error: The text of its error.
        callback: The callback work that tells it, whose row is there. That of an end before the last one, after which the work has run
            again, says nothing of the last.
    """
    ended = Archive.objects.using(using).filter(id=work_id)
    if callback is not None:
        ended = ended.filter(finished__lte=Work.objects.using(using).filter(id=callback).values("created"))
    ended.update(callback=state.value, callback_error=error)


#: What an operator may requeue is never pruned by itself.
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


def old(db: Database, pool: str, keep_for: timedelta | None = None, *, exhausted: bool = False) -> QuerySet[Archive] | None:
    """Return the finished work of a pool that is older than its retention; None if it keeps all.

    Args:
        db: The database.
        pool: The pool.
        keep_for: A time in the place of its retention.
        exhausted: Whether callback work that an operator may requeue is among it.
    """
    keep_for = retention(pool) if keep_for is None else keep_for
    if keep_for is None:
        return None
    before = db.moment(db.clock_ms() - keep_for / timedelta(milliseconds=1))
    return Archive.objects.using(db.using).filter(*([] if exhausted else [~_EXHAUSTED]), pool=pool, finished__lt=before)


def prune(using: str, pool: str, keep_for: timedelta | None = None, *, exhausted: bool = False) -> int:
    """Delete one chunk of that; return how much it was. What somebody has locked to let it run again stays."""
    db = database(using)
    rows = old(db, pool, keep_for, exhausted=exhausted)
    if rows is None:
        return 0
    with transaction.atomic(using=using):
        db.take_turn()
        ids: list[Any] = list(rows.order_by("finished").values_list("id", flat=True)[:PRUNE_CHUNK])
        if ids:
            # Else the attempts of a work could go that runs again meanwhile; and what has ended again meanwhile is not old.
            held: Any = (lock_rows(Archive, using, skip_locked=True) & rows).filter(id__in=ids).order_by("id")
            ids = list(held.values_list("id", flat=True))
        if ids:
            forget(db, ids)
            among, param = db.among("id", ids)
            db.execute(f"DELETE FROM {{Archive}} WHERE {among}", [param])
    return len(ids)
