"""PostgreSQL (psycopg 3): session locks, LISTEN / NOTIFY, one statement for an enqueue."""

import select
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from django.conf import settings
from django.db import OperationalError, connections, transaction

from .. import conf
from . import sessions
from .base import WORK_COLUMNS, Database, Due, Hint, NewWork, Watch
from .parts import Answers, Part, one_by_one, tell_wait, together

CHANNEL = "workpool"
#: Seconds between two looks of a process that cannot listen.
POLL_BLIND = 0.25
#: PostgreSQL refuses a payload of 8,000 bytes or more.
PAYLOAD_MAX = 7_900

_INSERT = (
    """
WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at),
     added AS (INSERT INTO {Work} ("""
    + WORK_COLUMNS
    + """)
               SELECT w.id, %s, %s, %s, %s, w.arguments, %s, 0, 0, %s, %s, %s, false, %s, moment.at
               FROM unnest(%s::uuid[], %s::text[]) AS w(id, arguments), moment)
INSERT INTO {PendingStart} (work_id, pool, lane, priority, segment)
SELECT unnest(%s::uuid[]), %s, %s, %s, GREATEST(%s, floor(extract(epoch FROM moment.at) * 10){delay})::bigint FROM moment
RETURNING segment"""
)


class PostgreSQL(Database):
    """PostgreSQL 14 or newer through psycopg 3."""

    vendor = "postgresql"
    kicks = True
    leases = True
    skip_locked = "FOR UPDATE SKIP LOCKED"
    clock_ms_sql = "extract(epoch FROM clock_timestamp()) * 1000"

    def among(self, column: str, values: Sequence[int] | Sequence[uuid.UUID]) -> tuple[str, Any]:
        cast = "uuid" if values and isinstance(values[0], uuid.UUID) else "bigint"
        return f"{column} = ANY(%s::{cast}[])", list(values)

    def insert_work(self, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], due: Due) -> int:
        delay = "" if due.delay_ms is None else ", ceil(extract(epoch FROM moment.at) * 10 + %s)"
        params: list[Any] = [new.pool, new.fn_type, new.func_path, new.name, new.priority]
        params += [new.on_complete, new.on_complete_context, new.retry, new.callback_of, list(ids), list(arguments)]
        params += [list(ids), new.pool, new.lane, new.priority, due.segment]
        if due.delay_ms is not None:
            params.append(due.delay_ms / 100)
        with self.connection.cursor() as cursor:
            cursor.execute(self.sql(_INSERT.replace("{delay}", delay)), params)
            return int(cursor.fetchone()[0])

    def insert_running(self, rows: Sequence[tuple[Any, ...]]) -> dict[uuid.UUID, int]:
        added = self.fetch(
            "INSERT INTO {RunningWork} (work_id, pool, lane, worker_id, due, started) "
            "SELECT * FROM unnest(%s::uuid[], %s::text[], %s::smallint[], %s::int[], %s::bigint[], %s::timestamptz[]) "
            "RETURNING work_id, id",
            [list(column) for column in zip(*rows, strict=True)],
        )
        return dict(added)

    def clock_ms(self) -> float:
        return float(self.fetch(f"SELECT {self.clock_ms_sql}")[0][0])

    def moment_sql(self) -> tuple[str, list[Any]]:
        # A pooler's session may be set to any time zone.
        return ("clock_timestamp()", []) if settings.USE_TZ else ("(clock_timestamp() AT TIME ZONE %s)", [settings.TIME_ZONE])

    def private_connection(self, purpose: str) -> None:
        wrapper = sessions.private_wrapper(self.using, purpose)
        old = connections[self.using]
        connections[self.using] = wrapper
        old.close()

    @contextmanager
    def write(self) -> Iterator[None]:
        with super().write():
            if self.is_pooled:
                with self.connection.cursor() as cursor:
                    sessions.set_options(cursor, sessions.SESSION, local=True)
            yield

    @property
    def is_pooled(self) -> bool:
        return sessions.is_pooled(self.connection)

    def cut(self, purpose: str) -> None:
        sessions.cut(self.using, purpose)

    def pooler_warnings(self) -> list[str]:
        wrapper = sessions.private_wrapper(self.using, "check")
        try:
            wrapper.ensure_connection()
            pooled, direct = sessions.is_pooled(wrapper), conf.direct_alias(self.using)
        finally:
            wrapper.close()
        texts = []
        if pooled:
            texts.append(
                f"Database {direct or self.using!r} is behind a pooler that gives each transaction another session: a dead worker is "
                "known by its beat alone, after 30 s, and processes look for work four times a second instead of being told. "
                'Name an alias that leads past the pooler as "DIRECT" in WORKPOOLS.'
            )
        if (pooled or direct) and connections.settings[self.using]["OPTIONS"].get("prepare_threshold") is not None:
            texts.append(
                f"Database {self.using!r} prepares statements behind a pooler: functions and views will meet statements that their session "
                'does not have, or has already. Remove "prepare_threshold" from its OPTIONS, unless the pooler keeps prepared statements.'
            )
        return texts

    @contextmanager
    def fast_commit(self) -> Iterator[None]:
        with self.write():
            self.execute("SET LOCAL synchronous_commit = off")
            yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        with transaction.atomic(using=self.using):
            self.execute("SET TRANSACTION READ ONLY")
            yield

    def check_constraints(self) -> None:
        self.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def defer_constraints(self) -> None:
        self.execute("SET CONSTRAINTS ALL DEFERRED")

    def notify(self, hints: Sequence[Hint]) -> None:
        payloads = list(dict.fromkeys(f"{hint.kind} {hint.name}"[:PAYLOAD_MAX] for hint in hints))
        if payloads:
            self.fetch("SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload", [CHANNEL, payloads])

    def watch(self) -> Watch:
        return PostgreSQLWatch(self)


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
