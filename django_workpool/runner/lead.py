"""The lead: which one process decides. A lease by the database's clock, or a lock that lasts as long as its holder.

Taking it raises the generation of every pool, in one transaction that holds every pool's row: from its commit on, the
fence refuses whoever led before. The candidate never waits for a row: what an old leader holds is tried again later.
"""

import logging
import time
import uuid

from django.db.models import F

from ..database import Hint, database
from ..database.base import lock_rows
from ..models import InternalState, Lead

logger = logging.getLogger("django_workpool.runner")

#: Seconds of a lease by the database's clock, and between two renewals.
LEASE, RENEW_EVERY = 10.0, 3.0
#: Seconds before the end of the lease at which a leader that could not renew steps down by its own clock.
MARGIN = 1.0
#: Seconds for which a standby must have seen the lead unchanged, and its holder dead, to take it before its end.
UNCHANGED = 5.0


class _Overtaken(Exception):
    """Somebody else was quicker."""


class Leadership:
    """One process's side of the lead. Used by the loop's thread only."""

    def __init__(self, using: str, owner: uuid.UUID) -> None:
        self.using, self.owner = using, owner
        self.db = database(using)
        self.term = 0
        self.held = False
        self._deadline = float("-inf")
        self._renewed = float("-inf")
        self._seen: tuple[tuple[object, ...], float] | None = None

    def take(self, dead: set[uuid.UUID]) -> bool:
        """Take the lead if it is free, over, or its holder was seen dead; return whether it is held.

        Args:
            dead: Processes that were seen dead.

        Raises:
            OperationalError: a row is locked by somebody, or the database is away.
        """
        row = Lead.objects.using(self.using).filter(id=1).values_list("owner", "term", "expires_ms").first()
        if row is None or not self._may_take(row, dead) or not self.db.take_lead_lock():
            return False
        before = time.monotonic()
        try:
            with self.db.write():
                lead = lock_rows(Lead, self.using, nowait=True).get(id=1)
                if (lead.owner, lead.term, lead.expires_ms) != row:
                    raise _Overtaken
                list(lock_rows(InternalState, self.using, nowait=True).order_by("pool").values_list("pool"))
                InternalState.objects.using(self.using).update(generation=F("generation") + 1)
                self.term = row[1] + 1
                expires_ms = int(self.db.clock_ms() + LEASE * 1000) if self.db.leases else None
                Lead.objects.using(self.using).filter(id=1).update(owner=self.owner, term=self.term, expires_ms=expires_ms)
        except _Overtaken:
            self.db.release_lead_lock()
            return False
        except BaseException:
            self.db.release_lead_lock()
            raise
        self.held, self._renewed, self._deadline = True, before, before + LEASE - MARGIN
        self._seen = None
        return True

    def _may_take(self, row: tuple[uuid.UUID | None, int, int | None], dead: set[uuid.UUID]) -> bool:
        owner, _, expires_ms = row
        if not self.db.leases or owner is None or owner == self.owner:
            return True
        if expires_ms is not None and expires_ms <= self.db.clock_ms():
            return True
        if self._seen is None or self._seen[0] != row:
            self._seen = (row, time.monotonic())
        return owner in dead and time.monotonic() - self._seen[1] >= UNCHANGED

    def renew(self) -> bool:
        """Renew the lease if it is time to; return False if it was lost (somebody else has taken it, or its end is near).

        The deadline by this process's clock is taken before the renewal is sent.
        """
        if not self.db.leases:
            return True
        now = time.monotonic()
        if now >= self._deadline:
            return False
        if now - self._renewed < RENEW_EVERY:
            return True
        expires_ms = int(self.db.clock_ms() + LEASE * 1000)
        with self.db.write():
            list(lock_rows(Lead, self.using, nowait=True).filter(id=1).values_list("id"))
            renewed = Lead.objects.using(self.using).filter(id=1, owner=self.owner, term=self.term).update(expires_ms=expires_ms)
        if renewed:
            self._renewed, self._deadline = now, now + LEASE - MARGIN
        return bool(renewed)

    @property
    def is_over(self) -> bool:
        """Whether the lease has nearly ended by this process's clock."""
        return self.db.leases and time.monotonic() >= self._deadline

    @property
    def next_renewal(self) -> float:
        """The monotonic time of the next renewal."""
        return self._renewed + RENEW_EVERY if self.db.leases else float("inf")

    def step_down(self) -> None:
        """Stop leading without a word to the database."""
        self.held = False
        self.db.release_lead_lock()

    def hand_over(self) -> None:
        """Give the lead up for whoever stands by."""
        if not self.held:
            return
        self.held = False
        try:
            with self.db.write():
                Lead.objects.using(self.using).filter(id=1, owner=self.owner, term=self.term).update(owner=None, expires_ms=None)
            self.db.notify([Hint("lead")])
        finally:
            self.db.release_lead_lock()
