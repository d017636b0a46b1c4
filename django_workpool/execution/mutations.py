"""One mutation: the function, its completion and its on_complete in one transaction, repeated until it is known what became of it."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import DatabaseError, connections, transaction

from ..complete import Callback, Completed, committing, complete_inside, complete_together
from ..database import database
from ..database_errors import is_away, is_conflict, may_pass
from ..exceptions import StaleRun, WorkpoolError
from ..failures import describe, first_line
from ..models import PendingCompletion, RunningWork
from ..settle import lock_works, success
from ..types import Attempted, Failure, Outcome, Run
from . import limits
from .calls import encode_value, prepare
from .isolation import Isolation
from .persist import tell, waits

logger = logging.getLogger("django_workpool.worker")

#: Seconds after which works that share a transaction are committed.
TOGETHER = 0.02
#: Times a transaction is tried again after a conflict with others, and after a lost connection.
CONFLICT_TRIES, CONNECTION_TRIES = 10, 3


class FunctionLeftovers(WorkpoolError):
    """A mutation left its transaction in a state in which it cannot be completed."""


@dataclass(slots=True)
class _Stage:
    """How far a transaction has come."""

    function: bool = False
    completion: bool = False


def perform_mutation(using: str, worker: str, run: Run, isolation: Isolation, is_stopping: Callable[[], bool]) -> Failure | None:
    """Run a mutation; return its failure if its attempt has failed and is still to be completed as such."""
    callback, tries, pauses = Callback(), 0, waits(is_stopping)
    next(pauses)
    while True:
        stage = _Stage()
        try:
            with isolation.function(run.func_path):
                completed = _mutate(using, worker, run, isolation, callback, stage)
            tell(run, completed)
            return None
        except StaleRun:
            limits.came_to(run, "stale")
            tell(run, None)
            return None
        except BaseException as error:
            away = is_away(error)
            if away and not _still_owns(using, run, is_stopping):
                # The connection was lost at the COMMIT, and it had happened.
                return None
            waits_only = _waits_only(error, stage, callback)
            repeat = not waits_only and worth_repeating(error, tries, away=away)
            failure = describe(error)
        tries += not waits_only
        if waits_only and next(pauses, None) is None:
            # The process ends before the database could be had: whoever comes after it returns the run.
            limits.came_to(run, "returned")
            return None
        if waits_only or repeat:
            continue
        if not callback.entered or callback.failure is not None:
            return failure
        # The transaction did not survive its on_complete: once more without it.
        callback = Callback(failure)


def perform_together(using: str, worker: str, runs: Sequence[Run], isolation: Isolation) -> list[Run]:
    """Run mutations of one function, without on_complete, in one transaction; stop after ``TOGETHER`` seconds.

    Returns:
        Those that have ended; none if any of them has failed, or is stale: then nothing has happened, and each is to run alone.
    """
    db, ended, began = database(using), list[Attempted](), time.monotonic()
    try:
        with isolation.function(runs[0].func_path), committing(db, runs[0].pool):
            for run in runs:
                registered, args, kwargs = prepare(run)
                value = encode_value(limits.call(run, isolation, registered.func, args, kwargs))
                left = isolation.leftovers(using)
                if left is not None:
                    raise FunctionLeftovers(f"the function {left}")
                ended.append(Attempted(run, Outcome("success", value), worker))
                if time.monotonic() - began >= TOGETHER:
                    break
            complete_together(db, ended)
    except BaseException as error:
        # If it was the answer to the COMMIT that was lost, each of them finds that its work has ended.
        for run in runs:
            limits.came_to(run, "repeated")
        logger.info("%s: %s works together failed, each runs again alone: %s", runs[0].func_path, len(runs), first_line(error))
        return []
    finally:
        for run in runs:
            limits.end(run)
    for one in ended:
        tell(one.run, Completed(run=one.run, verdict=success(one)))
    return [one.run for one in ended]


def _waits_only(error: BaseException, stage: _Stage, callback: Callback) -> bool:
    """Return whether an error says nothing about the function: for now, its transaction cannot begin, or its completion be written."""
    if not isinstance(error, DatabaseError):
        return False
    if not stage.function:
        return may_pass(error)
    return stage.completion and not callback.entered and may_pass(error) and not is_conflict(error) and not is_away(error)


def _mutate(using: str, worker: str, run: Run, isolation: Isolation, callback: Callback, stage: _Stage) -> Completed:
    db = database(using)
    registered, args, kwargs = prepare(run)
    with committing(db, run.pool) as commit:
        stage.function = True
        value = encode_value(limits.call(run, isolation, registered.func, args, kwargs))
        left = isolation.leftovers(using)
        if left is not None:
            raise FunctionLeftovers(f"the function {left}")
        if run.has_callback:
            with isolation.unwatched():
                # What the function itself leaves dangling is its own failure, not its callback's.
                db.check_constraints()
                db.defer_constraints()
        stage.completion = True
        attempted = Attempted(run=limits.traced(run) if run.has_callback else run, outcome=Outcome("success", value), worker=worker)
        commit.completed = complete_inside(using, attempted, callback)
    return commit.completed


def _still_owns(using: str, run: Run, is_stopping: Callable[[], bool]) -> bool:
    """Return whether a run was neither completed nor recovered; waits while the database is away."""
    for _ in waits(is_stopping):
        try:
            with transaction.atomic(using=using):
                # Whoever still commits it holds the work's row.
                if not lock_works(using, [run.work_id]):
                    return False
                owned = RunningWork.objects.using(using).filter(id=run.token, work_id=run.work_id).exists()
                return owned and not PendingCompletion.objects.using(using).filter(work_id=run.work_id).exists()
        except Exception as error:
            logger.warning("work %s: %s while looking whether it was committed", run.work_id, type(error).__name__)
            connections[using].close()
    return False


def worth_repeating(error: BaseException, tries: int, *, away: bool) -> bool:
    """Return whether to repeat a transaction at once: a bounded number of times after a conflict, or if the database was ``away``."""
    if is_conflict(error) and tries < CONFLICT_TRIES:
        time.sleep(random.uniform(0, 0.005 * 2 ** min(tries, 5)))
        return True
    return away and tries < CONNECTION_TRIES
