"""When the loop iterates for what has ended in its own process: at once, or with more of the same while enough waits there."""

import time

from ..database import Hint
from .executors import Executors

#: Seconds between two iterations while the threads of this process have enough to do: then more is done in each.
LINGER = 0.02


class Linger:
    """One process's. What ends is heard by any thread; the rest is the loop's.

    Args:
        executors: what runs the functions of this process.
    """

    def __init__(self, executors: Executors) -> None:
        self.executors = executors
        #: The pools for which an iteration is to come a moment after the last one, and when that was.
        self.pools: set[str] = set()
        self._iterated: dict[str, float] = {}

    def covers(self, hint: Hint) -> bool:
        """Return whether a hint says no more than is known."""
        return hint.kind == "ended" and hint.name in self.pools

    def time_for(self, pool: str) -> float:
        """Return the monotonic time of the iteration for what has ended; 0 for now."""
        if not self.executors.has_enough:
            return 0.0
        self.pools.add(pool)
        return self._iterated.get(pool, 0.0) + LINGER

    def begin(self, pool: str) -> None:
        """Note that an iteration begins: what ends from here on may come too late for it, and asks for the next one."""
        self.pools.discard(pool)

    def end(self, pool: str) -> None:
        """Note that it is over."""
        self._iterated[pool] = time.monotonic()
