"""The helpers for tests in a project with several databases, in tests that may use one of them only."""

import unittest
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import TestCase
from django.utils import timezone

from django_workpool import Workpool, batch, enqueue
from django_workpool.database import database
from django_workpool.testing import assert_enqueued, capture_work, eager, enqueued, run_work, travel

from . import helped
from .second import SECOND, second_database


@pytest.fixture(autouse=True)
def two(django_db_setup: None, django_db_blocker: Any, test_database_url: str, settings: Any) -> Iterator[None]:
    """Two pools, each in a database of its own."""
    with django_db_blocker.unblock(), second_database(test_database_url, "same"):
        call_command("migrate", database=SECOND, verbosity=0)
        # The first one that is asked is the one that the tests may not use.
        settings.WORKPOOLS = {"far": {"DATABASE": SECOND, "FUNCTIONS": ["tests"]}, "default": {"DATABASE": "default"}}
        yield


def run(body: Callable[[], None], *names: str) -> list[str]:
    """Run a body as a test case that may use these databases; return the last line of what went wrong."""

    class Case(TestCase):
        databases = frozenset(names)

        def runTest(self) -> None:
            body()

    result = unittest.TestResult()
    unittest.TestSuite([Case()]).run(result)
    return [text.strip().splitlines()[-1] for _, text in result.failures + result.errors]


def running() -> None:
    enqueue(helped.add, 1)
    (ran,) = run_work()
    assert (ran.value, [one.function for one in enqueued()]) == (2, ["tests.helped.add"])


def looking() -> None:
    with capture_work() as captured:
        work_id = enqueue(helped.add, 1)
    assert [one.work_id for one in captured] == [assert_enqueued(helped.add, 1).work_id] == [work_id]


def moving() -> None:
    Workpool().using(delay=timedelta(days=1)).enqueue(helped.add, 1)
    with travel(timezone.now() + timedelta(days=1, seconds=1)):
        assert [one.value for one in run_work()] == [2]
    with travel(timedelta(days=1)):
        assert run_work() == []
    assert database(SECOND).ahead_ms == database("default").ahead_ms == 0


def at_once() -> None:
    with eager(), batch() as filled:
        filled.enqueue(helped.add, 1)
    status = filled.status()
    assert status is not None and status.succeeded == 1


@pytest.mark.parametrize("body", [running, looking, moving, at_once])
def test_the_other_database_is_left_alone(body: Callable[[], None]) -> None:
    assert run(body, "default") == []
    assert run(body, "default", SECOND) == []


def test_a_pool_that_is_asked_for_is_not_passed_over() -> None:
    (told,) = run(lambda: run_work("far") and None, "default")
    assert f"Database queries to '{SECOND}' are not allowed in this test" in told
    (told,) = run(lambda: enqueued(pool="far") and None, "default")
    assert SECOND in told
    (told,) = run(lambda: run_work() and None)
    assert "are not allowed in this test" in told


def test_both_take_part_where_both_may_be_used() -> None:
    def both() -> None:
        Workpool("far").enqueue(helped.add, 1)
        Workpool().enqueue(helped.add, 2)
        assert [(one.pool, one.value) for one in run_work()] == [("far", 2), ("default", 3)]
        assert [connections[alias].in_atomic_block for alias in ("default", SECOND)] == [True, True]

    assert run(both, "default", SECOND) == []
