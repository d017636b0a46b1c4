"""A function inside a transaction: what it did to it is known before it ends."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction

from .stage import (
    CHANGES_SESSION,
    WELL_BEHAVED,
    Stage,
    insert,
    kept,
    leave_atomic_block,
    on_postgresql,
    report,
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
    fresh = stage.run(report)
    assert in_transaction(stage, lambda: transaction.on_commit(lambda: sql(CHANGES_SESSION))) == (None, True)
    assert stage.run(report) == fresh


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
