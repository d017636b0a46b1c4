"""When which pool's archive is pruned: in small pieces between the loop's turns, so that neither the lease nor a work waits for it."""

import time
from collections.abc import Collection

from .. import archive

#: Seconds between two prunings of a pool; full chunks follow each other after AGAIN.
EVERY, AGAIN = 60.0, 0.5
#: Seconds of one turn of the loop that pruning may take.
BUDGET = 0.05


class Pruner:
    """Prunes the archive. Used by the loop's thread.

    Args:
        using: The database.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self._due: dict[str, float] = {}
        #: The monotonic time from which there is something to do.
        self.next_at = 0.0

    def prune(self, pools: Collection[str]) -> None:
        """Delete one chunk of each pool whose turn it is, as far as the budget goes; what is left comes first the next time."""
        until = time.monotonic() + BUDGET
        for pool in sorted(pools, key=self._at):
            if self._at(pool) > time.monotonic() or time.monotonic() >= until:
                break
            full = archive.prune(self.using, pool) == archive.PRUNE_CHUNK
            self._due[pool] = time.monotonic() + (AGAIN if full else EVERY)
        self.next_at = min(map(self._at, pools), default=time.monotonic() + EVERY)

    def _at(self, pool: str) -> float:
        return self._due.get(pool, 0.0)
