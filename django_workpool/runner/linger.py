"""When the loop iterates for what has ended in its own process: at once, or with more of the same while enough waits there."""

import time
from collections.abc import Callable, Collection

from ..database import Hint
from .executors import Executors

#: Seconds between two iterations while the threads of this process have enough to do: then more is done in each. What has ended
#: is not written before that; where it is, only its slots wait.
LINGER, LINGER_WRITTEN = 0.02, 0.1
#: Seconds to wait for the rest of what was started together, if it is short.
MOMENT = 0.002


class Linger:
    """One process's. What ends is heard by any thread; the rest is the loop's.

    Args:
        executors: what runs the functions of this process.
    """

    def __init__(self, executors: Executors) -> None:
        self.executors = executors
        #: The pools for which an iteration is to come, and when: 0 for what has just been heard of.
        self.pools: dict[str, float] = {}
        self._iterated: dict[str, float] = {}

    def covers(self, hint: Hint) -> bool:
        """Return whether a hint says no more than is known."""
        return hint.kind == "ended" and hint.name in self.pools

    def plan(self, times: dict[str, float], unwritten: Collection[str], short: Callable[[str], bool]) -> None:
        """Put down when the pools are to be iterated in which something has ended: 0 for now.

        Args:
            times: for each pool the monotonic time of its next iteration.
            unwritten: the pools whose results wait to be written.
            short: whether the works of a pool end soon.
        """
        for pool in times.keys() & {*unwritten, *self.pools}:
            if self.executors.has_enough:
                self.pools[pool] = self._iterated.get(pool, 0.0) + (LINGER if pool in unwritten else LINGER_WRITTEN)
            elif short(pool) and self.executors.is_busy:
                self.pools[pool] = self.pools.get(pool) or time.monotonic() + MOMENT
            else:
                self.pools[pool] = 0.0
            times[pool] = min(times[pool], self.pools[pool])

    def begin(self, pool: str) -> None:
        """Note that an iteration begins: what ends from here on may come too late for it, and asks for the next one."""
        self.pools.pop(pool, None)

    def end(self, pool: str) -> None:
        """Note that it is over."""
        self._iterated[pool] = time.monotonic()
