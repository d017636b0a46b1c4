"""One thread with an isolation, and what functions do on it."""

import contextvars
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import getcontext
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone, translation

from django_workpool.execution.isolation import Isolation
from django_workpool.execution.watch import session_state

POSTGRESQL, MYSQL = connection.vendor == "postgresql", connection.vendor == "mysql"
#: Changes a session in a way that ``session`` shows.
CHANGES_SESSION = {
    "postgresql": "SET search_path TO pg_catalog",
    "mysql": "SET time_zone = '+09:00'",
    "sqlite": "PRAGMA recursive_triggers = ON",
}[connection.vendor]
on_postgresql = pytest.mark.skipif(not POSTGRESQL, reason="the statement exists on PostgreSQL only")

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
kept: list[Any] = []


class Stage:
    """One thread with an isolation, on which functions run one after the other."""

    def __init__(self, home: str | None = None) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.isolation: Isolation = self.do(lambda: Isolation(home))

    def do(self, function: Callable[[], Any]) -> Any:
        """Call on the thread, without isolation."""
        return self._thread.submit(function).result(30)

    def run(self, function: Callable[..., Any], *args: Any, label: str = "tests.leaver") -> Any:
        """Call on the thread as an executor does."""

        def isolated() -> Any:
            with self.isolation.function(label):
                return self.isolation.call(function, args)

        return self.do(isolated)

    def leave(self) -> None:
        self.do(self.isolation.close)
        self._thread.shutdown()


def sql(statement: str, params: Any = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def insert(number: int) -> None:
    sql("INSERT INTO isolation_probe (id) VALUES (%s)", [number])


def rows() -> list[int]:
    return [number for (number,) in sql("SELECT id FROM isolation_probe ORDER BY id")]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


SETTINGS = ("search_path", "TimeZone", "default_transaction_isolation", "role", "session_authorization", "statement_timeout", "work_mem")
MYSQL_SETTINGS = (
    *(f"@@session.{name}" for name in ("time_zone", "sql_mode", "tx_isolation", "max_statement_time", "autocommit", "tx_read_only")),
    "IS_USED_LOCK('left')",
    "@left",
    "DATABASE()",
)


def session() -> dict[str, Any]:
    """What a session shows of its settings and of what is kept in it."""
    if POSTGRESQL:
        state = {name: sql(f"SHOW {name}")[0][0] for name in SETTINGS}
        state["cursors"] = sql("SELECT name FROM pg_cursors WHERE statement NOT LIKE '%%pg_cursors%%'")
        state["prepared"] = sql("SELECT name FROM pg_prepared_statements")
        state["locks"] = sql("SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        state["channels"] = sql("SELECT pg_listening_channels()")
        # Its own only: what a closed session had is there until the server has seen its end.
        state["temporary"] = sql("SELECT relname FROM pg_class WHERE relpersistence = 't' AND relnamespace = pg_my_temp_schema()")
        return state
    if MYSQL:
        state = {name: sql(f"SELECT {name}") for name in MYSQL_SETTINGS}
        try:
            state["temporary"] = sql("SELECT count(*) FROM scratch")
        except DatabaseError:
            state["temporary"] = None
        return state
    pragmas = ("foreign_keys", "recursive_triggers", "cache_size", "busy_timeout", "query_only")
    state = {name: sql(f"PRAGMA {name}") for name in pragmas}
    # SQLite lists "temp" as soon as anything has asked for it, so it is not asked for the tables in it.
    state["databases"] = [row[1] for row in sql("PRAGMA database_list")]
    return state


def report() -> dict[str, Any]:
    """What a function finds on its thread."""
    return {
        "autocommit": connection.get_autocommit(),
        "in_atomic": connection.in_atomic_block,
        "needs_rollback": connection.needs_rollback,
        "on_commit": len(connection.run_on_commit),
        "wrappers": len(connection.execute_wrappers),
        "transaction": session_state(connection.connection),
        "time zone": timezone.get_current_timezone_name(),
        "language": translation.get_language(),
        "tenant": tenant.get(),
        "precision": getcontext().prec,
        "folder": os.getcwd(),
        "session": session(),
    }


def leave_atomic_block() -> None:
    transaction.atomic().__enter__()
    insert(1)
    transaction.on_commit(lambda: kept.append("committed"))


def backend() -> Any:
    connection.ensure_connection()
    return id(connection.connection) if not POSTGRESQL else sql("SELECT pg_backend_pid()")[0][0]


def read_in_chunks() -> None:
    with transaction.atomic(), connection.chunked_cursor() as cursor:
        cursor.execute("SELECT id FROM isolation_probe")
        cursor.fetchall()


def write_in_nested_atomic_blocks() -> None:
    with transaction.atomic():
        insert(1)
        with pytest.raises(DatabaseError), transaction.atomic():
            insert(1)
    sql("DELETE FROM isolation_probe")


def swallow_an_error() -> None:
    with pytest.raises(DatabaseError):
        sql("SELECT * FROM no_such_table")


def set_locally() -> None:
    with transaction.atomic():
        if POSTGRESQL:
            sql("SET TRANSACTION READ ONLY")
            sql("SET LOCAL work_mem = '1MB'")
            sql("SET CONSTRAINTS ALL IMMEDIATE")
            sql("SELECT set_config('statement_timeout', %s, true)", ["1s"])
            sql("SELECT pg_advisory_xact_lock(4711)")
        elif MYSQL:
            sql("SET STATEMENT max_statement_time = 5 FOR SELECT 1")
            sql("SELECT id FROM isolation_probe LIMIT 0")
        else:
            sql("PRAGMA foreign_key_check")
            sql("PRAGMA table_info(isolation_probe)")


WELL_BEHAVED = (read_in_chunks, write_in_nested_atomic_blocks, set_locally)
