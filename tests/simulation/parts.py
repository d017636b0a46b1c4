"""What stands in a simulated process for its threads: an ear that never blocks, and functions that take their time."""

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, TypeVar

from django_workpool.database import Hint
from django_workpool.execution import limits
from django_workpool.types import Run
from tests.states.driver import Bare

from .clock import dice

if TYPE_CHECKING:
    from .mains import Main


T = TypeVar("T")


class Isolation(Bare):
    """A thread that needs no restoring."""

    def begin(self, label: str) -> None:
        """Begin a function once more."""

    def end(self) -> None:
        """End it."""


class Clerk:
    """Does statements where it stands."""

    def do(self, step: Callable[[], T], seconds: float, unless: Callable[[], bool] = lambda: False) -> T:
        """Do it."""
        return step()


class Ear:
    """The loop's ear: sleeping means to be called again, at that time or when something is heard."""

    def __init__(self, main: "Main") -> None:
        self.main = main
        self.hints: set[Hint] = set()

    def hear(self, hint: Hint) -> None:
        """Take a hint."""
        self.hints.add(hint)
        self.wake()

    def wake(self) -> None:
        """Let the loop look at its flags."""
        self.main.lead_in(dice.uniform(0.2, 3))

    def wait(self, seconds: float) -> set[Hint]:
        """Return what was heard, and be called again after ``seconds``: nothing ever blocks."""
        hints, self.hints = self.hints, set()
        if not hints:
            self.main.lead_in(max(0.0, seconds) * 1000 + dice.uniform(0.2, self.main.world.slowness))
        return hints


class Executors:
    """Where functions take their time."""

    def __init__(self, main: "Main") -> None:
        self.main = main
        self.waiting: list[Run] = []
        self.begun: dict[int, Run] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.waiting and not self.begun

    has_enough = is_busy = False

    def held_up(self, seconds: float) -> list[float]:
        """Nothing is held up."""
        return []

    def serve_loop(self, hurry: Callable[[], None], leads: Callable[[], bool]) -> None:
        """Nothing is fetched before it can run, and there are no children."""

    def submit(self, runs: Sequence[Run]) -> None:
        """Take runs; each begins in a moment."""
        for run in runs:
            self.waiting.append(run)
            self.main.soon(dice.uniform(0.1, 30), "begin", lambda run=run: self._begin(run))  # type: ignore[misc]

    def cancel(self, tokens: Set[int]) -> list[Run]:
        """Tell runs whose works are canceled; return those that have not begun."""
        for run in [run for run in self.begun.values() if run.token in tokens and not limits.is_canceled(run.token)]:
            self.main.world.tell(self.main.name, f"is told that {self.main.world.label(run)} is canceled")
            if dice.random() < 0.5:
                # It looks, and ends before it would have.
                self.main.soon(dice.uniform(0.1, 50), "perform", lambda run=run: self._end(run))  # type: ignore[misc]
        limits.cancel(tokens)
        runs = [run for run in self.waiting if run.token in tokens]
        self.waiting = [run for run in self.waiting if run not in runs]
        return runs

    def take_back(self) -> list[Run]:
        """Return what has not begun."""
        runs, self.waiting = self.waiting, []
        return runs

    def cut_off(self) -> list[Run]:
        """Return what still runs; it never ends by itself."""
        runs, self.begun = list(self.begun.values()), {}
        return runs

    def _begin(self, run: Run) -> None:
        if run in self.waiting:
            self.waiting.remove(run)
            self.begun[run.token] = run
            limits.begin(run)
            self.main.soon(self.main.world.duration(run), "perform", lambda: self._end(run))
            self.main.world.troubles.begun(self.main, run)
            self.main.world.callers.cancel_soon(self.main.world.ledger.labels[run.work_id.hex])

    def _end(self, run: Run) -> None:
        if run.token in self.begun:
            self.main.world.tell(self.main.name, f"performs {self.main.world.label(run)}")
            self.main.intake.performer.perform(run, Isolation())  # type: ignore[arg-type]
            # Like a thread, it is free only when the outcome is written.
            self.begun.pop(run.token, None)
