"""The loop and a worker of one database, on the test's thread: real rows, real iterations, real completions, one after the other.

It takes the lead and registers a worker like any process, inside the transaction that is open, if there is one. Before each
iteration the memory is read anew, so whatever the test does to the rows in between is seen.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DatabaseError

from .. import eventlog, functions, serialization
from ..complete import Completed, complete_many
from ..current_work import hearing_progress
from ..database import database
from ..exceptions import WorkpoolError
from ..execution import workers
from ..execution.calls import encode_value
from ..execution.courier import courier
from ..execution.persist import tell
from ..execution.run import Performer
from ..failures import describe
from ..loop import state
from ..loop.context import Iteration
from ..loop.fleet import Fleet
from ..loop.iteration import run_iteration
from ..loop.memory import OpenBatches, PoolMemory
from ..models import Attempt, InternalState, PendingCompletion, Work
from ..runner.lead import Leadership
from ..types import Attempted, FnType, Follow, ResultKind, Run
from .here import Here
from .records import RanWork

#: This process, for the lead.
OWNER = uuid.uuid4()
#: Functions that the worker takes at once: only the pools' limits are to count.
CAPACITY = 1_000_000


class Stage:
    """The pools of one database.

    Args:
        using: The database.
        names: The pools to be run.
    """

    def __init__(self, using: str, names: Sequence[str]) -> None:
        self.using, self.names = using, names
        self.db = database(using)
        self._lead = Leadership(using, OWNER)
        self._fleet = Fleet()
        self._memories: list[PoolMemory] = []
        self._here = Here()
        self._written: list[Attempted] = []
        self._performer = Performer(
            using, worker=workers.host_name(), write=self._written.append, aside=_refuse, done=_ignore, is_stopping=lambda: True
        )
        self._known: dict[str, str] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lead and work inside the block.

        Raises:
            WorkpoolError: another process leads.
        """
        durable, self.db.durable = self.db.durable, not self.db.connection.in_atomic_block
        try:
            worker = self._begin()
            try:
                yield
            except BaseException:
                # The transaction may be one that takes no statement any more.
                with suppress(DatabaseError):
                    self._end(worker)
                self._lead.step_down()
                raise
            self._end(worker)
        finally:
            self.db.durable = durable

    def _begin(self) -> int:
        functions.load_tasks()
        workers.learn(Work.objects.using(self.using).values_list("func_path", flat=True).distinct())
        if not self._lead.take(set()):
            raise WorkpoolError("run_work() cannot run works: another process, a workpool_main, leads the pools of this database.")
        worker = workers.register(self.using, process=uuid.uuid4(), threads=CAPACITY, coroutines=CAPACITY, pools=None)
        self._fleet.own, self._known = worker.id, functions.known()
        self._fleet.refresh(self.using, now=True)
        generations = InternalState.objects.using(self.using).filter(pool__in=self.names).values_list("pool", "generation")
        self._memories = [PoolMemory(pool=name, generation=one, report=state.load(self.using, name)) for name, one in generations]
        return worker.id

    def _end(self, worker: int) -> None:
        # What it has not begun, because the call ended with an error, goes back at the next time, and its row with it.
        workers.leave(self.using, worker)
        for one in {worker, *(known for known in self._fleet.workers if self._fleet.has_left(known))}:
            workers.unregister(self.using, one)
        self._lead.hand_over()

    def turn(self) -> Iterator[RanWork | None]:
        """Run one iteration of each pool and what it starts.

        Yields:
            Each attempt after its end; None where there is more to do, though nothing was started.
        """
        for memory in self._memories:
            with courier.at_once():
                it = self._iterate(memory)
            for run in it.runs.get(self._fleet.own or 0, []):
                with courier.at_once():
                    ran = self._perform(run)
                yield ran
            # What the loop itself inserts may be due a segment after the one in which its iteration began.
            if it.again or (it.next_segment is not None and it.next_segment <= self.db.segment()):
                yield None

    def _iterate(self, memory: PoolMemory) -> Iteration:
        if functions.known() != self._known:
            self._known = functions.known()
            workers.publish_functions(self.using, self._fleet.own or 0)
            self._fleet.refresh(self.using, now=True)
        memory.loaded = memory.read_behind = float("-inf")
        memory.hurries = False
        # Here no leader's look tells of open batches: each iteration looks for those that are over.
        memory.batches = OpenBatches(open=1, over=True)
        it = run_iteration(self.using, memory, self._fleet, OWNER)
        self._fleet.recount(one for each in self._memories for one in each.running.values())
        for event, level, fields in it.events:
            eventlog.log(event, level, it.pool, **fields)
        for work, judged in it.judged:
            courier.completed(work, work.id, judged)
        return it

    def _perform(self, run: Run) -> RanWork:
        said: list[tuple[float, float]] = []
        hears = hearing_progress(lambda work, done, total: said.append((done, total)))
        with hears, self._here.run(self.using, guards=run.fn_type is FnType.ACTION):
            self._performer.perform(run, self._here)  # type: ignore[arg-type]
            for completed in self._complete():
                tell(completed.run, completed)
        self._here.pass_on()
        return self._record(run, said)

    def _complete(self) -> list[Completed]:
        written = self._written[:]
        self._written.clear()
        return complete_many(self.using, written) if written else []

    def _record(self, run: Run, said: Sequence[tuple[float, float]]) -> RanWork:
        """Return what the rows say of a run that has ended."""
        ends = PendingCompletion.objects.using(self.using).filter(work_id=run.work_id).values_list("kind", "follow").first()
        if ends is None:
            raise WorkpoolError(f"The end of work {run.work_id} ({run.name}) could not be written: see the log.") from self._here.exception
        kind, follow = ends
        value: Any = None
        error, exception, attempts = "", self._here.exception, run.attempts + (follow != Follow.RETURN)
        if kind == ResultKind.SUCCESS:
            value = serialization.decode(encode_value(self._here.returned))
        else:
            texts = Attempt.objects.using(self.using).filter(work_id=run.work_id, number=attempts).values_list("text", flat=True)
            error = next(iter(texts), None) or (describe(exception).text if exception is not None else "failed")
            exception = self._here.exception
        return RanWork(
            work_id=run.work_id,
            pool=run.pool,
            function=run.func_path,
            kind=kind,
            value=value,
            error=error,
            attempts=attempts,
            ended=follow == Follow.END,
            is_callback=run.fn_type is FnType.CALLBACK,
            exception=exception if kind != ResultKind.SUCCESS else None,
            progress=tuple(said),
        )


def _refuse(runs: list[Run]) -> None:
    raise AssertionError("coroutines end where they run")


def _ignore(*runs: Run) -> None: ...
