"""The watch on MariaDB and MySQL: a named lock, and a look every few milliseconds, as nothing here tells of what others commit."""

import hashlib
import time
from contextlib import suppress
from typing import Any

from .mysql import MySQL
from .watch import Hint, Watch

#: How often a process looks: up to so many seconds after it last saw something new, every so many; later every POLL_IDLE.
POLLS = ((5.0, 0.01), (60.0, 0.05))
POLL_IDLE = 0.25

#: What is new since the last look: the greatest ids beyond those that are known. Only what lies beyond them is walked: an old
#: snapshot keeps the index entries of rows that are gone. What is committed behind them is found by the next pulse.
_QUEUES = ("PendingStart", "PendingCompletion", "PendingCancelation", "Worker")
_NEWEST = (
    "SELECT "
    + ", ".join(f"(SELECT MAX(id) FROM {{{table}}} WHERE id > %s)" for table in _QUEUES)
    + ", (SELECT MAX(id) FROM {RunningWork} WHERE worker_id = %s AND id > %s), (SELECT owner FROM {Lead} WHERE id = 1)"
)


class MySQLWatch(Watch):
    """GET_LOCK on a connection of its own; the server's locks have names, which all its databases share."""

    database: MySQL

    def __init__(self, database: MySQL) -> None:
        self.database = database
        database.private_connection("watch")
        self.holds: int | None = None
        self._known: list[int] | None = None
        self._owner: Any = None
        self._changed = time.monotonic()
        database.connection.ensure_connection()
        # At most 64 characters: the names of databases and tables alone may be longer.
        place = f"{database.connection.settings_dict['NAME']}.{database.sql('{Worker}')}"
        self._prefix = f"workpool-{hashlib.sha256(place.encode()).hexdigest()[:32]}-"

    def hold(self, worker_id: int) -> bool:
        if self.holds == worker_id:
            return True
        taken = self.database.fetch("SELECT GET_LOCK(%s, 0)", [f"{self._prefix}{worker_id}"])[0][0]
        self.holds = worker_id if taken else None
        return bool(taken)

    def held(self) -> set[int] | None:
        rows = self.database.fetch("SELECT id FROM {Worker} WHERE IS_USED_LOCK(CONCAT(%s, id)) IS NOT NULL", [self._prefix])
        return {int(worker_id) for (worker_id,) in rows}

    def wait(self, timeout: float) -> list[Hint]:
        end = time.monotonic() + timeout
        while True:
            hints, now = self._look(), time.monotonic()
            if hints:
                self._changed = now
                return hints
            if now >= end:
                return []
            every = next((every for until, every in POLLS if now - self._changed < until), POLL_IDLE)
            time.sleep(min(end - now, every))

    def _look(self) -> list[Hint]:
        """Return what is new; what the first look finds is no news, as the pulse that came before it has seen it."""
        known = self._known or [0] * (len(_QUEUES) + 1)
        *newest, owner = self.database.fetch(_NEWEST, [*known[:-1], self.holds or 0, known[-1]])[0]
        first, self._known = self._known is None, [new or old for new, old in zip(newest, known, strict=True)]
        freed, self._owner = owner is None and self._owner is not None, owner
        if first:
            return []
        *queues, worker, run = (new is not None for new in newest)
        hints = [Hint("pool")] if any(queues) else []
        hints += [Hint("worker", str(self.holds))] if run else []
        return hints + ([Hint("lead")] if worker or freed else [])

    def close(self) -> None:
        with suppress(Exception):
            self.database.connection.close()
        if self.database.connection.connection is not None:
            # The driver's may be in any state; the server drops the lock with it.
            self.database.connection.connection = None
