"""End or continue an attempt: the one room that counts it, keeps its traceback, archives and deletes the work, and makes callback work.

``complete`` calls it for an attempt that a worker brings back; the loop, for work that ends without one. Both hold the
locks of the works, and what they assume has been checked.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import archive, eventlog, retry_texts, serialization
from .database import Database, Due, NewWork, Sent
from .database.base import lock_rows
from .database.rows import PROBE
from .ids import new_work_id
from .models import PATH_LENGTH, Attempt, BatchFailure, Work
from .types import Attempted, CallbackState, Failure, FnType, Follow, Lane, Outcome, ResultKind, RetryBehavior, Run

#: How often a work that has begun may be brought back uncounted before its return counts as a failed attempt.
MAX_RETURNS = 5
_SUCCESS = ResultKind.SUCCESS.value
_GOES_BACK = {Follow.RETRY: "retrying", Follow.RETURN: "returned"}
#: What callback work is retried with.
CALLBACK_RETRY = serialization.encode(RetryBehavior().to_json(), "retry")


class LockedWork(NamedTuple):
    """What is needed of a work whose row this transaction has locked."""

    id: uuid.UUID
    pool: str
    fn_type: str
    func_path: str
    name: str
    priority: int
    attempts: int
    returns: int
    retry: str
    canceled: bool
    on_complete: str
    callback_of: uuid.UUID | None
    batch_id: uuid.UUID | None
    trace: str


class Verdict(NamedTuple):
    """What an attempt's outcome means for its work."""

    follow: Follow
    kind: ResultKind
    #: Of the work from now on.
    attempts: int
    returns: int
    value: str = "null"
    failure: Failure | None = None
    #: The text of a result that is not a success, where it is not that of the failure.
    reason: str = ""

    @property
    def error(self) -> str:
        """The result's error text."""
        return self.reason or (self.failure.text if self.failure else "")

    @property
    def status(self) -> str:
        """The word of events and signals."""
        return _GOES_BACK.get(self.follow) or self.kind.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One verdict, and where its attempt ran."""

    work: LockedWork
    verdict: Verdict
    worker: str = ""
    started_ms: float | None = None
    #: Of work that ends: DONE if the caller calls on_complete itself, in this transaction.
    callback: CallbackState = CallbackState.PENDING


def lock_works(using: str, ids: Iterable[uuid.UUID], *, skip_locked: bool = False) -> dict[uuid.UUID, LockedWork]:
    """Lock works, in the order of their ids, and return those that are there (and not locked by others, if these are skipped)."""
    rows = lock_rows(Work, using, skip_locked=skip_locked).filter(id__in=list(ids)).order_by("id").values_list(*LockedWork._fields)
    return {row[0]: LockedWork._make(row) for row in rows}


def own(db: Database, run: Run) -> tuple[LockedWork, str, float] | None:
    """Lock the work that a run still owns: the run's row is there, and no completion waits.

    Both rows are locked, the work's first: whoever ends the run takes the same way, and a statement that has waited for the first
    lock then sees that the second row is gone.

    Returns:
        The work, the JSON text of its on_complete_context, and the database's time; None if the run no longer owns it.
    """
    columns = ", ".join(f"w.{name}" for name in LockedWork._fields)
    rows = db.fetch(
        f"SELECT {columns}, w.on_complete_context, {db.clock_ms_sql} FROM {{Work}} w JOIN {{RunningWork}} r ON r.work_id = w.id "
        "LEFT JOIN {PendingCompletion} c ON c.work_id = w.id WHERE w.id = %s AND r.id = %s AND c.id IS NULL " + db.for_update("w", "r"),
        [db.uuid_param(run.work_id), run.token],
    )
    if not rows:
        return None
    *stored, context, now_ms = db.with_uuids(rows, 0)[0]
    work = LockedWork._make(stored)
    callback_of, batch_id = (None if one is None else db.read_uuid(one) for one in (work.callback_of, work.batch_id))
    return work._replace(callback_of=callback_of, batch_id=batch_id, canceled=bool(work.canceled)), context, float(now_ms)


def retry_behavior(work: LockedWork) -> RetryBehavior | None:
    """Return the work's retry behaviour; None if a failure is final, as it is where that cannot be read."""
    return retry_texts.read(work.retry, work.id)


