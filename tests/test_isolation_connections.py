"""Isolation keeps connections that are well, and replaces those that are not."""

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db.utils import load_backend
from django.test import override_settings

from django_workpool.execution.watch import Session, session_state

from .stage import (
    WELL_BEHAVED,
    Stage,
    backend,
    insert,
    kept,
    leave_atomic_block,
    on_postgresql,
    rows,
    sql,
    swallow_an_error,
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


@on_postgresql
def test_connection_of_djangos_pool_is_given_back_after_each_function(stage: Stage) -> None:
    """A thread that kept it would leave none to the others."""

    def use_a_pool() -> Any:
        connections[connection.alias].close()
        settings = {**connection.settings_dict, "OPTIONS": {**connection.settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 1}}}
        connections[connection.alias] = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, connection.alias)
        connection.ensure_connection()
        return connection.connection

    first = stage.run(use_a_pool)
    assert stage.do(lambda: connection.connection) is None
    assert stage.run(lambda: connection.ensure_connection() or connection.connection) is first
    stage.do(lambda: connection.close_pool())  # type: ignore[attr-defined]


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

    # Opening a connection may cost some, too.
    stage.run(sql, "SELECT 1")
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


def test_unwatched_statements_cost_no_connection(stage: Stage) -> None:
    """The pool changes a session and changes it back itself."""
    statements = {
        "postgresql": ("SET work_mem = '1MB'", "RESET work_mem"),
        "mysql": ("SET time_zone = '+09:00'", "SET time_zone = 'SYSTEM'"),
        "sqlite": ("PRAGMA query_only = ON", "PRAGMA query_only = OFF"),
    }[connection.vendor]

    def own() -> None:
        with stage.isolation.function("tests.own"), stage.isolation.unwatched():
            for statement in statements:
                sql(statement)

    stage.run(backend)
    before = stage.do(lambda: connection.connection)
    stage.do(own)
    assert stage.do(lambda: connection.connection) is before


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


def test_database_in_memory_survives(stage: Stage) -> None:
    """SQLite's would end with its connection: there only the transaction is rolled back."""
    memory = {**connection.settings_dict, "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}

    def replace() -> None:
        connections["default"] = load_backend(memory["ENGINE"]).DatabaseWrapper(memory, "default")
        sql("CREATE TABLE isolation_probe (id integer)")

    stage.run(replace)
    stage.run(insert, 2)
    stage.run(leave_atomic_block)
    assert stage.run(rows) == [2]
    assert stage.run(lambda: connection.in_atomic_block) is False
    stage.do(lambda: connection.connection.close())
