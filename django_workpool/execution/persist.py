"""Bring an outcome into the database whatever it takes, and tell what was written."""

import logging
import random
import time
from collections.abc import Callable, Iterator

from django.db import connections

from .. import tracing
from ..complete import Completed
from ..database_errors import is_away, may_pass
from ..eventlog import end, log
from ..failures import describe, first_line
from ..types import Attempted, Failure, Outcome, Run
from .courier import courier

logger = logging.getLogger("django_workpool.worker")

#: Waits between tries to complete while the database is away, in seconds.
WAIT_FIRST, WAIT_MAX = 0.1, 5.0
#: Times an outcome is offered that the database refuses, before something simpler is said instead.
REFUSED_TRIES = 3


def waits(is_stopping: Callable[[], bool]) -> Iterator[int]:
    """Yield 0 at once, then 1, 2, ... with growing waits between, until the process stops."""
    wait, number = WAIT_FIRST, 0
    while True:
        yield number
        if is_stopping():
            return
        time.sleep(wait * random.uniform(0.5, 1.5))
        wait, number = min(wait * 2, WAIT_MAX), number + 1


def wait_for_database(using: str, is_stopping: Callable[[], bool]) -> bool:
    """Wait until this thread is connected; return False if the process stops before."""
    for _ in waits(is_stopping):
        try:
            connections[using].close()
            connections[using].ensure_connection()
            return True
        except Exception as error:
            logger.warning("the database is away (%s)", first_line(error))
    return False


def persist(
    using: str, attempted: Attempted, complete: Callable[[Attempted], Completed | None], is_stopping: Callable[[], bool]
) -> Completed | None:
    """Complete an attempt: again while the database is away, full or busy; with less to say if it refuses what is said."""
    for number in waits(is_stopping):
        try:
            return complete(attempted)
        except Exception as error:
            passes, lost = may_pass(error), is_away(error)
            if number & (number - 1) == 0:
                # The first, second, fourth, ... time: an outage is not a flood.
                logger.warning("work %s: completing it failed (%s), trying again", attempted.run.work_id, describe(error).text)
            if lost:
                connections[using].close()
            elif not passes and number >= REFUSED_TRIES:
                text = f"its outcome could not be stored: {type(error).__name__}"
                outcome = Outcome(kind="failed", failure=Failure(class_path="django_workpool.NotStored", text=text, retryable=False))
                attempted = Attempted(run=attempted.run, outcome=outcome, worker=attempted.worker)
    return None


def tell(run: Run, completed: Completed | None) -> None:
    """Emit the event of a completion that has been committed, and post its signal."""
    if completed is None:
        log("stale", "WARN", run.pool, work_id=run.work_id, name=run.name, token=run.token, **tracing.told(run.trace))
        return
    verdict = completed.verdict
    level, fields = end(completed.status, verdict.attempts, verdict.failure, run.trace)
    log("completed", level, run.pool, work_id=run.work_id, name=run.name, **fields)
    courier.completed(run, run.work_id, verdict)
    if completed.callback_failure is not None:
        fields = {"error": completed.callback_failure.class_path} | tracing.told(run.trace)
        log("callback_failed", "ERROR", run.pool, work_id=run.work_id, name=run.name, **fields)
