"""The executors of one process: which run goes to which of them, and all of them as one."""

import threading
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

from django.conf import settings

from .. import functions
from ..execution import limits
from ..execution.assignments import Assignments
from ..execution.coroutines import CoroutineExecutor
from ..execution.foreign import ForeignExecutor
from ..execution.offspring import Program
from ..execution.processes import ProcessExecutor
from ..execution.progress import WrittenBoard
from ..execution.run import Performer
from ..execution.threads import ThreadExecutor, Together
from ..loop.fleet import CALLBACK_CAPACITY
from ..types import FnType, Outcome, Run

if TYPE_CHECKING:
    from .process import Options

Executor = ThreadExecutor | ProcessExecutor | CoroutineExecutor | ForeignExecutor


class Executors:
    """What runs functions for one worker.

    Args:
        performer: runs a function and completes it.
        options: how many run at once, and where.
        assignments: whose runs they are.
        home: takes the outcome of a run that has ended in another process.
        completed: told each run that a child process has completed itself.
        crashed: told what a run that broke off has raised.
    """

    def __init__(
        self,
        performer: Performer,
        options: "Options",
        assignments: Assignments,
        home: Callable[[Run, Outcome], None],
        completed: Callable[[Run], None],
        crashed: Callable[[Run, BaseException], None],
    ) -> None:
        self.assignments = assignments
        self._using = performer.using
        self.prefetch = options.prefetch
        module = settings.SETTINGS_MODULE
        self.local: ThreadExecutor | ProcessExecutor
        if options.processes:
            program = Program(using=performer.using, worker=performer.worker, settings=module)
            self.local = ProcessExecutor(options.processes, program, home, completed, options.recycle)
        else:
            together = Together(performer.most_together, performer.perform_together)
            self.local = ThreadExecutor("workpool", options.threads, performer.perform, crashed, together)
        self.foreign = ForeignExecutor(options.executor, module, home, assignments.forget) if options.executor else None
        self.side = ThreadExecutor("workpool-callback", CALLBACK_CAPACITY, performer.perform_aside, crashed)
        self.coroutines = CoroutineExecutor("workpool-async", performer.perform_async, crashed)
        self.board = WrittenBoard(performer.using)
        self.all: list[Executor] = [self.local, self.coroutines, self.side, *([self.foreign] if self.foreign else [])]

    def bodies(self) -> dict[str, Callable[[threading.Event], None]]:
        """Return the bodies of the threads that they need, by name, the board's left out: that one needs the database."""
        bodies: dict[str, Callable[[threading.Event], None]] = {}
        if isinstance(self.local, ProcessExecutor):
            bodies["children"] = self.local.run
        if self.foreign:
            bodies["executor"] = self.foreign.run
        return bodies

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return all(executor.idle for executor in self.all)

    @property
    def has_enough(self) -> bool:
        """Whether so much waits that nothing is idle soon."""
        return not self.local.is_low

    @property
    def is_busy(self) -> bool:
        """Whether anything runs, coroutines and callbacks not counted."""
        return not self.local.idle

    def held_up(self, seconds: float) -> list[float]:
        """Return how long those have run that have taken longer than ``seconds`` while others wait for them."""
        return self.local.held_up(seconds)

    def serve_loop(self, hurry: Callable[[], None], leads: Callable[[], bool]) -> None:
        """Know the loop of this process.

        Args:
            hurry: called when half of what may wait has been taken.
            leads: whether it leads.
        """
        self.local.watch_low(self.prefetch // 2, hurry)
        if isinstance(self.local, ProcessExecutor):
            self.local.leads = leads

    def active(self) -> list[Run]:
        """Return what runs now."""
        return [run for executor in self.all for run, _ in executor.active().values()]

    def submit(self, runs: Sequence[Run]) -> None:
        """Hand runs to the executors. If one of them raises, what has no place is given up: it is to be found again."""
        parts: dict[Executor, list[Run]] = {}
        for run in runs:
            parts.setdefault(self._place(run), []).append(run)
        try:
            for executor in list(parts):
                executor.submit(parts[executor])
                del parts[executor]
        except BaseException:
            self.assignments.forget([run for some in parts.values() for run in some])
            raise

    def _place(self, run: Run) -> Executor:
        if run.fn_type is FnType.CALLBACK:
            return self.side
        if functions.is_async(run.func_path):
            return self.coroutines
        return self.foreign if self.foreign and run.fn_type is FnType.ACTION else self.local

    def take_back(self) -> list[Run]:
        """Return what has not begun, and forget it: it will not run."""
        return [run for executor in self.all for run in executor.take_back()]

    def cancel(self, tokens: Set[int]) -> list[Run]:
        """Tell runs that their works are canceled; return those of them that have not begun, and do not any more."""
        waiting = [run for executor in self.all if executor is not self.side for run in executor.cancel(tokens)]
        limits.cancel(tokens, self._using)
        return waiting

    def end_others(self, timeout: float = 0.0) -> None:
        """Begin nothing more in other processes; let idle children end, and wait for the end of all of them for ``timeout`` seconds."""
        for executor in (self.local, self.foreign):
            if isinstance(executor, (ProcessExecutor, ForeignExecutor)):
                executor.stop(timeout)

    def cut_off(self) -> list[Run]:
        """Return what still runs, after stopping it where that is possible: nobody waits for it any more."""
        self.board.close()
        runs = []
        for executor in self.all:
            if isinstance(executor, (ProcessExecutor, ForeignExecutor)):
                runs += executor.cut_off()
            else:
                runs += [run for run, _ in executor.active().values()]
        return runs

    def stop(self) -> None:
        """End what is idle."""
        for executor in self.all:
            executor.stop(0)
