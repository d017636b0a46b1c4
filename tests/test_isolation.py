"""A function leaves its thread as it found it: transactions, sessions, context and working directory."""

import os
from collections.abc import Iterator
from contextlib import suppress
from decimal import getcontext
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone, translation

from .stage import (
    CHANGES_SESSION,
    MYSQL,
    POSTGRESQL,
    Stage,
    insert,
    kept,
    leave_atomic_block,
    on_postgresql,
    report,
    rows,
    session,
    sql,
    tenant,
    warnings_in,
)


@pytest.fixture
def stage(transactional_db: None) -> Iterator[Stage]:
    stage = Stage()
    yield stage
    kept.clear()
    stage.leave()


@pytest.fixture
def probe(transactional_db: None) -> Iterator[None]:
    """An empty table of the test's own."""
    sql("CREATE TABLE isolation_probe (id integer PRIMARY KEY)")
    yield
    sql("DROP TABLE isolation_probe")


def leave_autocommit_off_in_a_failed_transaction() -> None:
    connection.set_autocommit(False)
    insert(1)
    with suppress(DatabaseError):
        sql("SELECT * FROM no_such_table")


def leave_nested_atomic_blocks_that_need_rollback() -> None:
    for _ in range(3):
        transaction.atomic().__enter__()
    insert(1)
    transaction.set_rollback(True)


def leave_raw_transaction() -> None:
    sql("BEGIN")
    insert(1)


def leave_driver_transaction() -> None:
    connection.ensure_connection()
    raw = connection.connection.cursor()
    raw.execute("BEGIN")
    raw.execute("INSERT INTO isolation_probe (id) VALUES (1)")


def leave_atomic_block_on_closed_connection() -> None:
    transaction.atomic().__enter__()
    insert(1)
    connection.close()


def leave_closed_driver_connection_in_atomic_block() -> None:
    transaction.atomic().__enter__()
    insert(1)
    connection.connection.close()


def leave_execute_wrapper() -> None:
    sql("SELECT 1")
    connection.execute_wrappers.append(lambda execute, *args: kept.append("seen") or execute(*args))


TRANSACTIONS = [
    leave_autocommit_off_in_a_failed_transaction,
    leave_atomic_block,
    leave_nested_atomic_blocks_that_need_rollback,
    leave_raw_transaction,
    leave_driver_transaction,
    leave_atomic_block_on_closed_connection,
    leave_closed_driver_connection_in_atomic_block,
]


def test_transaction_left_open_is_rolled_back_with_a_warning(stage: Stage, probe: None, caplog: pytest.LogCaptureFixture) -> None:
    """C025: the next function finds the thread as the first one did, nothing of the open transaction is committed."""
    fresh = stage.run(report)
    for leaver in [*TRANSACTIONS, leave_execute_wrapper]:
        name = leaver.__name__
        caplog.clear()
        assert stage.run(lambda leaver=leaver: leaver() or 1, label=name) == 1, name
        assert [message.startswith(f"{name} left ") for message in warnings_in(caplog)] == [True], name
        assert (name, stage.run(report)) == (name, fresh)
        assert (name, stage.run(rows)) == (name, [])
    assert kept == []


def test_locks_of_a_transaction_left_open_are_released(stage: Stage, probe: None) -> None:
    """Another connection writes the same row at once."""
    stage.run(leave_atomic_block)
    insert(1)
    assert rows() == [1]


def leave_time_zone() -> None:
    timezone.activate("Asia/Tokyo")


def leave_language() -> None:
    translation.activate("de")


def leave_context_variable() -> None:
    tenant.set("acme")


def leave_decimal_precision() -> None:
    getcontext().prec = 3


