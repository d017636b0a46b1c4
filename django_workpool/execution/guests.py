"""Runs of functions that belong to a framework: what is called in their place, and who is told of their end."""

import logging
import threading
from dataclasses import replace
from typing import Any

from .. import functions
from ..adapters import Guest
from ..complete import Completed
from ..failures import describe, release
from ..functions import Registered
from ..types import Failure, FnType, Follow, Outcome, Run
from .calls import prepare
from .isolation import Isolation
from .limits import Before

logger = logging.getLogger("django_workpool.execution")


class Guests:
    """The guests of one process, each from its function's begin to the end of its work, or of its attempt.

    Args:
        using: The database.
        worker: The worker's name.
    """

    def __init__(self, using: str, worker: str) -> None:
        self._using, self._worker = using, worker
        self._lock = threading.Lock()
        self._present: dict[int, Guest] = {}

    def prepare(self, run: Run) -> tuple[Registered, list[Any], dict[str, Any], Before | None]:
        """Return what is to be called, its arguments, and what is called before it; see ``calls.prepare``."""
        registered, args, kwargs = prepare(run)
        if registered.adapter is None:
            return registered, args, kwargs, None
        with self._lock:
            guest = self._present[run.token] = registered.adapter(run, self._using, self._worker)
        return replace(registered, func=guest.call), args, kwargs, guest.begin

    def describe(self, run: Run, error: BaseException) -> Failure:
        """Return what a run has raised; a guest's is kept, as whoever is told of the end wants to see it."""
        guest = self._present.get(run.token)
        if guest is None:
            return describe(error)
        guest.error = error
        failure = describe(error, keep=True)
        return replace(failure, retryable=False) if guest.final else failure

    @staticmethod
    def are(run: Run) -> bool:
        """Return whether somebody is to be told of the end of a run, on the thread that completes it."""
        return run.fn_type is FnType.ACTION and functions.is_adapted(run.func_path)

    def leave(self, run: Run) -> None:
        """Forget a run whose end somebody else tells."""
        guest = self._present.pop(run.token, None)
        if guest is not None and guest.error is not None:
            release(guest.error)

    def tell(self, run: Run, completed: Completed | None, isolation: Isolation) -> None:
        """Tell of the end of a work that has been committed; what its function has raised is live meanwhile. Never raises."""
        guest = self._present.get(run.token)
        try:
            if completed is None or completed.verdict.follow is not Follow.END or not self.are(run):
                return
            if guest is None:
                # It ran elsewhere.
                adapter = functions.resolve(run.func_path, functions.WORK_KINDS).adapter
                guest = adapter(run, self._using, self._worker) if adapter is not None else None
            if guest is not None:
                verdict = completed.verdict
                outcome = Outcome(kind=verdict.kind.value, value=verdict.value, failure=verdict.failure)
                with isolation.function(f"the end of {run.func_path}"):
                    _live(guest, outcome)
        except BaseException as error:
            logger.exception("work %s: who was told of its end raised %s", run.work_id, type(error).__name__)
            release(error)
        finally:
            self.leave(run)


def _live(guest: Guest, outcome: Outcome) -> None:
    error = guest.error if outcome.failure is not None else None
    if error is None:
        guest.ended(outcome)
        return
    traceback = error.__traceback__
    try:
        raise error
    except BaseException:
        # Without the line above.
        error.__traceback__ = traceback
        guest.ended(outcome)
