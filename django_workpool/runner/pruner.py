"""When what is kept of finished work, batches, keys, progress and figures is pruned: in small pieces between the loop's turns.

So neither the lease nor a work waits for it.
"""

import time
from collections.abc import Callable
from functools import partial

from .. import archive, batches, keys, tallies
from ..execution import progress

#: Seconds between two looks for pools with something to prune; full chunks of one follow each other after AGAIN.
EVERY, AGAIN = 60.0, 0.5
#: Seconds of one turn of the loop that pruning may take.
BUDGET = 0.05


#: What each pool keeps: the rooms tell of which pools there is something to prune, and prune a chunk of one.
ROOMS = {"archive": archive, "batches": batches}


class Pruner:
    """Prunes what each pool keeps for a time, keys and progress whose works are gone; makes tallies fewer. Used by the loop's thread.

    Args:
        using: The database.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        #: What is gone through from one end to the other, whatever the pool: each prunes a chunk, and returns whether there is more.
        self._sweeps: dict[tuple[str, str], Callable[[], bool]] = {
            ("keys", ""): keys.Sweep(using).prune,
            ("tallies", ""): tallies.Sweep(using).prune,
            ("progress", ""): partial(progress.prune, using),
        }
        #: When the next chunk of a room and pool is due, of those that have something to prune.
        self._due: dict[tuple[str, str], float] = {}
        self._look_at = 0.0
        #: The monotonic time from which there is something to do.
        self.next_at = 0.0

    def prune(self) -> None:
        """Delete one chunk of each room and pool whose turn it is, as far as the budget goes; what is left comes first the next time."""
        now = time.monotonic()
        if now < self.next_at:
            return
        if now >= self._look_at:
            self._look_at = now + EVERY
            found = [(name, pool) for name, room in ROOMS.items() for pool in room.overdue(self.using)]
            self._due = dict.fromkeys([*self._sweeps, *found], 0.0) | self._due
        until = now + BUDGET
        for one in sorted(self._due, key=self._due.__getitem__):
            if self._due[one] > time.monotonic() or time.monotonic() >= until:
                break
            if self._prune(*one):
                self._due[one] = time.monotonic() + AGAIN
            else:
                del self._due[one]
        self.next_at = min([*self._due.values(), self._look_at])

    def _prune(self, name: str, pool: str) -> bool:
        """Prune one chunk; return whether there is more."""
        if (name, pool) in self._sweeps:
            return self._sweeps[name, pool]()
        return bool(ROOMS[name].prune(self.using, pool) == ROOMS[name].PRUNE_CHUNK)
