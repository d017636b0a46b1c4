"""Batches: works that are enqueued together in one transaction, and what is called when all of them have ended.

A work knows its batch, and its row goes when it ends: a batch is over when no row of ``Work`` names it. Ends that are not
successes are written down by ``settle``; successes are what is left of the total. The loop notices (``loop.batches``).
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, Unpack, overload

from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery

from . import archive, callbacks, client, conf, serialization, settle
from .batch_values import BatchResult, BatchStatus
from .database import Database, database
from .exceptions import InvalidWork
from .ids import new_work_id, parse_work_id
from .kick import Source, kick_after_commit
from .models import Batch, BatchFailure, InternalState, Work
from .options import CheckedOptions, Context, EnqueueOptions, Membership, check_options
from .types import Call, Function, ResultKind

if TYPE_CHECKING:
    from .pools import Workpool

P = ParamSpec("P")

#: Works whose cancelation one statement asks for.
CHUNK = 1000
#: Batches, and their failures, that one transaction prunes.
PRUNE_CHUNK = 500


_NO_SUCCESS = (ResultKind.FAILED, ResultKind.CANCELED)


class OnBatchComplete(Protocol):
    """A function decorated with ``on_batch_complete``."""

    def __call__(self, done: BatchResult, /) -> object: ...


class Told(NamedTuple):
    """Who is told the end of a batch: as it is stored."""

    on_complete: str
    context: str
    name: str


class WorkBatch:
    """A batch: what ``with batch(...)`` gives.

    Inside of the block ``enqueue``, ``enqueue_many`` and ``using`` are those of its pool, for works of the batch. After it they raise
    ``InvalidWork``, as they do in another thread; ``cancel`` and ``status`` stay.
    """

    def __init__(self, pool: "Workpool", batch_id: uuid.UUID) -> None:
        self._pool = pool
        #: Known at once; its rows come with the commit.
        self.id = batch_id

    def using(self, **options: Unpack[EnqueueOptions[Context]]) -> "Workpool":
        """Return the pool with these options, for works of this batch."""
        return self._pool.using(**options)

    @overload
    def enqueue(self, func: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> uuid.UUID: ...
    @overload
    def enqueue(self, func: str, /, *args: Any, **kwargs: Any) -> uuid.UUID: ...
    def enqueue(self, func: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> uuid.UUID:
        """Insert a call of ``func`` as a work of this batch: see ``Workpool.enqueue``."""
        return self._pool.enqueue_many(func, [Call(args, kwargs)])[0]

    @overload
    def enqueue_many(self, func: Function, /, calls: Iterable[Call[Function]]) -> list[uuid.UUID]: ...
    @overload
    def enqueue_many(self, func: str, /, calls: Iterable[Call[Any]]) -> list[uuid.UUID]: ...
    def enqueue_many(self, func: Callable[..., Any] | str, /, calls: Iterable[Call[Any]]) -> list[uuid.UUID]:
        """Insert many calls of ``func`` as works of this batch: see ``Workpool.enqueue_many``."""
        return self._pool.enqueue_many(func, calls)

    def cancel(self) -> int:
        """Ask for the cancelation of its works: see ``Workpool.cancel_batch``."""
        return cancel(self._pool.name, self.id)

    def status(self) -> BatchStatus | None:
        """Return how far it has come: see ``Workpool.batch_status``."""
        return status(self._pool.name, self.id)


def told(on_complete: OnBatchComplete | str | None, context: Any, name: str) -> Told:
    """Return who is told, checked.

    Raises:
        InvalidWork: a value cannot be taken, or there is a context and nobody to be given it.
        UnregisteredFunction: ``on_complete`` is not a registered on_batch_complete function.
    """
    path = "" if on_complete is None else callbacks.of_batch(on_complete).path
    text = serialization.encode(context, "on_complete_context")
    if text != "null" and not path:
        raise InvalidWork("on_complete_context without on_complete: nobody would be given it.")
    # The same rule as for the name of a work.
    return Told(path, text, check_options(CheckedOptions(), {"name": name}).name)


@contextmanager
def fill(pool: "Workpool", told: Told) -> Iterator[WorkBatch]:
    """A transaction in which a batch is filled."""
    using = conf.database_alias(pool.name)
    with transaction.atomic(using=using):
        connection = database(using).connection
        # Each thread has a connection, and with that a transaction, of its own.
        member = Membership(new_work_id(), lambda: database(using).connection is connection)
        try:
            yield WorkBatch(replace(pool, _options=replace(pool._options, batch=member)), member.id)
        finally:
            member.is_open = False
        _insert(database(using), pool.name, member.id, told)


def _insert(db: Database, pool: str, batch_id: uuid.UUID, told: Told) -> None:
    # What an inner block has rolled back does not count. Works have ended by now only where a test runs them inside of the block.
    among, param = db.among("batch_id", [batch_id])
    ((unfinished, failed, canceled, succeeded),) = db.fetch(
        f"SELECT (SELECT COUNT(*) FROM {{Work}} WHERE {among}), (SELECT COUNT(*) FROM {{BatchFailure}} WHERE {among} AND kind = 'failed'), "
        f"(SELECT COUNT(*) FROM {{BatchFailure}} WHERE {among} AND kind = 'canceled'), "
        f"(SELECT COUNT(*) FROM {{Archive}} WHERE {among} AND kind = 'success')",
        [param] * 4,
    )
    now = db.moment(db.clock_ms())
    row = Batch(
        id=batch_id,
        pool=pool,
        name=told.name,
        on_complete=told.on_complete,
        on_complete_context=told.context,
        total=unfinished + failed + canceled + succeeded,
        created=now,
        ended=None if unfinished else now,
    )
    Batch.objects.using(db.using).bulk_create([row])
    if not unfinished:
        call_back(db, row, {ResultKind.FAILED.value: failed, ResultKind.CANCELED.value: canceled})
        kick_after_commit(db.using, pool, Source.COMPLETE)


def call_back(db: Database, batch: Batch, ends: dict[str, int]) -> None:
    """Insert the call of a batch's on_complete as callback work.

    Args:
        db: The database.
        batch: A batch that ends in this transaction.
        ends: How many of its works have ended as what, without the successes.
    """
    if not batch.on_complete:
        return
    counts = _counts(batch.total, 0, ends)
    numbers = ", ".join(f'"{name}": {value}' for name, value in counts.items())
    name = serialization.encode(batch.name, "name")
    arguments = f'{{"args": [], "kwargs": {{"batch_id": "{batch.id}", "name": {name}, "context": {batch.on_complete_context}, {numbers}}}}}'
    settle.insert_callback(db, batch.pool, batch.on_complete, arguments, callback_of=batch.id)


def _counts(total: int, unfinished: int, ends: dict[str, int]) -> dict[str, int]:
    failed, canceled = (ends.get(kind.value, 0) for kind in _NO_SUCCESS)
    return {"total": total, "succeeded": total - unfinished - failed - canceled, "failed": failed, "canceled": canceled}


def cancel(pool: str, batch_id: object) -> int:
    """Ask for the cancelation of the works of a batch that have not ended; return of how many.

    Those that are being canceled already do not count.
    """
    conf.pool(pool)
    parsed, using = parse_work_id(batch_id), conf.database_alias(pool)
    if parsed is None:
        return 0
    with transaction.atomic(using=using):
        return client.cancel_many(pool, Work.objects.using(using).filter(batch_id=parsed, pool=pool).values_list("id", flat=True))


def status(pool: str, batch_id: object) -> BatchStatus | None:
    """Return how far a batch has come; None if there is no such batch, or it is no longer kept.

    Raises:
        InvalidWork: ``batch_id`` is not an id.
    """
    conf.pool(pool)
    parsed = parse_work_id(batch_id)
    if parsed is None:
        raise InvalidWork(f"{batch_id!r} is not the id of a batch.")
    db = database(conf.database_alias(pool))
    failures = ", ".join(
        f"(SELECT COUNT(*) FROM {{BatchFailure}} f WHERE f.batch_id = b.id AND f.kind = '{kind.value}')" for kind in _NO_SUCCESS
    )
    # One statement, one snapshot: a work that ends meanwhile is counted once.
    rows = db.fetch(
        "SELECT b.name, b.total, CASE WHEN b.ended IS NULL THEN 0 ELSE 1 END, "
        f"(SELECT COUNT(*) FROM {{Work}} w WHERE w.batch_id = b.id), {failures} FROM {{Batch}} b WHERE b.id = %s AND b.pool = %s",
        [db.uuid_param(parsed), pool],
    )
    if not rows:
        return None
    name, total, ended, unfinished, *ends = rows[0]
    if ended and (past := old(db, pool)) is not None and past.filter(id=parsed).exists():
        # Its failures may be pruned by now, all or some: they would be told as successes.
        return None
    counts = _counts(total, unfinished, {kind.value: number for kind, number in zip(_NO_SUCCESS, ends, strict=True)})
    return BatchStatus(name=name, unfinished=unfinished, ended=bool(ended), **counts)


def overdue(using: str) -> list[str]:
    """Return the pools that keep ended batches for longer than their retention."""
    oldest = Batch.objects.using(using).filter(pool=OuterRef("pool"), ended__isnull=False).order_by("ended").values("ended")[:1]
    states = InternalState.objects.using(using).annotate(oldest=Subquery(oldest)).filter(oldest__isnull=False)
    found = list(states.values_list("pool", "oldest"))
    if not found:
        return []
    now = database(using).moment(database(using).clock_ms())
    return [pool for pool, ended in found if (keep_for := archive.retention(pool)) is not None and now - ended >= keep_for]


def old(db: Database, pool: str, keep_for: timedelta | None = None) -> QuerySet[Batch] | None:
    """Return the batches of a pool that ended longer ago than its retention, or than ``keep_for``; None if it keeps all."""
    keep_for = archive.retention(pool) if keep_for is None else keep_for
    if keep_for is None:
        return None
    before = db.moment(db.clock_ms() - keep_for / timedelta(milliseconds=1))
    return Batch.objects.using(db.using).filter(pool=pool, ended__lte=before)


def prune(using: str, pool: str, keep_for: timedelta | None = None) -> int:
    """Delete a chunk of that, the failures of batches first; return how much it was."""
    db = database(using)
    past = old(db, pool, keep_for)
    if past is None:
        return 0
    with transaction.atomic(using=using):
        ids = list(past.order_by("ended").values_list("id", flat=True)[:PRUNE_CHUNK])
        failures = list(BatchFailure.objects.using(using).filter(batch_id__in=ids).values_list("id", flat=True)[:PRUNE_CHUNK])
        if failures:
            among, param = db.among("id", failures)
            db.execute(f"DELETE FROM {{BatchFailure}} WHERE {among}", [param])
        if len(failures) == PRUNE_CHUNK:
            return PRUNE_CHUNK
        if ids:
            among, param = db.among("id", ids)
            db.execute(f"DELETE FROM {{Batch}} WHERE {among}", [param])
    return len(ids)
