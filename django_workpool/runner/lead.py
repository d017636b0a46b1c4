"""The lead: which one process decides. A lease by the database's clock, or a lock that lasts as long as its holder.

Taking it raises the generation of every pool, in one transaction that holds every pool's row: from its commit on, the
fence refuses whoever led before. The candidate never waits for a row: what an old leader holds is tried again later.
"""

import logging
import threading
import time
import uuid

from django.db.models import F

from .. import configuration
from ..database import Answers, Hint, Part, database
from ..database.base import lock_rows
from ..models import InternalState, Lead

logger = logging.getLogger("django_workpool.runner")

#: Seconds of a lease by the database's clock, and between two renewals.
LEASE, RENEW_EVERY = 10.0, 3.0
#: Times in a row, a second apart, that the watch meets the loop's thread where it was, after which it renews the lease no longer.
#: Counted instead of seconds: while the whole process stands still, nothing can get on.
STUCK_AFTER = 3
#: Seconds before the end of the lease at which a leader that could not renew steps down by its own clock.
MARGIN = 1.0
#: Seconds for which a standby must have seen the lead unchanged, and its holder dead, to take it before its end.
UNCHANGED = 5.0


#: The lead's row: (owner, term, expires_ms).
Row = tuple[uuid.UUID | None, int, int | None]
LEAD = Part("lead", "SELECT owner, term, expires_ms FROM {Lead} WHERE id = 1")


class _Overtaken(Exception):
    """Somebody else was quicker."""


class Leadership:
    """One process's side of the lead. Taken and given up by the loop's thread, renewed by the watch's."""

    def __init__(self, using: str, owner: uuid.UUID) -> None:
        self.using, self.owner = using, owner
        self.db = database(using)
        self.term = 0
        self.held = False
        self._deadline = float("-inf")
        self._renewed = float("-inf")
        self._seen: tuple[Row, float] | None = None
        #: Which term is asked about, and when that was sent; None while this process does not lead.
        self._asked: tuple[int, float] | None = None
        #: Where the loop's thread was met last, and how often in a row.
        self._met: tuple[object, int] = (None, 0)
        self._lost = False
        self._lock = threading.Lock()

    def take(self, dead: set[uuid.UUID]) -> bool:
        """Take the lead if it is free, over, or its holder was seen dead; return whether it is held.

        Args:
            dead: Processes that were seen dead.

        Raises:
            OperationalError: a row is locked by somebody, or the database is away.
        """
        leads = Lead.objects.using(self.using).filter(id=1).values_list("owner", "term", "expires_ms")
        row = leads.first()
        if row is None:
            configuration.create_rows(self.using)
            row = leads.first()
        if row is None or not self.may_take(row, None, dead) or not self.db.take_lead_lock():
            return False
        before = time.monotonic()
        try:
            # Somebody may have emptied the tables under whoever led; whoever only stands by need not ask.
            configuration.create_rows(self.using)
            with self.db.write():
                lead = lock_rows(Lead, self.using, nowait=True).get(id=1)
                if (lead.owner, lead.term, lead.expires_ms) != row:
                    raise _Overtaken
                list(lock_rows(InternalState, self.using, nowait=True).order_by("pool").values_list("pool"))
                # MariaDB is told to find rows by a key: this is one, of all of them.
                InternalState.objects.using(self.using).filter(pool__gt="").update(generation=F("generation") + 1)
                self.term = row[1] + 1
                expires_ms = int(self.db.clock_ms() + LEASE * 1000) if self.db.leases else None
                Lead.objects.using(self.using).filter(id=1).update(owner=self.owner, term=self.term, expires_ms=expires_ms)
        except _Overtaken:
            self.db.release_lead_lock()
            return False
        except BaseException:
            self.db.release_lead_lock()
            raise
        with self._lock:
            self._lost, self._renewed, self._deadline = False, before, before + LEASE - MARGIN
            self.held = True
        self._seen = None
        return True

    def may_take(self, row: Row, now_ms: float | None, dead: set[uuid.UUID]) -> bool:
        """Return whether a lead whose row is this may be taken by this process.

        Args:
            row: The row.
            now_ms: The database's time when it was read; None: it is asked.
            dead: Processes that were seen dead.
        """
        owner, _, expires_ms = row
        if not self.db.leases or owner is None or owner == self.owner:
            return True
        if expires_ms is not None and expires_ms <= (self.db.clock_ms() if now_ms is None else now_ms):
            return True
        if self._seen is None or self._seen[0] != row:
            self._seen = (row, time.monotonic())
        return owner in dead and time.monotonic() - self._seen[1] >= UNCHANGED

    def ask(self, progress: object) -> list[Part]:
        """Return what asks after the lead, and renews its lease if it is time to: the answers are for ``take_answers``.

        The deadline by this process's clock counts from now: before the renewal is sent.

        Args:
            progress: Something else each time as long as the loop's thread gets on: one that is stuck shall not lead for ever.
        """
        now = time.monotonic()
        self._met = (progress, self._met[1] + 1 if progress == self._met[0] else 0)
        with self._lock:
            self._asked = (self.term, now) if self.held and self.db.leases else None
            if self._asked is None or self.is_over or now - self._renewed < RENEW_EVERY or self._met[1] >= STUCK_AFTER:
                return [LEAD]
            # Whoever holds the row is not waited for: the next look renews, as long as there is time.
            free = f"id IN (SELECT id FROM {{Lead}} WHERE id = 1 {self.db.skip_locked})" if self.db.skip_locked else "id = 1"
            renewal = (
                f"UPDATE {{Lead}} SET expires_ms = {self.db.whole(f'{self.db.clock_ms_sql} + %s')} "
                f"WHERE {free} AND owner = %s AND term = %s RETURNING term"
            )
            params = [LEASE * 1000, self.db.uuid_param(self.owner), self.term]
            return [Part("lease", renewal, params, changes=True), LEAD]

    def take_answers(self, answers: Answers) -> Row | None:
        """Take the answers to ``ask``: the lease goes on, or somebody else has taken the lead. Return its row, if that was read."""
        rows = [(owner if owner is None else self.db.read_uuid(owner), term, ends) for owner, term, ends in answers.get(LEAD.name, ())]
        with self._lock:
            # An answer about an earlier term says nothing.
            if self._asked is not None and self.held and self._asked[0] == self.term:
                if answers.get("lease"):
                    self._renewed, self._deadline = self._asked[1], self._asked[1] + LEASE - MARGIN
                elif rows and rows[0][:2] != (self.owner, self.term):
                    self._lost = True
        return rows[0] if rows else None

    @property
    def is_over(self) -> bool:
        """Whether the lease has nearly ended by this process's clock."""
        return self.db.leases and time.monotonic() >= self._deadline

    @property
    def is_lost(self) -> bool:
        """Whether this process must lead no longer: somebody else has taken the lead, or the lease's end is near."""
        return self._lost or self.is_over

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