def test_context_of_a_function_ends_with_it(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """C025: context variables, and what Django keeps in them, are as after a fresh start."""
    fresh = stage.run(report)
    for leaver in (leave_time_zone, leave_language, leave_context_variable, leave_decimal_precision):
        stage.run(leaver)
        assert (leaver.__name__, stage.run(report)) == (leaver.__name__, fresh)
    assert warnings_in(caplog) == []


def test_context_of_the_thread_is_not_visible_in_a_function(stage: Stage) -> None:
    """Each call has an empty context, not a copy."""
    stage.do(lambda: tenant.set("the pool's own"))
    assert stage.run(tenant.get) == "nobody"


def test_connections_are_the_same_inside_and_outside_of_the_context(stage: Stage) -> None:
    """The function and the pool's own code on its thread share one connection."""

    def wrapper() -> BaseDatabaseWrapper:
        connection.ensure_connection()
        return connections["default"]

    assert stage.run(wrapper) is stage.do(wrapper)
    assert stage.run(wrapper) is not connections["default"]


def test_working_directory_is_restored_with_a_warning(stage: Stage, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """C025: os.chdir() ends with the function."""
    before = os.getcwd()
    stage.run(os.chdir, tmp_path, label="app.tasks.mover")
    assert os.getcwd() == before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "app.tasks.mover" in caplog.text


def test_deleted_working_directory_is_left(stage: Stage, tmp_path: Any) -> None:
    """A function that deletes the directory it went to does not strand the thread."""
    before = os.getcwd()
    folder = tmp_path / "gone"
    folder.mkdir()

    def strand() -> None:
        os.chdir(folder)
        folder.rmdir()

    stage.run(strand)
    assert os.getcwd() == before


SESSION_STATEMENTS = (
    [
        "SET search_path TO pg_catalog",
        "set time zone 'Asia/Tokyo'",
        "/* tenant */ SET default_transaction_isolation = 'serializable'",
        "-- who\nSET ROLE pg_read_all_data",
        "SET SESSION AUTHORIZATION pg_monitor",
        "SELECT 1; SET statement_timeout = '3h'",
        "WITH x AS (SELECT Set_Config('work_mem', '1MB', false)) SELECT * FROM x",
        "SELECT pg_advisory_lock(4711)",
        "SELECT pg_try_advisory_lock_shared(4711)",
        "PREPARE plan AS SELECT 1",
        "LISTEN channel",
        "CREATE TEMP TABLE scratch (id int)",
        "SELECT 1 AS one INTO TEMPORARY scratch",
        "CREATE TABLE pg_temp.scratch (id int)",
        "DO $$ BEGIN PERFORM set_config('work_mem', '1MB', false); END $$",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
    ]
    if POSTGRESQL
    else [
        "SET time_zone = '+09:00'",
        "set @@session.sql_mode = ''",
        "SET LOCAL max_statement_time = 17",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "set session transaction read only",
        "SELECT GET_LOCK('left', 0)",
        "SELECT @left := 1",
        "SELECT 1 INTO @left",
        "SELECT 1 /*! INTO @left */",
        "USE information_schema",
        "CREATE TEMPORARY TABLE scratch (id int)",
    ]
    if MYSQL
    else [
        "PRAGMA foreign_keys = OFF",
        "pragma main.cache_size(17)",
        "PRAGMA query_only=1",
        "ATTACH ':memory:' AS other",
        "CREATE TEMPORARY TABLE scratch (id int)",
    ]
)


def test_changed_session_is_not_seen_by_the_next_function(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """C025: settings, roles, locks and whatever else stays in a session goes with its connection; no warning, it is allowed."""
    fresh = stage.run(report)
    for statement in SESSION_STATEMENTS:
        changed = stage.run(lambda statement=statement: (sql(statement), session())[1])
        assert changed != fresh["session"], f"{statement} changes nothing that the test sees"
        assert (statement, stage.run(report)) == (statement, fresh)
    assert warnings_in(caplog) == []


def test_changed_session_of_a_connection_opened_by_the_function(stage: Stage) -> None:
    """The first function of a thread opens its connection itself: it is watched all the same."""
    other = Stage()
    try:
        fresh = other.run(session)
    finally:
        other.leave()
    stage.run(sql, CHANGES_SESSION)
    assert stage.run(session) == fresh


def test_session_changed_by_executemany(stage: Stage) -> None:
    """Every way through Django's cursors is seen."""
    statement = "SELECT set_config('work_mem', %s, false)" if POSTGRESQL else "CREATE TEMPORARY TABLE IF NOT EXISTS s AS SELECT %s AS x"

    def change() -> None:
        with connection.cursor() as cursor:
            if POSTGRESQL:
                cursor.executemany(statement, [["1MB"], ["2MB"]])
            else:
                cursor.execute(statement, ["1"])

    fresh = stage.run(session)
    stage.run(change)
    assert stage.run(session) == fresh


@on_postgresql
def test_session_changed_by_a_composed_statement(stage: Stage) -> None:
    """Statements that psycopg composes are read like text."""
    from psycopg import sql as composed

    fresh = stage.run(session)
    stage.run(sql, composed.SQL("SET {} TO {}").format(composed.Identifier("work_mem"), composed.Literal("1MB")))
    assert stage.run(session) == fresh


@on_postgresql
def test_cursor_of_the_server_left_open_is_closed(stage: Stage) -> None:
    """C025: an iterator that somebody keeps does not keep the session."""

    def leave_cursor() -> None:
        cursor = connection.chunked_cursor()
        cursor.execute("SELECT generate_series(1, 1000)")
        kept.append(cursor)

    fresh = stage.run(report)
    stage.run(leave_cursor)
    assert stage.run(report) == fresh
    kept.pop().close()
