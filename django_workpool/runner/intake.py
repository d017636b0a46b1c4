"""What a process takes and what it brings home: runs on their way to its executors, outcomes on their way to the writer."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .. import eventlog, kick, tracing
from ..database import Hint
from ..execution import limits
from ..execution.assignments import Assignments
from ..execution.run import Performer
from ..execution.writer import Writer
from ..failures import describe
from ..types import Attempted, Failure, FnType, Outcome, Run
from .executors import Executors

if TYPE_CHECKING:
    from .process import Options

logger = logging.getLogger("django_workpool.runner")

INTERRUPTED = "django_workpool.Interrupted"


class Intake:
    """The runs of one process, from their assignment to their completion.

    Args:
        using: The database.
        worker: The worker's name, kept with failed attempts.
        options: What the command line says.
        end: Set when the services are to end.
    """

    def __init__(self, using: str, worker: str, options: "Options", end: Callable[[], bool]) -> None:
        self.worker = worker
        self.assignments = Assignments()
        self.writer = Writer(using, self.assignments.done, end)
        self.performer = Performer(
            using,
            worker,
            write=self.writer.put,
            aside=lambda runs: self.executors.side.submit(runs),
            done=self.assignments.done,
            is_stopping=end,
        )
        self.executors = Executors(self.performer, options, self.assignments, self._bring_home, self._completed, self._crashed)
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        #: Runs taken so far.
        self.taken = 0
        #: Set when nothing more is taken: what still comes was never begun.
        self.closed = False
        #: Runs that came after ``stopping``, and when the leader knows of it at the latest.
        self._late: deque[Run] = deque()
        self._known = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing runs here, and everything that has ended is written."""
        return self.executors.idle and self.writer.idle

    def submit(self, runs: Sequence[Run]) -> None:
        """Take runs that are assigned to this worker; those that it has already are passed over."""
        if self.closed:
            return
        # In one step: whoever ends the process must see what is on its way.
        with self._lock:
            fresh = self.assignments.take(runs)
            self.taken += len(fresh)
            if not self.stopping.is_set():
                self.executors.submit(fresh)
            elif time.monotonic() < self._known:
                # Given back at once they would come again at once, again and again: the leader does not know yet.
                self._late.extend(fresh)
            else:
                self._give_back(fresh)

    def cancel(self, tokens: Sequence[int]) -> None:
        """Tell runs that their works are canceled: what has not begun is given back, what runs may stop. Others are passed over."""
        self._give_back(self.executors.cancel(frozenset(tokens)))

    # The end ----------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Take nothing more that is to run; give nothing back before ``told``."""
        with self._lock:
            self._known = float("inf")
            self.stopping.set()

    def told(self, within: float) -> None:
        """Note that the leader knows that nothing more is taken, in so many seconds at the latest."""
        self._known = time.monotonic() + within

    def return_waiting(self, *, all_of_them: bool = False) -> None:
        """Give back what has not begun; what came late only once the leader knows."""
        self._give_back(self.executors.take_back())
        if all_of_them:
            self._known = 0.0
        if time.monotonic() >= self._known:
            self._give_back([self._late.popleft() for _ in range(len(self._late))])

    def interrupt(self) -> None:
        """Stop what still runs, where that can be done, and write what becomes of it: returned if it may run again, else failed."""
        # Where they can be stopped, their effects end before that is written.
        for run in self.executors.cut_off():
            idempotent = run.fn_type is not FnType.ACTION or run.retryable
            failure = Failure(class_path=INTERRUPTED, text="interrupted: the worker was stopped", retryable=idempotent)
            outcome = Outcome(kind="returned" if idempotent else "failed", failure=failure)
            eventlog.log(
                "interrupted", "WARN", run.pool, work_id=run.work_id, name=run.name, returned=idempotent, **tracing.told(run.trace)
            )
            self.writer.put(Attempted(run=run, outcome=outcome, worker=self.worker))

    def has_written(self, assigned: Sequence[Run]) -> bool:
        """Return whether all that had begun is written, so that what is still ``assigned`` never began. Only once it is closed."""
        return self.closed and self.writer.idle and not self.assignments.has_any(assigned)

    # Outcomes ---------------------------------------------------------------------------------------------------

    def _bring_home(self, run: Run, outcome: Outcome) -> None:
        """Take the outcome of a run that has ended in another process. Never raises."""
        try:
            self.performer.bring_home(run, outcome)
        except Exception as error:
            # No thread for its on_complete, or the end has come: then that becomes callback work.
            logger.warning("work %s: %s, so its outcome is written without its on_complete", run.work_id, error)
            self._give_back([run])

    def _completed(self, run: Run) -> None:
        """A child process has completed a run itself, and has told nobody else if the loop of this process leads."""
        self.assignments.done(run)
        kick.tell(self.performer.using, Hint("ended", run.pool))

    def _crashed(self, run: Run, error: BaseException) -> None:
        """An executor says that a run ended without bringing its outcome home."""
        logger.error("work %s: its run broke off", run.work_id, exc_info=error)
        failure = describe(error)
        limits.came_to(run, "failed", failure.class_path)
        limits.end(run)
        self.writer.put(Attempted(run=run, outcome=Outcome(kind="failed", failure=failure), worker=self.worker))

    def _give_back(self, runs: Sequence[Run]) -> None:
        """Return runs that have not begun: no attempt is counted. A coroutine's run that waited for its completion only has ended."""
        for run in runs:
            outcome = self.performer.take_outcome(run) or Outcome(kind="returned")
            self.writer.put(Attempted(run=run, outcome=outcome, worker=self.worker))
