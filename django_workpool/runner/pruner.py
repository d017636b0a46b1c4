"""When which pool's archive is pruned: in small pieces between the loop's turns, so that neither the lease nor a work waits for it."""

import time

from .. import archive

#: Seconds between two looks for pools with something to prune; full chunks of one follow each other after AGAIN.
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
        #: When the next chunk of a pool is due, of those that have something to prune.
        self._due: dict[str, float] = {}
        self._look_at = 0.0
        #: The monotonic time from which there is something to do.
        self.next_at = 0.0

    def prune(self) -> None:
        """Delete one chunk of each pool whose turn it is, as far as the budget goes; what is left comes first the next time."""
        now = time.monotonic()
        if now < self.next_at:
            return
        if now >= self._look_at:
            self._look_at = now + EVERY
            self._due = dict.fromkeys(archive.overdue(self.using), 0.0) | self._due
        until = now + BUDGET
        for pool in sorted(self._due, key=self._due.__getitem__):
            if self._due[pool] > time.monotonic() or time.monotonic() >= until:
                break
            if archive.prune(self.using, pool) == archive.PRUNE_CHUNK:
                self._due[pool] = time.monotonic() + AGAIN
            else:
                del self._due[pool]
        self.next_at = min([*self._due.values(), self._look_at])
