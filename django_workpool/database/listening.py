"""PostgreSQL's watch: LISTEN, the session lock, and the pulse in one statement."""

import select
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.db import OperationalError

from .parts import Answers, Part, one_by_one, tell_wait, together
from .postgresql import CHANNEL, PostgreSQL
from .watch import Hint, Watch

#: Seconds between two looks of a process that cannot listen.
POLL_BLIND = 0.25
#: The workers whose session lock is held.
_HELD = (
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = %s::regclass "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class PostgreSQLWatch(Watch):
    """LISTEN and the session lock, on one connection; behind a pooler neither, as both are a session's."""

    database: PostgreSQL

    def __init__(self, database: PostgreSQL) -> None:
        self.database = database
        database.private_connection("watch")
        self.holds: int | None = None
        database.connection.ensure_connection()
        self.locks = not database.is_pooled
        if self.locks:
            database.execute(f"LISTEN {CHANNEL}")

    def _class_id(self) -> str:
        # The table's OID as a signed 32-bit number: two installations in two schemas never share a lock.
        return "(SELECT c.oid::bigint::bit(32)::int FROM pg_class c WHERE c.oid = %s::regclass)"

    def _table(self) -> str:
        return self.database.sql("{Worker}")

    def hold(self, worker_id: int) -> bool:
        if not self.locks:
            return False
        if self.holds == worker_id:
            return True
        taken = self.database.fetch(f"SELECT pg_try_advisory_lock({self._class_id()}, %s)", [self._table(), worker_id])[0][0]
        self.holds = worker_id if taken else None
        return bool(taken)

    def held(self) -> set[int] | None:
        if not self.locks:
            return None
        return {int(worker_id) for (worker_id,) in self.database.fetch(_HELD, [self._table()])}

    def look(self, parts: Sequence[Part]) -> tuple[Answers, set[int] | None]:
        db = self.database
        try:
            with self._options():
                answers = together(db, [*parts, *([Part("held", _HELD, [self._table()])] if self.locks else [])])
        except OperationalError as error:
            tell_wait(error)
            answers = {}
            for part in parts:
                if part.changes:
                    with self._options():
                        answers |= one_by_one(db, [part])
            return answers, None
        held = {int(worker_id) for (worker_id,) in answers.pop("held")} if self.locks else None
        return answers, held

    def _options(self) -> AbstractContextManager[None]:
        """A transaction behind a pooler: only there the session's options are set."""
        return self.database.write() if self.database.is_pooled else nullcontext()

    def wait(self, timeout: float) -> list[Hint]:
        connection: Any = self.database.connection.connection
        if connection is None or not self.locks:
            time.sleep(min(timeout, POLL_BLIND))
            # Whoever cannot listen looks instead.
            return [Hint("changed")] if not self.locks else []
        hints = self._heard(connection)
        if not hints:
            # The driver's own wait wakes ten times a second.
            poll = select.poll()
            poll.register(connection.fileno(), select.POLLIN)
            hints = self._heard(connection) if poll.poll(timeout * 1000) else []
        return hints

    def _heard(self, connection: Any) -> list[Hint]:
        """Return what has arrived; some may have come with the answer to a statement."""
        hints = []
        for notification in connection.notifies(timeout=0, stop_after=1):
            kind, _, name = notification.payload.partition(" ")
            hints.append(Hint(kind, name))
        return hints

    def close(self) -> None:
        try:
            self.database.connection.close()
        except Exception:  # the connection may be in any state; the server drops the lock with it
            self.database.connection.connection = None
