"""Timeouts of functions in real processes: on threads and as coroutines (pool default), and in children (pool imports)."""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_workpool import Workpool, call
from django_workpool.models import RunningWork

from .conftest import MainProcess
from .live import Live, failures, live_pair, result, results, texts, transactional_db, wait_for_quiet, wait_until
from .works.apps import STOP_VARIABLE
from .works.models import Counter
from .works.processes import where
from .works.stops import (
    TWICE,
    burn_first,
    burn_for,
    burn_with_timeout,
    change_and_burn,
    hold_in_c,
    hold_mutation_in_c,
    look_and_burn,
    sleep_in_c,
    swallow_cancelation,
    swallow_timeout,
    wait_for,
)
from .works.tasks import ended, note

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

SHORT, LONG = timedelta(milliseconds=150), timedelta(minutes=5)
TIMEOUT = "django_workpool.exceptions.WorkTimeout"
THREADS, CHILDREN = Workpool("default"), Workpool("imports")
both = pytest.mark.parametrize("pool", [THREADS, CHILDREN], ids=["threads", "children"])


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` with threads and one with children for the tests of this module."""
    env = {STOP_VARIABLE: "1"}
    with live_pair(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), env) as running:
        yield running


@pytest.fixture
def children(live: Live) -> MainProcess:
    return live.start.started[1]


def value(work_id: uuid.UUID) -> Any:
    """Wait until a work of any pool has succeeded, and return what it returned."""
    done = result(work_id)
    assert done.kind == "success", done.error
    return json.loads(done.value)


def count(path: Path) -> int:
    """Return how many lines a file has."""
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.slow
def test_a_function_that_takes_too_long_fails_and_one_that_does_not_succeeds(live: Live, tmp_path: Path) -> None:
    for pool in (THREADS, CHILDREN):
        short = pool.using(timeout=SHORT, on_complete=ended)
        late = [short.enqueue(burn_for, str(tmp_path), 60), short.enqueue(wait_for, str(tmp_path), 60)]
        late.append(pool.using(on_complete=ended).enqueue(burn_with_timeout, str(tmp_path), 60))
        in_time = [
            pool.using(timeout=LONG).enqueue(burn_for, str(tmp_path), 0.2),
            pool.using(timeout=LONG).enqueue(wait_for, str(tmp_path), 0),
        ]
        for one, text in zip(results(late), ("0.15 s", "0.15 s", "0.2 s"), strict=True):
            assert (one.kind, one.attempts, one.error) == ("failed", 1, f"it took longer than {text}")
            (failure,) = failures(one.id)
            assert (failure.class_path, failure.number) == (TIMEOUT, 1)
            assert texts("ended", one.id) == ["failed:None"]
        assert "compute" in failures(late[0])[0].traceback and "asyncio.sleep" in failures(late[1])[0].traceback
        assert [value(one) for one in in_time] == ["ended", "ended"]
    assert count(tmp_path / "canceled") == 2, "a coroutine is canceled"
    wait_for_quiet()


@pytest.mark.slow
@both
def test_it_is_a_failed_attempt_that_is_retried(live: Live, tmp_path: Path, pool: Workpool) -> None:
    again = pool.using(timeout=SHORT, retry=TWICE)
    first, always = again.enqueue(burn_first, str(tmp_path), 60), again.enqueue(burn_for, str(tmp_path), 60)
    assert (value(first), result(first).attempts) == ("ended", 2)
    assert (result(always).kind, result(always).attempts) == ("failed", 2)
    assert [(one.class_path, one.number) for one in failures(always)] == [(TIMEOUT, 1), (TIMEOUT, 2)]
    assert count(tmp_path / "begun") == 4


@both
def test_a_mutation_is_rolled_back_and_a_query_fails(live: Live, tmp_path: Path, pool: Workpool) -> None:
    short = pool.using(timeout=SHORT, on_complete=ended)
    mutation, name = short.enqueue(change_and_burn, str(tmp_path), f"late {pool.name}", 60), f"in time {pool.name}"
    query = short.enqueue(look_and_burn, str(tmp_path), 60)
    for one in results([mutation, query]):
        assert (one.kind, one.attempts, texts("ended", one.id)) == ("failed", 1, ["failed:None"])
        assert failures(one.id)[0].class_path == TIMEOUT
    assert not Counter.objects.filter(name=f"late {pool.name}").exists()
    assert value(pool.using(timeout=LONG).enqueue(change_and_burn, str(tmp_path), name, 0)) == 1
    assert Counter.objects.get(name=name).value == 1
    wait_for_quiet()


def test_a_call_into_c_ends_first_on_a_thread(live: Live, tmp_path: Path) -> None:
    began = time.monotonic()
    work = THREADS.using(timeout=SHORT).enqueue(sleep_in_c, str(tmp_path), 0.6)
    assert (result(work).kind, failures(work)[0].class_path) == ("failed", TIMEOUT)
    assert time.monotonic() - began > 0.6


def test_a_function_that_swallows_the_exception_goes_on_and_is_told_of(live: Live, tmp_path: Path) -> None:
    """On a thread and as a coroutine: it keeps its slot, its value counts, and the log says so once each."""
    for name, function in (("thread", swallow_timeout), ("coroutine", swallow_cancelation)):
        folder = tmp_path / name
        folder.mkdir()
        work = THREADS.using(timeout=SHORT, name=f"goes on as a {name}").enqueue(function, str(folder))
        event = f"event=overdue pool=default work_id={work}"
        live.main.wait_for(event, 30)
        assert count(folder / "caught") == 1
        assert RunningWork.objects.filter(work_id=work).exists()
        (folder / "go").touch()
        assert (value(work), result(work).attempts) == ("caught 1", 1)
        assert live.main.output().count(event) == 1
    wait_for_quiet()


@pytest.mark.slow
def test_a_child_that_does_not_obey_is_killed_once(live: Live, children: MainProcess, tmp_path: Path) -> None:
    """Swallowed, or held in C: the attempt fails, the child is replaced, the run beside it goes on."""
    beside = CHILDREN.enqueue(burn_for, str(tmp_path), 2.5)
    short = CHILDREN.using(timeout=SHORT, on_complete=ended)
    work = short.enqueue(swallow_timeout, str(tmp_path))
    assert (result(work).kind, result(work).error) == ("failed", "it took longer than 0.15 s, and its process was killed")
    held = short.using(retry=TWICE).enqueue(hold_in_c, str(tmp_path), 60)
    mutation = short.enqueue(hold_mutation_in_c, str(tmp_path), "held", 60)
    assert (result(held).kind, result(held).attempts) == ("failed", 2)
    assert (result(mutation).kind, result(mutation).attempts) == ("failed", 1)
    assert {failure.class_path for one in (work, held, mutation) for failure in failures(one)} == {TIMEOUT}
    assert not Counter.objects.filter(name="held").exists()
    assert (value(beside), result(beside).attempts) == ("ended", 1)
    for one, kills in ((work, 1), (held, 2), (mutation, 1)):
        assert children.output().count(f"event=killed pool=imports work_id={one}") == kills
        assert texts("ended", one) == ["failed:None"]
    assert "child_lost" not in children.output()
    # Two children are there again.
    assert len({value(one)["pid"] for one in CHILDREN.enqueue_many(where, [call(), call()] * 8)}) <= 2
    wait_for_quiet()


@pytest.mark.slow
@both
def test_the_timeout_in_the_moment_of_the_end(live: Live, tmp_path: Path, pool: Workpool) -> None:
    """200 tiny functions that take about as long as they may: one outcome each, and whatever runs on the same threads is not disturbed."""
    pool.configure(max_parallelism=2)
    Counter.objects.create(name=pool.name, value=0)
    try:
        short = pool.using(timeout=timedelta(milliseconds=4), on_complete=ended)
        ids = short.enqueue_many(burn_for, [call(str(tmp_path), 0.0038 + number % 20 * 0.00002) for number in range(120)])
        ids += short.enqueue_many(change_and_burn, [call(str(tmp_path), pool.name, 0.002 + number % 20 * 0.0001) for number in range(80)])
        others = pool.using(on_complete=ended).enqueue_many(note, [call(f"beside {pool.name} {number}") for number in range(50)])
        # Each of them that is interrupted costs its thread a new connection.
        done = results(ids, 180)
    finally:
        pool.configure(max_parallelism=10)
    for one in done:
        assert one.attempts == 1 and texts("ended", one.id) == [f"{one.kind}:None"]
        assert [failure.class_path for failure in failures(one.id)] == ([TIMEOUT] if one.kind == "failed" else [])
    changed = sum(one.kind == "success" for one in done[120:])
    assert Counter.objects.get(name=pool.name).value == changed
    assert {(one.kind, one.attempts) for one in results(others)} == {("success", 1)}
    assert "Traceback" not in live.main.output()
    wait_for_quiet()


def test_a_worker_that_is_stopped_ends_though_functions_have_a_timeout(live: Live, tmp_path: Path) -> None:
    """C047: in time, whatever the functions do; what may run again does so elsewhere."""
    other = live.start("--pool", "default", "--grace", "0.5", "--threads", "3", env={STOP_VARIABLE: "1"})
    other.wait_for("process_started", 60)
    THREADS.configure(max_parallelism=13)
    try:
        ids = THREADS.using(timeout=LONG, retry=TWICE).enqueue_many(swallow_timeout, [call(str(tmp_path))] * 13)
        # A row is there before its function has begun: without that it would be given back, not interrupted.
        wait_until(lambda: count(tmp_path / "begun") == 13)
        other.terminate()
        assert other.wait(20) == 0
        assert other.output().count("event=interrupted") == 3
        (tmp_path / "go").touch()
        assert {(one.kind, one.attempts) for one in results(ids)} == {("success", 1)}
    finally:
        THREADS.configure(max_parallelism=10)
    wait_for_quiet()