def judge(work: LockedWork, outcome: Outcome) -> Verdict:
    """Decide what an outcome means: a success ends the work, a failure may be followed by a retry, a return counts nothing.

    A run that has stopped because its work was canceled ends it as canceled; its attempt is counted, and kept.
    """
    attempts = work.attempts + 1
    if outcome.kind == "success":
        return Verdict(follow=Follow.END, kind=ResultKind.SUCCESS, attempts=attempts, returns=work.returns, value=outcome.value)
    failure = outcome.failure
    if outcome.kind == "canceled" and work.canceled:
        # It has stopped because of that: nothing of its own failed, however many attempts are left.
        return Verdict(Follow.END, ResultKind.CANCELED, attempts, work.returns, failure=failure, reason="canceled")
    # What never began has no failure, and is no fault of the work's, however often its workers stop before its turn comes.
    if outcome.kind == "returned" and (failure is None or work.returns < MAX_RETURNS):
        returns = work.returns + (failure is not None)
        return Verdict(follow=Follow.RETURN, kind=ResultKind.FAILED, attempts=work.attempts, returns=returns)
    behavior = retry_behavior(work)
    again = failure is not None and failure.retryable and behavior is not None and attempts < behavior.max_attempts
    follow = Follow.RETRY if again else Follow.END
    return Verdict(follow=follow, kind=ResultKind.FAILED, attempts=attempts, returns=work.returns, failure=failure)


def canceled(work: LockedWork, reason: str = "canceled") -> Verdict:
    """Return the verdict of work that ends as canceled: no attempt is counted."""
    return Verdict(follow=Follow.END, kind=ResultKind.CANCELED, attempts=work.attempts, returns=work.returns, reason=reason)


def settle(db: Database, settlements: Sequence[Settlement], now_ms: float) -> None:
    """Write what the verdicts mean. The works' rows are locked by this transaction."""
    _keep_attempts(db, settlements, now_ms)
    _continue(db, [one for one in settlements if one.verdict.follow is not Follow.END])
    _end(db, [one for one in settlements if one.verdict.follow is Follow.END], now_ms)


def _keep_attempts(db: Database, settlements: Sequence[Settlement], now_ms: float) -> None:
    Attempt.objects.using(db.using).bulk_create(
        [
            Attempt(
                work_id=one.work.id,
                number=one.verdict.attempts,
                worker=one.worker,
                started=None if one.started_ms is None else db.moment(one.started_ms),
                ended=db.moment(now_ms),
                class_path=failure.class_path[:PATH_LENGTH],
                text=failure.text,
                traceback=failure.traceback,
            )
            for one in settlements
            if (failure := one.verdict.failure) is not None
        ]
    )


def _continue(db: Database, settlements: Sequence[Settlement]) -> None:
    rows = [(one.verdict.attempts, one.verdict.returns, db.uuid_param(one.work.id)) for one in settlements]
    db.execute_many("UPDATE {Work} SET attempts = %s, returns = %s WHERE id = %s", rows)


def _end(db: Database, settlements: Sequence[Settlement], now_ms: float) -> None:
    if not settlements:
        return
    finished = [
        archive.Finished(
            work_id=one.work.id,
            pool=one.work.pool,
            fn_type=one.work.fn_type,
            attempts=one.verdict.attempts,
            kind=one.verdict.kind.value,
            value=one.verdict.value,
            error=one.verdict.error,
            worker=one.worker,
            callback=one.callback.value if one.work.on_complete else CallbackState.NONE.value,
        )
        for one in settlements
    ]
    archive.keep(db, finished)
    for one in settlements:
        if one.work.on_complete and one.callback is CallbackState.PENDING:
            make_callback_work(db, one)
    _tell_fates(db, settlements)
    BatchFailure.objects.using(db.using).bulk_create(
        BatchFailure(batch_id=one.work.batch_id, work_id=one.work.id, kind=one.verdict.kind.value)
        for one in settlements
        if one.work.batch_id is not None and one.verdict.kind is not ResultKind.SUCCESS
    )
    among, param = db.among("id", [one.work_id for one in finished])
    db.execute(f"DELETE FROM {{Work}} WHERE {among}", [param])


def _tell_fates(db: Database, settlements: Sequence[Settlement]) -> None:
    """Note in the archive what became of the on_complete of finished works, where callback work has ended."""
    told = [(one.work.callback_of, one) for one in settlements if one.work.callback_of is not None]
    # In one order, the archive's rows being locked by it: whoever lets finished works run again locks many, too.
    for callback_of, one in sorted(told, key=lambda pair: pair[0]):
        state = CallbackState.DONE if one.verdict.kind is ResultKind.SUCCESS else CallbackState.FAILED
        archive.callback_fate(db.using, callback_of, state, one.verdict.error, callback=one.work.id)


