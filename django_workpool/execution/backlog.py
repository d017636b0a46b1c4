"""What the executors of this process have in common: the runs that wait in them, and those that run."""

import threading
import time
from collections import deque
from collections.abc import Callable, Set

from ..types import Run


class Backlog:
    """Runs that wait, and runs that run."""

    def __init__(self) -> None:
        # Guards what follows, and what executors keep beside it. Nothing is called, and nothing waited for while it is held.
        self._lock = threading.Lock()
        self._waiting: deque[Run] = deque()
        self._active: dict[int, tuple[Run, float]] = {}
        self._low = 0
        self._on_low: Callable[[], None] = lambda: None

    def watch_low(self, low: int, tell: Callable[[], None]) -> None:
        """Call ``tell`` each time that no more than ``low`` are left waiting, and that nothing runs any more, on whatever thread."""
        self._low, self._on_low = low, tell

    @property
    def is_low(self) -> bool:
        """Whether more is wanted. A momentary value, taken without the lock."""
        return len(self._waiting) <= self._low

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        with self._lock:
            return not self._waiting and not self._active

    def active(self) -> dict[int, tuple[Run, float]]:
        """Return what runs now: the run and when it began (monotonic clock, seconds), by the run's token."""
        with self._lock:
            return dict(self._active)

    def held_up(self, longer: float) -> list[float]:
        """Return for how many seconds each run goes on that takes ``longer``, while others wait for its end."""
        if not self._waiting:
            return []
        now = time.monotonic()
        return [now - began for _, began in self.active().values() if now - began > longer]

    def cancel(self, tokens: Set[int]) -> list[Run]:
        """Return which of the runs with these tokens have not begun, and forget them: their works are canceled."""
        with self._lock:
            runs = [run for run in self._waiting if run.token in tokens]
            for run in runs:
                self._waiting.remove(run)
        return runs

    def take_back(self) -> list[Run]:
        """Return what has not begun, and forget it: it will not run."""
        with self._lock:
            runs = list(self._waiting)
            self._waiting.clear()
        return runs
