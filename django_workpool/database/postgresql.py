"""PostgreSQL (psycopg 3): session locks, LISTEN / NOTIFY, one statement for an enqueue."""

import time
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.utils import load_backend

from .base import WORK_COLUMNS, Database, Due, Hint, NewWork, Watch
from .forks import keep_from_children

CHANNEL = "workpool"
#: PostgreSQL refuses a payload of 8,000 bytes or more.
PAYLOAD_MAX = 7_900

#: What each session of the pool itself sets. The planner's options: autovacuum's ANALYZE of a nearly empty queue table
#: makes it prefer scans of the whole, bloated table. The time-outs: nobody may hold the pool by stopping.
SESSION = {
    "default_transaction_isolation": "read committed",
    "lock_timeout": "1s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "3s",
    "idle_session_timeout": "0",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    # A scan that is switched off counts as so dear that the statement would be compiled, at 100 ms each.
    "jit": "off",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

_private: "weakref.WeakKeyDictionary[BaseDatabaseWrapper, str]" = weakref.WeakKeyDictionary()


def _set_up_session(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Set the session's options each time a private connection connects (again)."""
    purpose = _private.get(connection)
    if purpose is None:
        return
    values = {**SESSION, "application_name": f"workpool {purpose}"}
    with connection.cursor() as cursor:
        # One statement, and names this server does not know (idle_session_timeout before 14) are passed over.
        cursor.execute(
            "SELECT set_config(s.name, o.value, false) FROM unnest(%s::text[], %s::text[]) AS o(name, value) "
            "JOIN pg_settings s ON s.name = o.name",
            [list(values), list(values.values())],
        )


connection_created.connect(_set_up_session, dispatch_uid="workpool_session")

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

    def private_connection(self, purpose: str) -> None:
        wrapper = private_wrapper(self.using, purpose)
        old = connections[self.using]
        connections[self.using] = wrapper
        old.close()

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


def private_wrapper(using: str, purpose: str) -> BaseDatabaseWrapper:
    """Return a connection of the pool's own, made from the settings without Django's connection pool."""
    settings = deepcopy({k: v for k, v in connections[using].settings_dict.items() if k != "OPTIONS"})
    settings["OPTIONS"] = {k: v for k, v in connections[using].settings_dict["OPTIONS"].items() if k not in ("pool", "isolation_level")}
    settings["CONN_MAX_AGE"] = None
    settings["AUTOCOMMIT"] = True
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, using)
    _private[wrapper] = purpose
    # DEBUG would keep thousands of statements of a process that runs for months.
    wrapper.queries_log = deque(maxlen=0)
    keep_from_children(wrapper, lambda owner: [owner.connection.fileno()])
    return wrapper


class PostgreSQLWatch(Watch):
    """LISTEN and the session lock, on one connection."""

    def __init__(self, database: PostgreSQL) -> None:
        self.database = database
        database.private_connection("watch")
        self.holds: int | None = None
        database.execute(f"LISTEN {CHANNEL}")

    def _class_id(self) -> str:
        # The table's OID as a signed 32-bit number: two installations in two schemas never share a lock.
        return "(SELECT c.oid::bigint::bit(32)::int FROM pg_class c WHERE c.oid = %s::regclass)"

    def _table(self) -> str:
        return self.database.sql("{Worker}")

    def hold(self, worker_id: int) -> bool:
        if self.holds == worker_id:
            return True
        taken = self.database.fetch(f"SELECT pg_try_advisory_lock({self._class_id()}, %s)", [self._table(), worker_id])[0][0]
        self.holds = worker_id if taken else None
        return bool(taken)

    def held(self) -> set[int] | None:
        rows = self.database.fetch(
            "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = %s::regclass "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [self._table()],
        )
        return {int(worker_id) for (worker_id,) in rows}

    def wait(self, timeout: float) -> list[Hint]:
        connection: Any = self.database.connection.connection
        if connection is None:
            time.sleep(min(timeout, 0.1))
            return []
        hints = []
        for notification in connection.notifies(timeout=timeout, stop_after=1):
            kind, _, name = notification.payload.partition(" ")
            hints.append(Hint(kind, name))
        return hints

    def close(self) -> None:
        try:
            self.database.connection.close()
        except Exception:  # the connection may be in any state; the server drops the lock with it
            self.database.connection.connection = None
