"""Step 5 of a work's way: run one function, on a thread or as a coroutine, and bring its outcome home.

An action runs outside a transaction, and is completed afterwards. A mutation (and callback work) runs in one transaction with
its completion: both happen or neither. A query runs in a read-only transaction and is completed afterwards.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from django.db import connections, transaction

from .. import functions, serialization
from ..complete import Attempted, Completed, complete_inside, complete_one, deferred_callback, new_callback
from ..database import database
from ..eventlog import log
from ..exceptions import InvalidWork, StaleRun, UnstorableResult, WorkpoolError
from ..failures import describe, is_conflict, is_connection_loss
from ..models import PendingCompletion, RunningWork
from ..settle import lock_works
from ..types import Failure, FnType, OnCompleteArgs, Outcome, ResultKind, Run, RunResult
from .isolation import Isolation

logger = logging.getLogger("django_workpool.worker")

#: Times a transaction is tried again after a conflict with others, and after a lost connection.
CONFLICT_TRIES, CONNECTION_TRIES = 10, 3
#: Waits between tries to complete while the database is away, in seconds.
WAIT_FIRST, WAIT_MAX = 0.1, 5.0


class FunctionLeftovers(WorkpoolError):
    """A mutation left its transaction in a state in which it cannot be completed."""


class Performer:
    """Runs functions for one worker.

    Args:
        using: The database.
        worker: The worker's name, kept with failed attempts.
        write: Takes outcomes of works without on_complete; they are completed in batches.
        aside: Takes runs whose coroutine has ended, to be completed on a thread.
        done: Told each run whose completion has been committed here (others are written by ``write``).
        is_stopping: Whether to give up waiting for a database that is away.
    """

    def __init__(
        self,
        using: str,
        worker: str,
        write: Callable[[Attempted], None],
        aside: Callable[[list[Run]], None],
        done: Callable[[Run], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.using, self.worker, self.write, self.aside, self.done, self.is_stopping = using, worker, write, aside, done, is_stopping
        self._outcomes: dict[int, Outcome] = {}

    def perform(self, run: Run, isolation: Isolation) -> None:
        """Run a function on this thread; never raises."""
        if run.fn_type in (FnType.MUTATION, FnType.CALLBACK):
            self._perform_mutation(run, isolation)
            self.done(run)
            return
        with isolation.function(run.func_path):
            outcome = self._query(run, isolation) if run.fn_type is FnType.QUERY else self._action(run, isolation)
        self._bring_home(run, outcome, isolation)

    def perform_aside(self, run: Run, isolation: Isolation) -> None:
        """Run callback work, or complete a coroutine's run that has an on_complete."""
        outcome = self._outcomes.pop(run.token, None)
        if outcome is None:
            self.perform(run, isolation)
        else:
            self._complete(run, outcome, isolation)

    async def perform_async(self, run: Run) -> None:
        """Run a coroutine function; everything it raises is its failure."""
        try:
            registered, args, kwargs = _prepare(run)
            outcome = Outcome(kind="success", value=_encode(await registered.func(*args, **kwargs)))
        except BaseException as error:
            outcome = Outcome(kind="failed", failure=describe(error))
        if run.has_callback:
            self._outcomes[run.token] = outcome
            self.aside([run])
        else:
            self.write(Attempted(run=run, outcome=outcome, worker=self.worker))

    def _action(self, run: Run, isolation: Isolation) -> Outcome:
        try:
            registered, args, kwargs = _prepare(run)
            return Outcome(kind="success", value=_encode(isolation.call(registered.func, args, kwargs)))
        except BaseException as error:
            return Outcome(kind="failed", failure=describe(error))

    def _query(self, run: Run, isolation: Isolation) -> Outcome:
        for tries in range(CONFLICT_TRIES):
            try:
                registered, args, kwargs = _prepare(run)
                with database(self.using).read_only():
                    return Outcome(kind="success", value=_encode(isolation.call(registered.func, args, kwargs)))
            except BaseException as error:
                if not _worth_repeating(error, tries):
                    return Outcome(kind="failed", failure=describe(error))
                isolation.end()
                isolation.begin(run.func_path)
        return Outcome(
            kind="failed", failure=Failure(class_path="django_workpool.Conflict", text="conflicts with other transactions, again and again")
        )

    def _bring_home(self, run: Run, outcome: Outcome, isolation: Isolation) -> None:
        if run.has_callback:
            self._complete(run, outcome, isolation)
        else:
            self.write(Attempted(run=run, outcome=outcome, worker=self.worker))

    def _complete(self, run: Run, outcome: Outcome, isolation: Isolation) -> None:
        """Complete with the on_complete, on this thread's connection."""
        attempted = Attempted(run=run, outcome=outcome, worker=self.worker)

        def once(attempted: Attempted) -> Completed | None:
            with isolation.function(f"on_complete of {run.func_path}"):
                return complete_one(self.using, attempted)

        tell(run, persist(self.using, attempted, once, self.is_stopping))
        self.done(run)

    def _perform_mutation(self, run: Run, isolation: Isolation) -> None:
        callback = new_callback()
        tries = 0
        while True:
            try:
                with isolation.function(run.func_path):
                    completed = self._mutate(run, isolation, callback)
                tell(run, completed)
                return
            except StaleRun:
                tell(run, None)
                return
            except BaseException as error:
                repeat = _worth_repeating(error, tries)
                if is_connection_loss(error) and not self._still_owns(run):
                    # The connection was lost at the COMMIT, and it had happened.
                    return
                failure = describe(error)
            tries += 1
            if repeat:
                continue
            if callback.entered and callback.failure is None:
                # The transaction did not survive its on_complete: once more without it.
                callback = deferred_callback(failure)
                continue
            self._complete(run, Outcome(kind="failed", failure=failure), isolation)
            return

    def _mutate(self, run: Run, isolation: Isolation, callback: Any) -> Completed:
        db = database(self.using)
        registered, args, kwargs = _prepare(run)
        with db.write():
            value = _encode(isolation.call(registered.func, args, kwargs))
            left = isolation.leftovers(self.using)
            if left is not None:
                raise FunctionLeftovers(f"the function {left}")
            if run.has_callback:
                with isolation.unwatched():
                    # What the function itself leaves dangling is its own failure, not its callback's.
                    db.check_constraints()
                    db.defer_constraints()
            attempted = Attempted(run=run, outcome=Outcome(kind="success", value=value), worker=self.worker)
            return complete_inside(self.using, attempted, callback)

    def _still_owns(self, run: Run) -> bool:
        """Return whether a run was neither completed nor recovered; waits while the database is away."""
        for _ in waits(self.is_stopping):
            try:
                with transaction.atomic(using=self.using):
                    # Whoever still commits it holds the work's row.
                    if not lock_works(self.using, [run.work_id]):
                        return False
                    owned = RunningWork.objects.using(self.using).filter(id=run.token, work_id=run.work_id).exists()
                    completing = PendingCompletion.objects.using(self.using).filter(work_id=run.work_id).exists()
                    return owned and not completing
            except Exception as error:
                logger.warning("work %s: %s while looking whether it was committed", run.work_id, type(error).__name__)
                connections[self.using].close()
        return False


