"""Conflicts and lost connections are told apart from the function's own errors."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from django.db.utils import load_backend

from django_workpool.database import database
from django_workpool.database_errors import is_away, is_conflict, is_connection_loss, lacks_table, may_pass

from .raising import Endless, TextRaises, raised

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="needs sessions of a server")
on_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite's locks")


def wrapped(cause: BaseException, kind: type[Exception] = OperationalError) -> BaseException:
    """Return the cause as Django raises it."""
    exc = kind(*cause.args)
    exc.__cause__ = cause
    return exc


def driver_error(text: str, **attributes: Any) -> BaseException:
    exc = sqlite3.OperationalError(text)
    for name, value in attributes.items():
        setattr(exc, name, value)
    return exc


@pytest.mark.parametrize(
    ("exc", "conflict", "loss"),
    [
        (wrapped(driver_error("x", sqlstate="40001")), True, False),
        (wrapped(driver_error("x", sqlstate="40P01")), True, False),
        (wrapped(driver_error("x", sqlstate="55P03")), True, False),
        (wrapped(driver_error("x", sqlstate="26000")), True, False),
        (driver_error("x", sqlstate="40001"), True, False),
        (wrapped(driver_error("connection failed", sqlstate="57014")), False, False),
        (wrapped(driver_error("x", sqlstate="25006")), False, False),
        (wrapped(driver_error("database is locked", sqlite_errorcode=5)), True, False),
        (wrapped(driver_error("database is locked", sqlite_errorcode=5 | 2 << 8)), True, False),
        (wrapped(driver_error("database table is locked: t", sqlite_errorcode=6)), True, False),
        (wrapped(driver_error("disk I/O error", sqlite_errorcode=10)), False, False),
        (OperationalError("database is locked"), True, False),
        (IntegrityError("database is locked"), False, False),
        (ValueError("database is locked"), False, False),
        (wrapped(driver_error("x", sqlstate="57P01")), False, True),
        (wrapped(driver_error("x", sqlstate="57P02")), False, True),
        (wrapped(driver_error("x", sqlstate="57P03")), False, True),
        (wrapped(driver_error("x", sqlstate="08006")), False, True),
        (wrapped(driver_error("x", sqlstate="25P03"), DatabaseError), False, True),
        (wrapped(driver_error("SSL SYSCALL error: EOF detected", sqlstate=None)), False, True),
        (wrapped(driver_error("the connection is lost", sqlstate=None)), False, True),
        (InterfaceError("connection already closed"), False, True),
        (InterfaceError("the cursor is closed"), False, False),
        (ProgrammingError("connection is closed"), False, False),
        (ConnectionResetError("connection reset by peer"), False, False),
    ],
)
def test_errors_of_the_database_are_told_apart(exc: BaseException, conflict: bool, loss: bool) -> None:
    assert (is_conflict(exc), is_connection_loss(exc)) == (conflict, loss)


def test_errors_that_lie_are_no_errors_of_the_database() -> None:
    """Neither question raises."""

    class Error(Endless):
        pass

    for exc in (Endless(), Error(), TextRaises(SystemExit)):
        assert (is_conflict(exc), is_connection_loss(exc)) == (False, False)


def test_conflict_behind_a_broken_transaction() -> None:
    """A function that swallows a conflict meets Django's own error next, raised from the conflict."""
    broken = transaction.TransactionManagementError("An error occurred in the current transaction.")
    broken.__cause__ = wrapped(driver_error("x", sqlstate="40001"))
    assert is_conflict(broken)


def test_conflict_behind_an_error_of_the_users_is_none() -> None:
    """Whoever turns a conflict into an error of their own has decided."""
    own = ValueError("could not save")
    own.__cause__ = wrapped(driver_error("x", sqlstate="40001"))
    assert not is_conflict(own)
    assert not is_connection_loss(own)


def sql(statement: str, alias: str = "default") -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def other(transactional_db: None) -> Iterator[Any]:
    """A second connection to the test database."""
    made = connections.create_connection("default")
    made.inc_thread_sharing()
    yield made
    made.close()


def terminate(other: Any) -> None:
    """End the test's own session and wait until it is gone."""
    [(pid,)] = sql("SELECT pg_backend_pid()")
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def lose_in_statement(other: Any) -> None:
    terminate(other)
    sql("SELECT 1")


def lose_twice(other: Any) -> None:
    terminate(other)
    with contextlib.suppress(DatabaseError):
        sql("SELECT 1")
    sql("SELECT 1")


def lose_at_commit(other: Any) -> None:
    with transaction.atomic():
        terminate(other)


def lose_while_fetching(other: Any) -> None:
    with transaction.atomic(), connection.chunked_cursor() as cursor:
        cursor.execute("SELECT generate_series(1, 100000)")
        cursor.fetchone()
        terminate(other)


def lose_during_a_statement(other: Any) -> None:
    [(pid,)] = sql("SELECT pg_backend_pid()")

    def end() -> None:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])

    thread = threading.Timer(0.1, end)
    thread.start()
    try:
        sql("SELECT pg_sleep(20)")
    finally:
        thread.join()


def lose_by_idle_timeout(other: Any) -> None:
    with transaction.atomic():
        sql("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
        [(pid,)] = sql("SELECT pg_backend_pid()")
        deadline = time.monotonic() + 20
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid])
            while cursor.fetchall() and time.monotonic() < deadline:
                cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid])
        sql("SELECT 1")


