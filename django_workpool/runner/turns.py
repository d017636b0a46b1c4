"""One turn of the loop for one pool: what goes into an iteration, and what follows from it after its commit."""

import logging
import uuid
from typing import TYPE_CHECKING

from .. import configuration, eventlog
from ..complete import Completed
from ..database import Hint, database
from ..execution.courier import courier
from ..execution.persist import tell
from ..loop import completions
from ..loop.context import Iteration
from ..loop.fleet import Fleet
from ..loop.iteration import run_iteration
from ..loop.memory import PoolMemory
from ..settle import success
from ..signals import is_heard, work_completed

if TYPE_CHECKING:
    from .intake import Intake

logger = logging.getLogger("django_workpool.loop")

#: Seconds that a run takes which holds others up: a short one may wait much of that for its turn to compute.
HELD_UP = 0.25


class Turns:
    """The iterations of this process's loop.

    Args:
        using: The database.
        owner: The process.
        fleet: The workers.
        intake: Takes the runs assigned to this process, and keeps its results.
    """

    def __init__(self, using: str, owner: uuid.UUID, fleet: Fleet, intake: "Intake") -> None:
        self.using, self.owner, self.fleet, self.intake = using, owner, fleet, intake
        self.db = database(using)
        self.results = intake.writer

    def take(self, memory: PoolMemory, *, yields: bool) -> Iteration:
        """Iterate a pool, and act on the outcome.

        Args:
            memory: The pool's memory.
            yields: Whether other pools have waited longer for room.
        """
        with self.intake.assignments.iteration():
            it = self._run(memory, yields=yields)
            self._act(it)
        if not it.has_limit:
            configuration.create_rows(self.using)
        return it

    def _run(self, memory: PoolMemory, *, yields: bool) -> Iteration:
        """Run one iteration with the results that have come since the last one; what it does not write is the writer's."""
        # Works wait here for these: more of them shall not come here first, however short they are.
        memory.learn(self.intake.executors.held_up(HELD_UP))
        results = self.results.take(memory.pool, completions.BATCH)
        try:
            it = run_iteration(self.using, memory, self.fleet, self.owner, results=results, yields=yields)
        except BaseException:
            self.results.keep(results)
            raise
        self.results.written([one.run for one in it.succeeded] + [one.run for one, _ in it.settled])
        self.results.keep(it.passed_over)
        for one, verdict in it.settled:
            tell(one.run, Completed(run=one.run, verdict=verdict))
        if it.tells("INFO") or is_heard(work_completed):
            for one in it.succeeded:
                tell(one.run, Completed(run=one.run, verdict=success(one)))
        return it

    def _act(self, it: Iteration) -> None:
        """Hand the started works to their workers, after the commit. What is lost here is read again from the running rows."""
        others = [str(worker) for worker in it.runs if worker != self.fleet.own]
        own = it.runs.get(self.fleet.own or 0, [])
        if own:
            try:
                self.intake.submit(own)
            except Exception:
                logger.exception("handing over %s failed; tried again soon", ", ".join(str(run.work_id) for run in own))
        if others:
            self.db.notify([Hint("worker", ",".join(others))])
        if it.stops:
            self.intake.cancel(it.stops.pop(self.fleet.own or 0, []))
            self.db.notify([Hint("canceled", str(worker)) for worker in it.stops])
        for event, level, fields in it.events:
            eventlog.log(event, level, it.pool, **fields)
        for work, judged in it.judged:
            courier.completed(work, work.id, judged)