def _prepare(run: Run) -> tuple[functions.Registered, list[Any], dict[str, Any]]:
    registered = functions.resolve(run.func_path, frozenset({run.fn_type}))
    call = serialization.decode(run.arguments)
    if run.fn_type is not FnType.CALLBACK:
        return registered, call["args"], call["kwargs"]
    stored = call["kwargs"]
    kind = ResultKind(stored["kind"])
    result = RunResult(kind=kind, value=stored["value"] if kind is ResultKind.SUCCESS else None, error=stored["error"])
    work_id = uuid.UUID(stored["work_id"])
    return registered, [OnCompleteArgs(work_id=work_id, context=stored["context"], result=result)], {}


def _encode(value: Any) -> str:
    try:
        return serialization.encode_result(value)
    except InvalidWork as error:
        raise UnstorableResult(f"the return value cannot be stored: {error}") from None


def _worth_repeating(error: BaseException, tries: int) -> bool:
    if is_conflict(error) and tries < CONFLICT_TRIES:
        time.sleep(random.uniform(0, 0.005 * 2 ** min(tries, 5)))
        return True
    return is_connection_loss(error) and tries < CONNECTION_TRIES


def waits(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Yield at once, then again and again with growing waits between, until the process stops."""
    wait = WAIT_FIRST
    while True:
        yield
        if is_stopping():
            return
        time.sleep(wait * random.uniform(0.5, 1.5))
        wait = min(wait * 2, WAIT_MAX)


def persist(
    using: str, attempted: Attempted, complete: Callable[[Attempted], Completed | None], is_stopping: Callable[[], bool]
) -> Completed | None:
    """Complete an attempt whatever it takes: again after conflicts and while the database is away, with less to say if it is refused."""
    for tries, _ in enumerate(waits(is_stopping)):
        try:
            return complete(attempted)
        except Exception as error:
            logger.warning("work %s: completing it failed (%s), trying again", attempted.run.work_id, describe(error).text)
            if is_connection_loss(error):
                connections[using].close()
            elif not is_conflict(error) and tries >= CONNECTION_TRIES:
                # The database takes everything but this outcome: say that instead.
                text = f"its outcome could not be stored: {type(error).__name__}"
                outcome = Outcome(kind="failed", failure=Failure(class_path="django_workpool.NotStored", text=text, retryable=False))
                attempted = Attempted(run=attempted.run, outcome=outcome, worker=attempted.worker)
    return None


def tell(run: Run, completed: Completed | None) -> None:
    """Emit the event of a completion that has been committed."""
    if completed is None:
        log("stale", "WARN", run.pool, work_id=run.work_id, name=run.name, token=run.token)
        return
    verdict = completed.verdict
    failed = verdict.failure is not None
    fields = {"error": verdict.failure.class_path} if verdict.failure is not None else {}
    level = "WARN" if failed else "INFO"
    log("completed", level, run.pool, work_id=run.work_id, name=run.name, status=completed.status, attempts=verdict.attempts, **fields)
    if completed.callback_failure is not None:
        log("callback_failed", "ERROR", run.pool, work_id=run.work_id, name=run.name, error=completed.callback_failure.class_path)
