"""A leader, its workers and their attempts without a thread or a process: the test says what happens when."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from django.db.models import F

from django_workpool.complete import Completed, complete_many, complete_one
from django_workpool.database import database
from django_workpool.exceptions import StaleRun
from django_workpool.execution import workers
from django_workpool.execution.run import Performer
from django_workpool.loop import state
from django_workpool.loop.context import Iteration
from django_workpool.loop.fleet import Fleet
from django_workpool.loop.iteration import run_iteration
from django_workpool.loop.memory import Depth, PoolMemory
from django_workpool.models import Globals, InternalState, Lead, Worker
from django_workpool.types import Attempted, Failure, Outcome, Run

from .rows import POOL, USING

SUCCESS = Outcome(kind="success", value="42")
#: Retried if the work is retried at all.
FAILED = Outcome(kind="failed", failure=Failure(class_path="builtins.ValueError", text="it failed", traceback="Traceback: it failed"))
#: What NonRetryableError becomes.
FINAL = Outcome(kind="failed", failure=Failure(class_path="django_workpool.NonRetryableError", text="for good", retryable=False))
#: It has stopped because its work was canceled, or says so.
STOPPED = Outcome(kind="canceled", failure=Failure(class_path="django_workpool.exceptions.WorkCanceled", text="the work was canceled"))
#: Interrupted; and given back before it began.
RETURNED = Outcome(kind="returned", failure=Failure(class_path="django_workpool.Interrupted", text="interrupted"))
NEVER_BEGUN = Outcome(kind="returned")


class Loop:
    """One leader of one pool, with one worker to begin with.

    Args:
        limit: The pool's max_parallelism.
        threads: Functions that each worker runs at once on threads, and as many as coroutines.
    """

    def __init__(self, *, limit: int = 10, threads: int = 100) -> None:
        self.db = database(USING)
        self.threads = threads
        self.fleet = Fleet()
        #: Results that the next iteration settles itself, as those of its own process; and what the last one has said of them.
        self.results: list[Attempted] = []
        self.configure(limit)
        self.take_over()
        self.worker = self.add_worker()

    def configure(self, limit: int) -> None:
        """Change the limit."""
        Globals.objects.filter(pool=POOL).update(max_parallelism=limit)

    # Leading ----------------------------------------------------------------------------------------------------

    def take_over(self) -> "Deposed":
        """Lead as another process: what the old one had in its memory is gone. Return the old one."""
        deposed = Deposed(self)
        self.owner = uuid.uuid4()
        Lead.objects.update(owner=self.owner, term=F("term") + 1)
        InternalState.objects.update(generation=F("generation") + 1)
        generation = InternalState.objects.values_list("generation", flat=True).get(pool=POOL)
        self.memory = PoolMemory(pool=POOL, generation=generation, report=state.load(USING, POOL))
        dead, self.fleet = self.fleet.dead, Fleet(own=self.fleet.own)
        self.fleet.refresh(USING, now=True)
        self.fleet.dead = dead
        return deposed

    def iterate(self, depth: Depth = Depth.BEHIND, *, limit: int | None = None, fail: bool = False) -> Iteration:
        """Run one iteration, and what the runner does after it.

        Args:
            depth: How far back it reads.
            limit: The limit during this iteration only.
            fail: Raise in the last phase, before the commit.
        """
        if limit is not None:
            before = Globals.objects.values_list("max_parallelism", flat=True).get(pool=POOL)
            self.configure(limit)
        self.memory.read_behind = float("-inf") if depth is Depth.BEHIND else float("inf")
        self.memory.read_buffer = float("-inf") if depth is Depth.BUFFER else float("inf")
        self.fleet.refresh(USING, now=True)
        stale = self.memory.is_stale()
        try:
            with patch.object(state, "keep", side_effect=Broken) if fail else nullcontext():
                it = run_iteration(USING, self.memory, self.fleet, self.owner, results=self.results)
        except (Broken, StaleRun):
            # As the runner does: the memory may no longer fit the rows, and the results are the writer's.
            self.memory.loaded = float("-inf")
            raise
        finally:
            if limit is not None:
                self.configure(before)
        left = [*it.succeeded, *(one for one, _ in it.settled), *it.passed_over]
        assert sorted(one.run.token for one in left) == sorted(one.run.token for one in self.results)
        self.results = []
        assert it.depth is depth
        if stale:
            self.fleet.recount(self.memory.running.values())
        return it

    def settle(self, most: int = 50) -> list[Run]:
        """Iterate until nothing more can be done at once; return what was started."""
        started: list[Run] = []
        for _ in range(most):
            it = self.iterate()
            started += [run for runs in it.runs.values() for run in runs]
            # What the loop itself inserts may be due a segment after the one in which its iteration began.
            if not it.again and (it.next_segment is None or it.next_segment > self.db.segment()):
                return started
        raise AssertionError(f"still going on after {most} iterations")

    # Workers ----------------------------------------------------------------------------------------------------

    def add_worker(self) -> Worker:
        """Register a worker that knows all functions of the process."""
        worker = workers.register(USING, process=uuid.uuid4(), threads=self.threads, coroutines=self.threads, pools=None)
        self.fleet.refresh(USING, now=True)
        return worker

    def kill(self, worker: Worker | None = None) -> None:
        """See a worker dead."""
        self.fleet.dead.add((worker or self.worker).id)

    def perform(self, run: Run) -> None:
        """Call a run's function as a worker does, to the end."""
        written: list[Attempted] = []
        performer = Performer(USING, "here", written.append, aside=_refuse, done=lambda run: None, is_stopping=lambda: True)
        performer.perform(run, Bare())  # type: ignore[arg-type]
        complete_many(USING, written)


class Deposed:
    """A leader that does not know yet that it no longer leads."""

    def __init__(self, loop: Loop) -> None:
        self.memory, self.owner, self.fleet = getattr(loop, "memory", None), getattr(loop, "owner", None), loop.fleet

    def iterate(self) -> Iteration:
        """Run an iteration as if it still led."""
        assert self.memory and self.owner
        self.memory.rewind()
        return run_iteration(USING, self.memory, self.fleet, self.owner)


class Broken(Exception):
    """An iteration was made to fail."""


def _refuse(runs: list[Run]) -> None:
    raise AssertionError("coroutines are not run here")


class Bare:
    """Stands for the isolation of a thread: the function is called as it is."""

    @contextmanager
    def function(self, label: str) -> "Iterator[Bare]":
        yield self

    def begin(self, label: str) -> None: ...

    def end(self) -> None: ...

    def call(self, func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return func(*args, **(kwargs or {}))

    def distrust(self) -> None: ...

    def leftovers(self, using: str) -> None:
        return None

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        yield


def complete(run: Run, outcome: Outcome) -> Completed | None:
    """Bring an attempt home the way a worker does: in a batch, or by itself if there is a callback to call."""
    attempted = Attempted(run=run, outcome=outcome, worker="here")
    if run.has_callback:
        return complete_one(USING, attempted)
    return next(iter(complete_many(USING, [attempted])), None)


def complete_alone(run: Run, outcome: Outcome) -> Completed | None:
    """Bring an attempt home in a transaction of its own."""
    return complete_one(USING, Attempted(run=run, outcome=outcome, worker="here"))
