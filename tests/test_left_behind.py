"""What functions leave behind in the process itself: copies of it, signals, threads, connections on threads of their own."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_workpool import Workpool, call

from .live import Live, children, lines, live_pair, result, results, transactional_db, value, wait_for_quiet, wait_until
from .works.apps import QUICK_VARIABLE
from .works.behind import count_beside, end_a_process, fork_async, fork_mutation, leave_signals, look_at_signals, step_async
from .works.processes import fork

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

#: Its functions run in two children.
CHILDREN = Workpool("imports")


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run a ``workpool_main`` with threads and one with children."""
    with live_pair(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), {QUICK_VARIABLE: "1"}) as running:
        yield running


@pytest.mark.parametrize("returns", [False, True])
def test_a_copy_that_returns_from_a_function_on_a_thread_ends(live: Live, returns: bool) -> None:
    """It would stay for ever: a copy of the whole process, with nobody to hear what it has to say."""
    ids = Workpool().enqueue_many(fork, [call(returns)] * 3)
    assert {value(one)[0] for one in ids} == {0 if returns else 7}
    assert children(live.main.process.pid) == set()


@pytest.mark.parametrize("pool", ["default", "imports"])
def test_a_copy_that_returns_from_a_mutation_completes_nothing(live: Live, pool: str, tmp_path: Path) -> None:
    """Its connection is one of its own, outside of the transaction: the work ends once, by the original."""
    original = result(Workpool(pool).enqueue(fork_mutation, str(tmp_path / "pids")))
    assert (original.kind, original.attempts) == ("success", 1)
    assert int(original.value) > 0
    assert len(lines(tmp_path / "pids")) == 2
    wait_for_quiet()


def test_a_copy_that_a_coroutine_has_forked_runs_nothing_else(live: Live, tmp_path: Path) -> None:
    """The loop goes on in the original alone: no step of the others is made twice, and the copy ends at its first wait."""
    steps = Workpool().enqueue_many(step_async, [call(str(tmp_path / "steps"), 200)] * 5)
    wait_until(lambda: len(lines(tmp_path / "steps")) > 50)
    forked = Workpool().enqueue_many(fork_async, [call(str(tmp_path / "copies"))] * 3)
    assert [value(one) for one in forked] == [[0]] * 3
    assert [value(one) for one in steps] == [200] * 5
    assert Counter(lines(tmp_path / "steps")) == {live.main.process.pid: 1000}
    assert lines(tmp_path / "copies") == []
    assert children(live.main.process.pid) == set()


@pytest.mark.parametrize("pool", ["default", "imports"])
def test_processes_that_a_function_has_forked_can_be_ended(live: Live, pool: str) -> None:
    """They have what this process does at a signal from it, but that is not for them: whoever waits for their end would wait for ever."""
    ended = results(Workpool(pool).enqueue_many(end_a_process, [call(signal.SIGTERM), call(signal.SIGINT)]))
    assert [(one.kind, one.value) for one in ended] == [("success", str(-signal.SIGTERM)), ("success", "1")]


@pytest.mark.slow
def test_timers_and_signals_of_a_function_are_not_the_next_ones(live: Live) -> None:
    """In a child, functions have the main thread: a timer that was left would end the next one, as a handler would take its signals."""
    before = result(CHILDREN.enqueue(look_at_signals, 0)).value
    for what in ("timer", "handlers", "timer"):
        assert {one.kind for one in results(CHILDREN.enqueue_many(leave_signals, [call(what)] * 4))} == {"success"}
        looks = CHILDREN.enqueue_many(look_at_signals, [call(0.5)] * 4)
        assert [(one.kind, one.value) for one in results(looks)] == [("success", before)] * 4


def test_connections_on_threads_of_coroutines_are_replaced_when_they_are_lost(live: Live) -> None:
    """C017, for synchronous code that asgiref runs on any thread: those of the loop live as long as the process."""
    assert value(Workpool().enqueue(count_beside, 20)) == 20
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            cursor.execute(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {others}")
            assert cursor.fetchone()[0] > 3
    assert [value(one) for one in [Workpool().enqueue(count_beside, 20) for _ in range(3)]] == [20, 20, 20]
