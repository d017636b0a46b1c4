"""When there is nothing left to do: for ``--drain``, and for the end of a process. Reads only."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..database import database
from ..loop.batches import OVER
from ..models import PendingCompletion

#: Seconds between two looks.
EVERY = 0.1
#: Waiting works looked at, the soonest due first, in search of retries.
LOOK_MAX = 1_000
#: Tables whose rows are all something to wait for.
BUSY = ("RunningWork", "PendingCompletion", "PendingCancelation")


def is_drained(using: str, pools: tuple[str, ...] | None) -> bool:
    """Return whether nothing is due, running, completing or canceling, and nothing waits for a retry.

    What is due later for another reason, held for want of its function, or of a paused pool is left.
    """
    # One statement, one snapshot: between two of them a work could move from where the second looks to where the first did.
    busy = " UNION ALL ".join(f"SELECT pool, 0, 0, 1, 1, 0 FROM {{{table}}} GROUP BY pool" for table in BUSY)
    # Their callbacks are still to be enqueued.
    busy += f" UNION ALL SELECT b.pool, 0, 0, 1, 1, 0 FROM {{Batch}} b WHERE {OVER} GROUP BY b.pool"
    db = database(using)
    rows = db.fetch(
        f"{busy} UNION ALL "
        "SELECT s.pool, s.lane, s.segment, w.attempts + w.returns, g.max_parallelism, CASE WHEN w.held_since IS NULL THEN 0 ELSE 1 END "
        f"FROM (SELECT * FROM {{PendingStart}} ORDER BY segment LIMIT {LOOK_MAX}) AS s JOIN {{Work}} w ON w.id = s.work_id "
        "JOIN {Globals} g ON g.pool = s.pool"
    )
    now = db.segment()
    for pool, lane, segment, tries, limit, held in rows:
        if (pools is None or pool in pools) and (limit > 0 or lane == 1) and not held and (segment <= now or tries > 0):
            return False
    return True


def has_completions(using: str) -> bool:
    """Return whether completions wait for the loop."""
    return PendingCompletion.objects.using(using).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A database in which nothing was left, look after look, and of which nothing was taken in between."""

    #: Works that had been taken of it.
    taken: int
    #: When the first look had ended, and when the last one began (monotonic clock).
    first: float
    last: float


class Agreement:
    """When several databases are drained at one moment: a work in one of them may enqueue into another.

    Seen are the works that this process runs. Those that other processes run may bring more just after the end.

    Args:
        databases: their aliases.
    """

    def __init__(self, databases: Iterable[str]) -> None:
        self._quiet: dict[str, Quiet | None] = dict.fromkeys(databases)
        self._lock = threading.Lock()
        self._over = False

    @property
    def is_of_several(self) -> bool:
        """Whether there are several."""
        return len(self._quiet) > 1

    def look(self, using: str, taken: Callable[[], int], is_drained: Callable[[], bool]) -> bool:
        """Look at a database; return whether all are drained.

        Args:
            using: The database.
            taken: Tells how many works were taken of it so far.
            is_drained: Looks whether nothing is left.
        """
        begun, before = time.monotonic(), taken()
        drained = is_drained()
        if not self.is_of_several:
            return drained
        with self._lock:
            old = self._quiet[using]
            if not drained or taken() != before:
                self._quiet[using] = None
            elif old is not None and old.taken == before:
                self._quiet[using] = Quiet(taken=before, first=old.first, last=begun)
            else:
                self._quiet[using] = Quiet(taken=before, first=time.monotonic(), last=begun)
            quiet = [one for one in self._quiet.values() if one is not None]
            if len(quiet) == len(self._quiet) and max(one.first for one in quiet) < min(one.last for one in quiet):
                self._over = True
            return self._over