def close_raw(other: Any) -> None:
    connection.ensure_connection()
    connection.connection.close()
    sql("SELECT 1")


def refuse(other: Any) -> None:
    settings = {**connection.settings_dict, "HOST": "127.0.0.1", "PORT": "1"}
    load_backend(settings["ENGINE"]).DatabaseWrapper(settings, "default").connect()


LOSSES = (
    lose_in_statement,
    lose_twice,
    lose_at_commit,
    lose_while_fetching,
    lose_during_a_statement,
    lose_by_idle_timeout,
    close_raw,
    refuse,
)


@on_postgresql
def test_lost_connections_of_a_real_server(other: Any) -> None:
    """Every way of losing a session is known from what psycopg raises."""
    for lose in LOSSES:
        exc = raised(lambda lose=lose: lose(other))
        assert (lose.__name__, is_connection_loss(exc), is_conflict(exc)) == (lose.__name__, True, False), repr(exc)
        connection.close()


@on_postgresql
def test_a_server_that_only_reads_is_no_lost_connection_but_one_to_leave(other: Any) -> None:
    """What a fail-over leaves behind: the session lives, and only a new one may lead to the successor."""
    sql("SET default_transaction_read_only = on")
    exc = raised(lambda: sql("CREATE TABLE read_only_probe (id int)"))
    assert (is_away(exc), is_connection_loss(exc), is_conflict(exc)) == (True, False, False), repr(exc)
    connection.close()
    assert not is_away(ValueError("read-only transaction"))


@on_postgresql
def test_a_session_whose_statement_was_prepared_before_a_migration_is_one_to_leave(transactional_db: None) -> None:
    """The driver would send it again and again; a migration in another session is what this one does behind the driver's back."""

    def ask() -> None:
        database("default").private_connection("test")
        sql("CREATE TEMPORARY TABLE prepared_probe (name varchar(10))")
        for _ in range(4):
            sql("SELECT name FROM prepared_probe")
        sql("DO $$ BEGIN EXECUTE 'ALTER TABLE prepared_probe ALTER name TYPE varchar(20)'; END $$")
        for _ in range(2):
            exc = raised(lambda: sql("SELECT name FROM prepared_probe"))
            assert (is_away(exc), is_connection_loss(exc), is_conflict(exc)) == (True, False, False), repr(exc)
        connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(ask).result(30)


@on_postgresql
def test_a_connection_pool_that_has_none_is_a_database_that_is_away(transactional_db: None) -> None:
    """What runs on such a connection waits for one instead of failing without ever having begun."""
    nowhere = {**connection.settings_dict, "HOST": "127.0.0.1", "PORT": "1"}
    nowhere["OPTIONS"] = {"pool": {"min_size": 0, "max_size": 1, "timeout": 0.2}}
    pooled: Any = load_backend(nowhere["ENGINE"]).DatabaseWrapper(nowhere, "nowhere")
    try:
        exc = raised(pooled.ensure_connection)
        assert (is_away(exc), is_connection_loss(exc), may_pass(exc)) == (True, True, True), repr(exc)
    finally:
        pooled.close_pool()


def test_a_table_that_is_missing_is_told_from_one_that_may_not_be_read(transactional_db: None) -> None:
    assert lacks_table(raised(lambda: sql("SELECT * FROM no_such_table")))
    assert lacks_table(raised(lambda: sql("SELECT no_such_column FROM workpool_worker")))
    assert not lacks_table(raised(lambda: sql("SELECT syntax FROM FROM")))


@on_postgresql
def test_conflicts_of_a_real_server(other: Any) -> None:
    """A lock that is not available, and a transaction that cannot be serialized."""
    sql("CREATE TABLE conflict_probe (id int PRIMARY KEY, n int)")
    sql("INSERT INTO conflict_probe VALUES (1, 0)")

    def unavailable() -> None:
        with transaction.atomic():
            sql("SELECT * FROM conflict_probe FOR UPDATE NOWAIT")

    def unserializable() -> None:
        with transaction.atomic():
            sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            sql("SELECT * FROM conflict_probe")
            with other.cursor() as cursor:
                cursor.execute("UPDATE conflict_probe SET n = n + 1")
            sql("UPDATE conflict_probe SET n = n + 1")

    try:
        assert is_conflict(raised(unserializable))
        with transaction.atomic(), other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE conflict_probe SET n = 7")
            exc = raised(unavailable)
            cursor.execute("ROLLBACK")
        assert is_conflict(exc)
        assert not is_connection_loss(exc)
        assert not is_conflict(raised(lambda: sql("INSERT INTO conflict_probe VALUES (1, 1)")))
    finally:
        sql("DROP TABLE conflict_probe")


@on_sqlite
def test_conflicts_of_a_locked_file(transactional_db: None, tmp_path: Path) -> None:
    """Another connection holds the write lock."""
    path = tmp_path / "locked.sqlite3"
    settings = {**connection.settings_dict, "NAME": path, "OPTIONS": {"timeout": 0, "transaction_mode": "IMMEDIATE"}}
    wrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, "locked")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE t (a)")
    holder.execute("BEGIN IMMEDIATE")
    try:
        with wrapper.cursor() as cursor:
            exc = raised(lambda: cursor.execute("INSERT INTO t VALUES (1)"))
        assert is_conflict(exc)
        assert not is_connection_loss(exc)
    finally:
        wrapper.close()
        holder.close()