def succeed(db: Database, pool: str, attempted: Sequence[Attempted]) -> Sent:
    """End the works of a pool's attempts that succeeded and have no on_complete, the most frequent end by far: their rows need not be read.

    Returns:
        What has been sent to delete the works: if it changes fewer, somebody else has completed one, and the caller must roll back.
    """
    if archive.retains(pool):
        finished = [
            archive.Finished(run.work_id, pool, run.fn_type.value, run.attempts + 1, _SUCCESS, outcome.value, "", worker, "")
            for run, outcome, worker, _ in attempted
        ]
        archive.keep(db, finished)
    else:
        # A first attempt that succeeds has left no rows.
        archive.forget(db, [one.run.work_id for one in attempted if one.run.attempts])
    among, param = db.among("id", [one.run.work_id for one in attempted])
    uncompleted = f"NOT EXISTS (SELECT 1 FROM {{PendingCompletion}} c WHERE c.work_id = {{Work}}.id {PROBE})"
    return db.send(f"DELETE FROM {{Work}} WHERE {among} AND {uncompleted}", [param])


def complete_successes(db: Database, attempted: Sequence[Attempted]) -> list[Attempted]:
    """End the works of successes without on_complete that still own them, with pending completions; return these attempts."""
    owned: list[Attempted] = []
    for pool in {one.run.pool for one in attempted}:
        # The same run twice in one batch is completed once.
        of_pool, keep = {one.run.token: one for one in attempted if one.run.pool == pool}, archive.retains(pool)
        done = [of_pool[token] for token in db.complete_successes(list(of_pool.values()), keep=keep)]
        if not keep:
            archive.forget(db, [one.run.work_id for one in done if one.run.attempts])
        owned += done
    return owned


def settle_attempts(
    db: Database, attempted: Sequence[Attempted], works: Mapping[uuid.UUID, LockedWork], now_ms: float
) -> list[tuple[Attempted, Verdict]]:
    """Write what attempts mean, and return their verdicts; on_complete becomes callback work. This transaction has locked their works."""
    pairs = [(one, judge(works[one.run.work_id], one.outcome)) for one in attempted]
    settle(db, [settlement(works[one.run.work_id], one, verdict) for one, verdict in pairs], now_ms)
    return pairs


def success(one: Attempted) -> Verdict:
    """Return the verdict of an attempt that ``succeed`` takes."""
    return Verdict(Follow.END, ResultKind.SUCCESS, one.run.attempts + 1, 0, one.outcome.value)


def settlement(work: LockedWork, one: Attempted, verdict: Verdict, callback: CallbackState = CallbackState.PENDING) -> Settlement:
    """Return an attempt's verdict with what is known of the attempt."""
    return Settlement(work=work, verdict=verdict, worker=one.worker, started_ms=one.run.started.timestamp() * 1000, callback=callback)


def make_callback_work(db: Database, one: Settlement, context: str | None = None) -> None:
    """Insert the call of a work's on_complete as work of its own.

    Args:
        db: The database.
        one: The work that ends, with its verdict.
        context: The context's JSON text, if the work's row is gone already.
    """
    if context is None:
        ((context,),) = db.fetch("SELECT on_complete_context FROM {Work} WHERE id = %s", [db.uuid_param(one.work.id)])
    work, verdict = one.work, one.verdict
    arguments = (
        f'{{"args": [], "kwargs": {{"work_id": "{one.work.id}", "context": {context}, '
        f'"kind": "{verdict.kind.value}", "value": {verdict.value}, "error": {serialization.encode(verdict.error, "error")}}}}}'
    )
    insert_callback(db, work.pool, work.on_complete, arguments, work.id, work.priority, work.trace)


def insert_callback(db: Database, pool: str, path: str, arguments: str, callback_of: uuid.UUID, priority: int = 0, trace: str = "") -> None:
    """Insert callback work: the call of ``path`` with ``arguments`` (JSON text), for the work or batch that has ended."""
    new = NewWork(
        pool=pool,
        lane=Lane.CALLBACK,
        fn_type=FnType.CALLBACK.value,
        func_path=path,
        name=path,
        priority=priority,
        retry=CALLBACK_RETRY,
        callback_of=callback_of,
        trace=trace,
    )
    ids = [new_work_id()]
    db.insert_work(new, ids, [arguments], Due())
    eventlog.enqueued(db.using, new, ids)
