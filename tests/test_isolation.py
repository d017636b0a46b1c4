"""A function leaves its thread as it found it: connections, transactions, sessions, context and working directory."""

import contextvars
import gc
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import getcontext
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import override_settings
from django.utils import timezone, translation

from django_workpool.execution.isolation import Isolation
from django_workpool.execution.statements import Effect, effect_of
from django_workpool.execution.watch import Session, session_state

POSTGRESQL = connection.vendor == "postgresql"
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


def session() -> dict[str, Any]:
    """What a session shows of its settings and of what is kept in it."""
    if POSTGRESQL:
        state = {name: sql(f"SHOW {name}")[0][0] for name in SETTINGS}
        state["cursors"] = sql("SELECT name FROM pg_cursors WHERE statement NOT LIKE '%%pg_cursors%%'")
        state["prepared"] = sql("SELECT name FROM pg_prepared_statements")
        state["locks"] = sql("SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        state["channels"] = sql("SELECT pg_listening_channels()")
        state["temporary"] = sql("SELECT relname FROM pg_class WHERE relpersistence = 't'")
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


def leave_autocommit_off_in_a_failed_transaction() -> None:
    connection.set_autocommit(False)
    insert(1)
    with suppress(DatabaseError):
        sql("SELECT * FROM no_such_table")


def leave_atomic_block() -> None:
    transaction.atomic().__enter__()
    insert(1)
    transaction.on_commit(lambda: kept.append("committed"))


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
    raw = connection.connection
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
    statement = "SET search_path TO pg_catalog" if POSTGRESQL else "PRAGMA recursive_triggers = ON"
    other = Stage()
    try:
        fresh = other.run(session)
    finally:
        other.leave()
    stage.run(sql, statement)
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
        else:
            sql("PRAGMA foreign_key_check")
            sql("PRAGMA table_info(isolation_probe)")


WELL_BEHAVED = (read_in_chunks, write_in_nested_atomic_blocks, set_locally)


def test_connection_of_a_well_behaved_function_stays_open(stage: Stage, probe: None, caplog: pytest.LogCaptureFixture) -> None:
    """Isolation costs no new connection where nothing was left."""
    stage.run(rows)
    before = stage.do(lambda: connection.connection)
    for function in (*WELL_BEHAVED, swallow_an_error):
        stage.run(function)
        assert stage.do(lambda: connection.connection) is before, function.__name__
    assert warnings_in(caplog) == []


def test_connection_stays_open_with_conn_max_age_of_zero(stage: Stage) -> None:
    """Django's default is meant for requests; a worker would connect for each function."""
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    first = stage.run(lambda: connection.ensure_connection() or connection.connection)
    assert stage.run(lambda: connection.connection) is first


def test_connection_older_than_conn_max_age_is_replaced(stage: Stage) -> None:
    """A project that names an age gets it."""

    def age() -> Any:
        connection.ensure_connection()
        connection.close_at = time.monotonic() - 1
        return connection.connection

    first = stage.run(age)
    stage.do(lambda: connection.settings_dict.update(CONN_MAX_AGE=60))
    try:
        assert stage.run(lambda: connection.ensure_connection() or connection.connection) is not first
    finally:
        stage.do(lambda: connection.settings_dict.update(CONN_MAX_AGE=0))


def test_function_that_closes_connections_does_not_harm_the_next(stage: Stage, probe: None) -> None:
    """C021 (b): the result stands, the next function works."""

    def closer(number: int, close: Callable[[], None]) -> str:
        insert(number)
        close()
        return "done"

    ways: tuple[Callable[[], None], ...] = (connections.close_all, lambda: connection.close(), lambda: connection.connection.close())
    for number, close in enumerate(ways):
        assert stage.run(closer, number, close) == "done"
        assert stage.run(rows) == list(range(number + 1))


@on_postgresql
def test_connection_closed_by_the_server_while_idle_is_replaced(stage: Stage, wait_until: Callable[..., None]) -> None:
    """The next function does not meet the corpse, and no statement is spent on finding out."""
    pid = stage.run(backend)
    sql("SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: not sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]))
    assert stage.run(backend) != pid


@on_postgresql
def test_connection_lost_inside_a_function_is_replaced(stage: Stage) -> None:
    """A function that swallows the loss leaves no dead connection."""

    def lose() -> str:
        with pytest.raises(OperationalError):
            sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return "swallowed"

    pid = stage.run(backend)
    assert stage.run(lose) == "swallowed"
    assert stage.run(backend) != pid


@override_settings(DEBUG=True)
def test_log_of_statements_does_not_grow(stage: Stage) -> None:
    """C066: under DEBUG the connection keeps nothing after the function."""

    def query() -> int:
        for _ in range(10):
            sql("SELECT 1")
        return len(connection.queries_log)

    assert [stage.run(query) for _ in range(3)] == [10, 10, 10]
    assert stage.do(lambda: len(connection.queries_log)) == 0


def test_wrappers_of_the_function_are_its_own_matter(stage: Stage) -> None:
    """A function may enter and leave execute wrappers as always, and the watching one is innermost to none of them."""
    seen: list[str] = []

    def wrapper(execute: Callable[..., Any], statement: str, *args: Any) -> Any:
        seen.append(statement)
        return execute(statement, *args)

    def wrapped() -> list[int]:
        before = len(connection.execute_wrappers)
        with connection.execute_wrapper(wrapper):
            sql("SELECT 1")
        return [before, len(connection.execute_wrappers)]

    stage.run(sql, "SELECT 0")
    assert stage.run(wrapped) == [1, 1]
    assert seen == ["SELECT 1"]
    assert stage.do(lambda: connection.execute_wrappers) == []


def test_function_that_removes_the_watch_gets_a_new_connection(stage: Stage) -> None:
    """What nobody has seen is not trusted."""
    stage.run(backend)
    before = stage.do(lambda: connection.connection)
    stage.run(lambda: connection.execute_wrappers.clear())
    assert stage.do(lambda: connection.connection) is None
    assert before is not None


def test_replaced_connection_object_is_learnt(stage: Stage, probe: None) -> None:
    """A function that throws Django's wrapper away is isolated on the next one as well."""

    def replace() -> None:
        del connections["default"]
        leave_atomic_block()

    stage.run(backend)
    stage.run(replace)
    assert stage.run(rows) == []
    assert stage.run(lambda: connection.in_atomic_block) is False


def in_transaction(stage: Stage, function: Callable[[], Any]) -> tuple[str | None, bool]:
    """Run ``function`` as a mutation is run; return what it left and whether the transaction could end well."""

    def mutate() -> tuple[str | None, bool]:
        left: str | None = None
        with stage.isolation.function("tests.mutation"):
            try:
                with transaction.atomic(durable=True):
                    stage.isolation.call(function)
                    left = stage.isolation.leftovers("default")
                    if left is not None:
                        raise RuntimeError(left)
            except (RuntimeError, DatabaseError):
                return left, False
        return left, True

    result: tuple[str | None, bool] = stage.do(mutate)
    return result


def close_in_transaction() -> None:
    insert(1)
    connection.close()


def leave_its_block() -> None:
    insert(1)
    connection.savepoint_ids.clear()
    connection.in_atomic_block = False


def swallow_in_transaction() -> None:
    insert(1)
    with suppress(DatabaseError), transaction.atomic(savepoint=False):
        insert(1)


def commit_by_statement() -> None:
    insert(1)
    sql("ROLLBACK")
    sql("BEGIN")


def end_by_driver() -> None:
    insert(1)
    connection.connection.rollback()


ABORTED = "went on after an error of the database that had aborted the transaction"
DAMAGES: list[tuple[Callable[[], Any], str]] = [
    (close_in_transaction, "closed the connection inside the transaction"),
    (connections.close_all, "closed the connection inside the transaction"),
    (leave_atomic_block, "left an atomic block open"),
    (leave_its_block, "left an atomic block that it had not entered"),
    (swallow_in_transaction, ABORTED),
    (lambda: transaction.set_rollback(True), ABORTED),
    (commit_by_statement, "ended the transaction with a statement of its own"),
    (end_by_driver, "ended the transaction with a statement of its own"),
]


def test_damage_to_a_surrounding_transaction_is_told(stage: Stage, probe: None) -> None:
    """C021 (b): a mutation that cannot go on is known before it is completed, nothing of it stays, the next one works."""
    for number, (function, left) in enumerate(DAMAGES, start=10):
        assert in_transaction(stage, function) == (left, False)
        assert 1 not in stage.run(rows)
        assert in_transaction(stage, lambda number=number: insert(number)) == (None, True)
        assert number in stage.run(rows)


@on_postgresql
def test_swallowed_error_that_django_does_not_know_of_is_told(stage: Stage, probe: None) -> None:
    """PostgreSQL aborts the transaction at any error, Django marks it only at the end of an atomic block."""
    assert in_transaction(stage, swallow_an_error) == (ABORTED, False)


def test_surrounding_transaction_that_is_unharmed(stage: Stage, probe: None) -> None:
    """What a mutation may do is not complained about."""
    for function in (*WELL_BEHAVED, lambda: None, lambda: insert(1)):
        assert in_transaction(stage, function) == (None, True)


def test_hooks_on_commit_are_isolated_too(stage: Stage, probe: None) -> None:
    """What a mutation's on_commit hook leaves behind is put right with the function."""
    statement = "SET search_path TO pg_catalog" if POSTGRESQL else "PRAGMA recursive_triggers = ON"
    fresh = stage.run(report)
    assert in_transaction(stage, lambda: transaction.on_commit(lambda: sql(statement))) == (None, True)
    assert stage.run(report) == fresh


def test_unwatched_statements_cost_no_connection(stage: Stage) -> None:
    """The pool changes a session and changes it back itself."""
    statements = ("SET work_mem = '1MB'", "RESET work_mem") if POSTGRESQL else ("PRAGMA query_only = ON", "PRAGMA query_only = OFF")

    def own() -> None:
        with stage.isolation.function("tests.own"), stage.isolation.unwatched():
            for statement in statements:
                sql(statement)

    stage.run(backend)
    before = stage.do(lambda: connection.connection)
    stage.do(own)
    assert stage.do(lambda: connection.connection) is before


def test_transaction_of_the_caller_is_left_alone(stage: Stage, probe: None, caplog: pytest.LogCaptureFixture) -> None:
    """C021 (c): inside a test's own transaction nothing is closed, whatever the function did."""

    def eager() -> tuple[bool, list[int]]:
        with transaction.atomic():
            insert(1)
            raw = connection.connection
            with stage.isolation.function("tests.eager"):
                stage.isolation.call(sql, ["CREATE TEMPORARY TABLE scratch (id int)"])
            with stage.isolation.function("tests.eager"):
                stage.isolation.call(insert, [2])
            return connection.connection is raw, rows()

    assert stage.do(eager) == (True, [1, 2])
    assert stage.run(rows) == [1, 2]
    assert warnings_in(caplog) == []


def test_damage_to_the_transaction_of_the_caller_is_warned_of(stage: Stage, probe: None, caplog: pytest.LogCaptureFixture) -> None:
    """It is the caller's to repair."""

    def eager() -> None:
        with transaction.atomic():
            block = transaction.atomic()
            with stage.isolation.function("tests.eager"):
                stage.isolation.call(block.__enter__)
            assert warnings_in(caplog) == [
                "tests.eager left an atomic block open: the connection 'default' belongs to a surrounding transaction, and stays so."
            ]
            block.__exit__(None, None, None)

    stage.do(eager)


def test_begin_after_a_run_without_end_ends_it(stage: Stage, probe: None) -> None:
    """A run that broke off between begin and end does not reach the next function."""

    def broken_off() -> None:
        stage.isolation.begin("tests.broken")
        stage.isolation.call(leave_atomic_block)

    stage.do(broken_off)
    assert stage.run(lambda: connection.in_atomic_block) is False
    assert stage.run(rows) == []


def test_end_never_raises(stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A connection that cannot even be looked at is closed."""

    def leave_trap() -> None:
        connection.ensure_connection()
        kept.append(connection.connection)
        connections["default"].settings_dict = None  # type: ignore[assignment]

    stage.run(backend)
    settings = stage.do(lambda: connection.settings_dict)
    stage.run(leave_trap)
    stage.do(lambda: setattr(connections["default"], "settings_dict", settings))
    assert session_state(kept[0]) is Session.CLOSED
    assert "could not be restored" in caplog.text
    stage.run(backend)


def test_nothing_of_a_function_is_kept(stage: Stage) -> None:
    """C066: arguments and results are free as soon as the call has returned."""

    class Big:
        pass

    def make(big: Big) -> Big:
        return big

    big = Big()
    gone = weakref.ref(big)
    stage.run(make, big)
    del big
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("statement", "effect"),
    [
        ("SELECT 1", Effect.NONE),
        ("  \n UPDATE t SET a = 1", Effect.NONE),
        ("UPDATE t SET a = 1; DELETE FROM t", Effect.NONE),
        ("INSERT INTO t VALUES (';', 'template', ' temperature')", Effect.NONE),
        ("SAVEPOINT s", Effect.NONE),
        ("RELEASE SAVEPOINT s", Effect.NONE),
        ("ROLLBACK TO SAVEPOINT s", Effect.NONE),
        ("rollback work to s", Effect.NONE),
        ("SET LOCAL work_mem = 1", Effect.NONE),
        ("SET  TRANSACTION ISOLATION LEVEL SERIALIZABLE", Effect.NONE),
        ("set constraints all deferred", Effect.NONE),
        ("COMMIT PREPARED 'x'", Effect.NONE),
        ("BEGIN IMMEDIATE", Effect.NONE),
        ("SELECT set_config('a.b', %s, true)", Effect.NONE),
        ("SELECT pg_advisory_xact_lock(1)", Effect.NONE),
        ("PRAGMA foreign_key_check", Effect.NONE),
        ("PRAGMA table_info('t')", Effect.NONE),
        ("PRAGMA journal_mode", Effect.NONE),
        ("CREATE TABLE attempts (a int)", Effect.NONE),
        ("CREATE TRIGGER t BEGIN UPDATE x SET a = 1; END; END", Effect.NONE),
        ("SELECT a FROM b WHERE c = ' set x'", Effect.NONE),
        ("SET x = 1", Effect.SESSION),
        ("set session characteristics as transaction read only", Effect.SESSION),
        ("(SELECT set_config('a', 'b', false))", Effect.SESSION),
        ("SELECT set_config('a', lower('B'), true)", Effect.SESSION),
        ("/* a */ -- b\n /* c\n */ Reset ALL", Effect.SESSION),
        ("SELECT 1;\n--x\nSET a = 1", Effect.SESSION),
        ("create or replace temp view v as select 1", Effect.SESSION),
        ("CREATE LOCAL TEMPORARY TABLE t (a int)", Effect.SESSION),
        ("SELECT 1 INTO\nTEMP t", Effect.SESSION),
        ("DISCARD ALL", Effect.SESSION),
        ("UNLISTEN *", Effect.SESSION),
        ("PRAGMA journal_mode = DELETE", Effect.SESSION),
        ("PRAGMA main.synchronous(0)", Effect.SESSION),
        ("detach other", Effect.SESSION),
        (b"SET x = 1", Effect.SESSION),
        (object(), Effect.SESSION),
        ("COMMIT", Effect.TRANSACTION),
        ("/* x */ end", Effect.TRANSACTION),
        ("ROLLBACK", Effect.TRANSACTION),
        ("abort work", Effect.TRANSACTION),
        ("PREPARE TRANSACTION 'x'", Effect.TRANSACTION),
        ("COMMIT; SET x = 1", Effect.TRANSACTION | Effect.SESSION),
    ],
)
def test_effect_of_statements(statement: Any, effect: Effect) -> None:
    """What a statement leaves in its session is read from its text."""
    assert effect_of(statement, None) is effect


@pytest.mark.parametrize("text", ["INSERT INTO t VALUES " + "(1, 'a;b');" * 200_000, ";" * 1_000_000, "(" * 1_000_000, "/*" * 500_000])
def test_long_statements_are_read_in_linear_time(text: str) -> None:
    """A statement of megabytes is looked through within a second or so."""
    began = time.process_time()
    effect_of(text, None)
    assert time.process_time() - began < 5
