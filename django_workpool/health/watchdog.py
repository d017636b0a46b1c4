"""What the loop's own thread is asked: does it turn, does it place what it could place, and if it does not lead: who does?

The loop's memory is not asked: it may be what is wrong. A suspicion comes from the look at the queues that the loop takes anyway, and
is followed by a look at the rows.
"""

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .. import eventlog
from ..database import database
from ..database_errors import is_away
from ..execution.courier import courier
from ..failures import first_line
from ..loop.fleet import Fleet
from ..models import Lead
from ..segments import segment_ms
from ..signals import pool_wedged
from .reading import COUNT_EACH, STALLED_AFTER, Look, leads
from .states import Reason

logger = logging.getLogger("django_workpool.health")

#: Seconds without a leader after which a process that could not take the lead says so.
NO_LEADER_AFTER = 15.0
#: Seconds between two looks of a process that stands by, and between two lines on the same matter.
LOOK_EVERY, TELL_EVERY = 5.0, 60.0
#: Pools looked at together: the next ones follow.
POOLS_MAX = 100


#: The lead's row: (owner, term, expires_ms).
LeadRow = tuple[uuid.UUID | None, int, int | None]


class Watchdog:
    """One process's watchdog. Its methods are called by the loop's thread."""

    def __init__(self, using: str) -> None:
        self.using = using
        #: The monotonic time at which the loop's thread last went on.
        self.turned = time.monotonic()
        #: For each pool the oldest segment of its queues, and since when it is the oldest.
        self._heads: dict[str, tuple[int, float]] = {}
        self._looked = float("-inf")
        self._leaderless: float | None = None
        self._told: dict[str, float] = {}

    def turn(self, *, leads: bool, fleet: Fleet, dead: set[int], lead: tuple[LeadRow, float] | None = None) -> None:
        """Note that the thread goes on; if this process does not lead, tell when nobody has for a while: ``no_leader``.

        Args:
            leads: Whether it leads.
            fleet: The workers.
            dead: Those that were seen dead.
            lead: The lead's row and the database's time when it was read; None: that is to be asked.
        """
        self.turned = now = time.monotonic()
        if leads:
            self._leaderless = None
        elif now - self._looked >= LOOK_EVERY:
            self._looked = now
            self._heads.clear()
            with _guarded():
                self._look_for_leader(fleet, dead, lead or self._read_lead())

    def _read_lead(self) -> tuple[LeadRow, float]:
        row = Lead.objects.using(self.using).filter(id=1).values_list("owner", "term", "expires_ms").first() or (None, 0, None)
        return row, database(self.using).clock_ms()

    def _look_for_leader(self, fleet: Fleet, dead: set[int], lead: tuple[LeadRow, float]) -> None:
        now, (row, now_ms) = time.monotonic(), lead
        if leads(database(self.using), row, now_ms, {worker.process for worker in fleet.workers.values() if worker.id not in dead}):
            self._leaderless = None
            return
        self._leaderless = now if self._leaderless is None else self._leaderless
        if now - self._leaderless > NO_LEADER_AFTER and self._may_tell("*"):
            seconds = round(now - self._leaderless)
            eventlog.log("no_leader", "ERROR", "*", since_s=seconds, term=row[1], last_owner=row[0])
            courier.post(pool_wedged, pool="*", reason="no_leader", error="", seconds=seconds)

    def look(self, queues: Mapping[str, int], now_ms: float, dead: set[int]) -> None:
        """Take what the loop has seen of the queues (each pool's oldest segment, 0 for completions); tell of what it does not place."""
        now = time.monotonic()
        old = self._heads
        self._heads = {
            pool: old[pool] if pool in old and old[pool][0] == segment else (segment, now)
            for pool, segment in queues.items()
            if segment_ms(segment) <= now_ms
        }
        suspects = [pool for pool, (_, since) in self._heads.items() if now - since >= STALLED_AFTER][:POOLS_MAX]
        for pool in suspects:
            # Whatever is found now, the next suspicion takes as long again.
            self._heads[pool] = (self._heads[pool][0], now)
        if suspects:
            with _guarded():
                self._look_for_stalls(suspects, dead)

    def _look_for_stalls(self, suspects: list[str], dead: set[int]) -> None:
        for one in Look(database(self.using), None, suspects, dead=dead, most=COUNT_EACH).pools():
            if one.reason is Reason.STALLED and self._may_tell(one.pool):
                eventlog.log("stalled", "ERROR", one.pool, lag_s=one.lag_s, due=one.due, completing=one.completing)
                courier.post(pool_wedged, pool=one.pool, reason="stalled", error="", seconds=round(one.lag_s))

    def _may_tell(self, pool: str) -> bool:
        now = time.monotonic()
        if now - self._told.get(pool, float("-inf")) < TELL_EVERY:
            return False
        self._told[pool] = now
        return True


@contextmanager
def _guarded() -> Iterator[None]:
    """Whoever only watches must not bring down what it watches: a connection that is gone is found by the loop's own next statement."""
    try:
        yield
    except Exception as error:
        if not is_away(error):
            logger.warning("the watchdog could not look: %s", first_line(error))
