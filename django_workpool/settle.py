"""End or continue an attempt: the one room that counts it, keeps its traceback, archives and deletes the work, and makes callback work.

``complete`` calls it for an attempt that a worker brings back; the loop, for work that ends without one. Both hold the
locks of the works, and what they assume has been checked.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import archive, serialization
from .database import Database, Due, NewWork
from .database.base import lock_rows
from .ids import new_work_id
from .models import PATH_LENGTH, Attempt, Work
from .types import CallbackState, Failure, FnType, Follow, Lane, Outcome, ResultKind, RetryBehavior

#: How often a work may be brought back uncounted before its return counts as a failed attempt.
MAX_RETURNS = 5
#: What callback work is retried with.
CALLBACK_RETRY = serialization.encode(RetryBehavior().to_json(), "retry")


class LockedWork(NamedTuple):
    """What is needed of a work whose row this transaction has locked."""

    id: uuid.UUID
    pool: str
    fn_type: str
    name: str
    priority: int
    attempts: int
    returns: int
    retry: str
    canceled: bool
    on_complete: str
    callback_of: uuid.UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an attempt's outcome means for its work."""

    follow: Follow
    kind: ResultKind
    #: Of the work from now on.
    attempts: int
    returns: int
    value: str = "null"
    failure: Failure | None = None
    #: The text of a result that is not a success, where there is no failure.
    reason: str = ""

    @property
    def error(self) -> str:
        """The result's error text."""
        return self.failure.text if self.failure else self.reason


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
    return {row[0]: LockedWork(*row) for row in rows}


def retry_behavior(work: LockedWork) -> RetryBehavior | None:
    """Return the work's retry behaviour, None if a failure is final."""
    return RetryBehavior.from_json(serialization.decode(work.retry)) if work.retry else None


def judge(work: LockedWork, outcome: Outcome) -> Verdict:
    """Decide what an outcome means: a success ends the work, a failure may be followed by a retry, a return counts nothing."""
    attempts = work.attempts + 1
    if outcome.kind == "success":
        return Verdict(follow=Follow.END, kind=ResultKind.SUCCESS, attempts=attempts, returns=work.returns, value=outcome.value)
    if outcome.kind == "returned" and work.returns < MAX_RETURNS:
        return Verdict(follow=Follow.RETURN, kind=ResultKind.FAILED, attempts=work.attempts, returns=work.returns + 1)
    failure = outcome.failure or Failure(
        class_path="django_workpool.Interrupted", text=f"interrupted {MAX_RETURNS + 1} times before it could end"
    )
    behavior = retry_behavior(work)
    again = failure.retryable and behavior is not None and attempts < behavior.max_attempts
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
    failed = [(one, one.verdict.failure) for one in settlements if one.verdict.failure is not None]
    Attempt.objects.using(db.using).bulk_create(
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
        for one, failure in failed
        if failure is not None
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
            started_ms=one.started_ms,
            callback=one.callback.value if one.work.on_complete else CallbackState.NONE.value,
        )
        for one in settlements
    ]
    archive.keep(db, finished, now_ms)
    for one in settlements:
        if one.work.on_complete and one.callback is CallbackState.PENDING:
            make_callback_work(db, one)
        if one.work.callback_of is not None:
            ended = CallbackState.DONE if one.verdict.kind is ResultKind.SUCCESS else CallbackState.FAILED
            archive.callback_fate(db.using, one.work.callback_of, ended, one.verdict.error)
    among, param = db.among("id", [one.work.id for one in settlements])
    db.execute(f"DELETE FROM {{Work}} WHERE {among}", [param])


def make_callback_work(db: Database, one: Settlement, context: str | None = None) -> None:
    """Insert the call of a work's on_complete as work of its own.

    Args:
        db: The database.
        one: The work that ends, with its verdict.
        context: The context's JSON text, if the work's row is gone already.
    """
    if context is None:
        context = callback_context(db, one.work.id)
    verdict = one.verdict
    arguments = (
        f'{{"args": [], "kwargs": {{"work_id": "{one.work.id}", "context": {context}, '
        f'"kind": "{verdict.kind.value}", "value": {verdict.value}, "error": {serialization.encode(verdict.error, "error")}}}}}'
    )
    new = NewWork(
        pool=one.work.pool,
        lane=Lane.CALLBACK,
        fn_type=FnType.CALLBACK.value,
        func_path=one.work.on_complete,
        name=one.work.on_complete,
        priority=one.work.priority,
        retry=CALLBACK_RETRY,
        callback_of=one.work.id,
    )
    db.insert_work(new, [new_work_id()], [arguments], Due())


def callback_context(db: Database, work_id: uuid.UUID) -> str:
    """Return the JSON text of a work's on_complete_context."""
    rows: list[tuple[Any, ...]] = db.fetch("SELECT on_complete_context FROM {Work} WHERE id = %s", [db.uuid_param(work_id)])
    return str(rows[0][0])
