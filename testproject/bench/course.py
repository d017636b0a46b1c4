"""One repetition of a case: an empty place, worker processes, the waits, and the verdict."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django_workpool import Workpool, call

from . import measure, place, tasks
from .measure import Figures, Stamp
from .worker import Setup, Workers

#: Works that one ``enqueue_many`` gets.
CHUNK = 1000
#: Without any progress for so long, a run has failed.
STALL_SECONDS = 60.0
#: Seconds between two looks.
POLL = 0.005
#: What a process gets to become idle after its first work.
SETTLE_SECONDS = 2.0

Function = Callable[..., Any]


class Stalled(Exception):
    """What was waited for has not come; the text says how much of it was missing."""


class Course:
    """The place and the means of one repetition.

    Args:
        database: the name of the bench's own database.
        folder: where stamps and logs go.
        setup: how worker processes are started, unless the case wants something else.
    """

    def __init__(self, database: str, folder: Path, setup: Setup) -> None:
        self.database, self.folder, self.setup = database, folder, setup
        self.path = folder / "stamps"
        self.problems: list[str] = []

    def begin(self) -> None:
        """Empty the place; problems stay."""
        place.empty()
        self.forget_stamps()
        (self.folder / "worker.log").write_bytes(b"")

    def forget_stamps(self) -> None:
        """Count executions from here on."""
        self.path.write_bytes(b"")

    def fill(self, function: Function, n: int) -> None:
        """Enqueue works 0 to ``n`` - 1 by ``enqueue_many``."""
        for first in range(0, n, CHUNK):
            Workpool().enqueue_many(function, [call(number) for number in range(first, min(first + CHUNK, n))])

    def workers(self, **changes: Any) -> Workers:
        """Return worker processes that are started by ``with``; ``changes`` are those of the setup."""
        return Workers(self.setup.but(**changes), self.database, self.folder)

    def wait_for_runs(self, n: int, workers: Workers, look: Callable[[], None] | None = None) -> None:
        """Wait until ``n`` functions have begun, and call ``look`` again and again meanwhile.

        Raises:
            Stalled: they do not begin.
            WorkerFailed: a worker process has ended.
        """
        seen, since = -1, time.monotonic()
        while (now := measure.count_stamps(self.path)) < n:
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                raise Stalled(f"{n - now} of {n} executions are missing, and none has begun for {STALL_SECONDS:.0f} s")
            workers.check()
            if look is not None:
                look()
            time.sleep(POLL)

    def wait_for_ends(self) -> float:
        """Wait until no work runs or waits for the loop, and return when that was.

        Raises:
            Stalled: it does not come to that.
        """
        deadline = time.monotonic() + STALL_SECONDS
        while running := place.running():
            if time.monotonic() > deadline:
                raise Stalled(f"{running} works run or wait for the loop, {STALL_SECONDS:.0f} s after the last has begun")
            time.sleep(POLL)
        return time.time()

    def warm_up(self, workers: Workers, settle: float = SETTLE_SECONDS) -> None:
        """Have the processes run a work, and wait ``settle`` seconds after its end."""
        self.fill(tasks.noop, 1)
        self.wait_for_runs(1, workers)
        self.wait_for_ends()
        time.sleep(settle)
        self.forget_stamps()

    def stamps(self) -> list[Stamp]:
        """Return the executions so far."""
        return measure.read_stamps(self.path)

    def verify(self, n: int, *, runs: int = 1, rows: bool = False, left: int = 0) -> None:
        """Note what is wrong if works 0 to ``n`` - 1 were to run ``runs`` times each, with nothing unfinished at the end.

        Args:
            n: how many works there were.
            runs: executions of each.
            rows: whether each was to insert one row.
            left: rows of unfinished work that were to stay.
        """
        self.problems += measure.execution_problems(self.stamps(), n, runs)
        if rows:
            self.problems += measure.row_problems(n)
        if (found := place.left()) != left:
            self.problems.append(f"{found} rows of unfinished work instead of {left}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case by its name."""

    name: str
    run: Callable[[Course, int], Figures]
    n: int
    #: What N counts.
    unit: str
    postgresql_only: bool
    help: str


Run = Callable[[Course, int], Figures]
CASES: dict[str, Case] = {}


def case(*, n: int, unit: str = "works", postgresql_only: bool = False, name: str = "") -> Callable[[Run], Run]:
    """Enter a function as a case, by its own name if no other is given; its docstring's first line is what the command tells about it."""

    def enter(run: Run) -> Run:
        told = (run.__doc__ or "").strip().splitlines()[0]
        entered = Case(name=name or run.__name__, run=run, n=n, unit=unit, postgresql_only=postgresql_only, help=told)
        CASES[entered.name] = entered
        return run

    return enter


def last_began(stamps: Iterable[Stamp]) -> float:
    """Return when the last one began."""
    return max(stamp.began for stamp in stamps)
