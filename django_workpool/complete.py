"""Step 6 of a work's way: one attempt's transaction. Guard, settle, call on_complete, insert the pending completion, kick.

The guard: the work is there, its running row is still the run's token, and no completion waits. Otherwise somebody else
has ended or recovered the run, and nothing is written. The work's row is locked first, then the rest is read, so that two
completions of one work, or a completion and a recovery, come one after the other.
"""

import contextvars
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from . import archive, functions, serialization, tracing
from .database import Database, database
from .database.rows import PROBE
from .database_errors import is_conflict
from .exceptions import StaleRun, WorkpoolError
from .failures import describe
from .kick import Source, kick, kick_after_commit
from .settle import (
    LockedWork,
    Verdict,
    complete_successes,
    judge,
    lock_works,
    make_callback_work,
    own,
    settle,
    settle_attempts,
    settlement,
    success,
)
from .types import Attempted, CallbackState, Failure, Follow, OnCompleteArgs, ResultKind, Run, RunResult

logger = logging.getLogger("django_workpool.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What was written for it: what the event tells."""

    run: Run
    verdict: Verdict
    #: What on_complete raised: it has become callback work.
    callback_failure: Failure | None = None

    @property
    def status(self) -> str:
        """The event's word."""
        return self.verdict.status


class CallbackError(WorkpoolError):
    """An on_complete function left the transaction in a state in which it cannot go on."""


def complete_many(using: str, attempted: Sequence[Attempted]) -> list[Completed]:
    """Complete attempts without on_complete in one transaction; those that are stale are left out of the result."""
    db = database(using)
    with db.write():
        pairs = [(one, success(one)) for one in complete_successes(db, [one for one in attempted if one.ends])]
        others = [one for one in attempted if not one.ends]
        if others:
            works = lock_works(using, [one.run.work_id for one in others])
            live, now_ms = _guard(db, [one for one in others if one.run.work_id in works])
            settled = settle_attempts(db, live, works, now_ms)
            _insert_completions(db, settled, now_ms)
            pairs += settled
        _kick(db, pairs)
    return [Completed(run=one.run, verdict=verdict) for one, verdict in pairs]


def complete_one(using: str, attempted: Attempted) -> Completed | None:
    """Complete one attempt in a transaction of its own, with its on_complete; None if it is stale.

    An on_complete that makes the transaction impossible (a dangling deferred reference, a closed connection) is left out of
    a second try, and becomes callback work.
    """
    callback = Callback()
    try:
        return _complete_alone(using, attempted, callback)
    except Exception as error:
        if not callback.entered or is_conflict(error):
            raise
        failure = describe(error)
    return _complete_alone(using, attempted, Callback(failure))


def _complete_alone(using: str, attempted: Attempted, callback: "Callback") -> Completed | None:
    try:
        with committing(database(using), attempted.run.pool) as commit:
            commit.completed = complete_inside(using, attempted, callback)
    except StaleRun:
        return None
    return commit.completed


class Callback:
    """How ``complete_inside`` treats on_complete: called, or made callback work because of a failure that came before.

    ``entered`` says whether it has been called.
    """

    def __init__(self, failure: Failure | None = None) -> None:
        self.failure = failure
        self.entered = False


class Commit:
    """What was written by a transaction, and whether it has been committed."""

    completed: Completed

    def __init__(self) -> None:
        self.happened = False

    def mark(self) -> None:
        """Note the commit."""
        self.happened = True


@contextmanager
def committing(db: Database, pool: str) -> Iterator[Commit]:
    """A transaction in which user code runs: what its own on_commit hooks raise comes after the commit, and undoes nothing."""
    commit = Commit()
    try:
        with db.write():
            transaction.on_commit(commit.mark, using=db.using, robust=True)
            yield commit
    except BaseException:
        if not commit.happened:
            raise
        logger.exception("a hook of transaction.on_commit raised after the commit that ended a work of pool %s", pool)
        # The hooks that were registered after it have not been called, our own among them.
        kick(db.using, pool, Source.RETRY)


def complete_inside(using: str, attempted: Attempted, callback: Callback) -> Completed:
    """Complete one attempt in the caller's transaction.

    Raises:
        StaleRun: the run has lost its work; the caller must roll back.
    """
    db = database(using)
    if attempted.ends:
        complete_together(db, [attempted])
        return Completed(run=attempted.run, verdict=success(attempted))
    owned = own(db, attempted.run)
    if owned is None:
        raise StaleRun(f"run {attempted.run.token} no longer owns work {attempted.run.work_id}")
    work, context, now_ms = owned
    verdict = judge(work, attempted.outcome)
    calls = verdict.follow is Follow.END and work.on_complete != "" and callback.failure is None
    one = settlement(work, attempted, verdict, CallbackState.DONE if calls else CallbackState.PENDING)
    settle(db, [one], now_ms)
    failure = callback.failure if verdict.follow is Follow.END and work.on_complete else None
    if calls:
        callback.entered = True
        failure = _call_back(db, attempted.run, work, verdict, context)
        if failure is not None:
            make_callback_work(db, one, context)
    if failure is not None:
        archive.callback_fate(using, work.id, CallbackState.PENDING, failure.text)
    _insert_completions(db, [(attempted, verdict)], now_ms)
    _kick(db, [(attempted, verdict)])
    return Completed(run=attempted.run, verdict=verdict, callback_failure=failure)


def complete_together(db: Database, attempted: Sequence[Attempted]) -> None:
    """Complete attempts that simply end in the caller's transaction, all of them.

    Raises:
        StaleRun: a run has lost its work; the caller must roll back.
    """
    owned = {one.run.token for one in complete_successes(db, attempted)}
    for one in attempted:
        if one.run.token not in owned:
            raise StaleRun(f"run {one.run.token} no longer owns work {one.run.work_id}")
    _kick(db, [(one, success(one)) for one in attempted])


def _guard(db: Database, attempted: Sequence[Attempted]) -> tuple[list[Attempted], float]:
    """Return the attempts that still own their work, and the database's time."""
    if not attempted:
        return [], 0.0
    among, param = db.among("r.id", [one.run.token for one in attempted])
    rows = db.fetch(
        f"SELECT r.id, r.work_id, {db.clock_ms_sql} FROM {{RunningWork}} r WHERE {among} "
        f"AND NOT EXISTS (SELECT 1 FROM {{PendingCompletion}} c WHERE c.work_id = r.work_id {PROBE})",
        [param],
    )
    owners: dict[int, uuid.UUID] = {int(token): db.read_uuid(work_id) for token, work_id, _ in rows}
    live: dict[int, Attempted] = {}
    for one in attempted:
        if owners.get(one.run.token) == one.run.work_id:
            # The same run twice in one batch is completed once.
            live.setdefault(one.run.token, one)
    return list(live.values()), float(rows[0][2]) if rows else 0.0


def _insert_completions(db: Database, ended: Sequence[tuple[Attempted, Verdict]], now_ms: float) -> None:
    if not ended:
        return
    segment = int(now_ms // 100)
    table, params = db.table(
        work_id=("uuid", [one.run.work_id for one, _ in ended]),
        pool=("text", [one.run.pool for one, _ in ended]),
        kind=("text", [verdict.kind.value for _, verdict in ended]),
        follow=("text", [verdict.follow.value for _, verdict in ended]),
    )
    db.execute(
        "INSERT INTO {PendingCompletion} (segment, work_id, pool, kind, follow) "
        f"SELECT {db.whole('%s')}, m.work_id, m.pool, m.kind, m.follow FROM {table}",
        [segment, *params],
    )


def _kick(db: Database, ended: Sequence[tuple[Attempted, Verdict]]) -> None:
    back = {one.run.pool for one, verdict in ended if verdict.follow is not Follow.END}
    for pool in {one.run.pool for one, _ in ended}:
        kick_after_commit(db.using, pool, Source.RETRY if pool in back else Source.COMPLETE)


def _call_back(db: Database, run: Run, work: LockedWork, verdict: Verdict, context: str) -> Failure | None:
    """Call on_complete in a savepoint; return what it raised, or None when its effects stand."""
    connection: Any = db.connection
    depth, broken = len(connection.savepoint_ids), False
    try:
        with transaction.atomic(using=db.using):
            registered = functions.resolve(work.on_complete, functions.CALLBACK_KINDS)
            func = registered.func
            # Read once: another thread may stop the tracing.
            if (tracer := tracing.tracer) is not None:
                func = tracer.calling_back(run, work.on_complete, func)
            contextvars.Context().run(func, callback_args(work.id, context, verdict))
            if len(connection.savepoint_ids) <= depth:
                broken = True
                raise CallbackError("on_complete left an atomic block that was not its own")
            if len(connection.savepoint_ids) != depth + 1:
                # An atomic block that was entered and never left: its savepoint goes with ours.
                del connection.savepoint_ids[depth + 1 :], connection.atomic_blocks[depth + 2 :]
                raise CallbackError("on_complete entered an atomic block and did not leave it")
            if connection.get_rollback():
                raise CallbackError("on_complete swallowed an error of the database, or marked its transaction for rollback")
            db.check_constraints()
    except BaseException as error:
        if broken:
            raise
        return describe(error)
    return None


def callback_args(work_id: uuid.UUID, context: str, verdict: Verdict) -> OnCompleteArgs:
    """Return what an on_complete function is given."""
    value = serialization.decode(verdict.value) if verdict.kind is ResultKind.SUCCESS else None
    result = RunResult(kind=verdict.kind, value=value, error=verdict.error)
    return OnCompleteArgs(work_id=work_id, context=serialization.decode(context), result=result)
