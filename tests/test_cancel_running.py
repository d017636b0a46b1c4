"""Cancelation of works that run, in real processes: on threads and as coroutines (pool default), and in children (pool imports)."""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from django_workpool import RetryBehavior, Workpool, call
from django_workpool.models import PendingCancelation, PendingStart, RunningWork, Work

from .conftest import MainProcess
from .live import Live, failures, live_pair, result, results, texts, transactional_db, wait_for_quiet, wait_until
from .works.apps import LOST_VARIABLE, NO_KICK_VARIABLE, STOP_VARIABLE
from .works.models import Counter
from .works.stops import (
    TWICE,
    burn_for,
    change_until_told,
    end_when_told,
    hold_in_c,
    hold_mutation_in_c,
    look_at_itself,
    look_at_itself_async,
    look_at_itself_together,
    raise_canceled,
    stop_when_told,
    swallow_cancelation,
    swallow_timeout,
    wait_for,
)
from .works.tasks import ended, fail, note

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

FIVE = RetryBehavior(max_attempts=5, initial_backoff=timedelta(milliseconds=20))
CANCELED, TIMEOUT = "django_workpool.exceptions.WorkCanceled", "django_workpool.exceptions.WorkTimeout"
CANCELED_TASK = "asyncio.exceptions.CancelledError"
THREADS, CHILDREN = Workpool("default"), Workpool("imports")
POSTGRESQL = connection.vendor == "postgresql"
POOLS = {"threads": THREADS, "children": CHILDREN}
both = pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)


@pytest.fixture(scope="module", params=["told", "lost hints"])
def live(request: Any, django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` with threads and one with children; once with all hints, once with none but what is polled."""
    env = {STOP_VARIABLE: "1", **({} if request.param == "told" else {NO_KICK_VARIABLE: "1", LOST_VARIABLE: "1"})}
    with live_pair(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), env) as running:
        yield running


@pytest.fixture
def children(live: Live) -> MainProcess:
    return live.start.started[1]


def begun(folder: Path, number: int = 1) -> None:
    """Wait until so many functions have begun."""
    wait_until(lambda: count(folder / "begun") >= number)


def count(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def check_canceled(work_id: uuid.UUID, class_path: str = CANCELED, *, called_back: bool = True) -> None:
    """Hold the end of a work whose function has stopped to what is promised: canceled, one attempt counted and kept, one callback."""
    done = result(work_id)
    assert (done.kind, done.attempts, done.error) == ("canceled", 1, "canceled")
    assert [(one.number, one.class_path) for one in failures(work_id)] == [(1, class_path)]
    assert texts("ended", work_id) == (["canceled:None"] if called_back else [])


@pytest.mark.slow
@both
def test_functions_that_look_stop(live: Live, tmp_path: Path, pool: Workpool) -> None:
    """With retries left and without."""
    ids = [pool.using(on_complete=ended, retry=retry).enqueue(stop_when_told, str(tmp_path)) for retry in (FIVE, False)]
    begun(tmp_path, 2)
    assert [pool.cancel(one) for one in ids] == [True, True]
    for one in ids:
        check_canceled(one)
    wait_for_quiet()


@both
@pytest.mark.skipif(connection.vendor == "sqlite", reason="on SQLite nobody can write a cancelation while a mutation runs")
def test_mutations_that_look_are_rolled_back(live: Live, tmp_path: Path, pool: Workpool) -> None:
    mutation = pool.using(on_complete=ended).enqueue(change_until_told, str(tmp_path), f"canceled {pool.name}")
    begun(tmp_path)
    assert pool.cancel(mutation) and not pool.cancel(mutation)
    check_canceled(mutation)
    assert not Counter.objects.filter(name=f"canceled {pool.name}").exists()
    wait_for_quiet()


@both
def test_coroutines_are_canceled(live: Live, tmp_path: Path, pool: Workpool) -> None:
    ids = pool.using(on_complete=ended, retry=FIVE).enqueue_many(wait_for, [call(str(tmp_path), 300)] * 3)
    plain = pool.enqueue(wait_for, str(tmp_path), 300)
    begun(tmp_path, 4)
    for one in (*ids, plain):
        assert pool.cancel(one)
    for one in ids:
        check_canceled(one, CANCELED_TASK)
    check_canceled(plain, CANCELED_TASK, called_back=False)
    assert count(tmp_path / "canceled") == 4
    wait_for_quiet()


@both
def test_a_success_stays_a_success(live: Live, tmp_path: Path, pool: Workpool) -> None:
    work = pool.using(on_complete=ended, retry=FIVE).enqueue(end_when_told, str(tmp_path))
    begun(tmp_path)
    assert pool.cancel(work)
    assert (result(work).kind, json.loads(result(work).value), texts("ended", work)) == ("success", "ended well", ["success:None"])
    wait_for_quiet()


@both
def test_a_function_that_says_so_without_being_told_fails(live: Live, tmp_path: Path, pool: Workpool) -> None:
    work = pool.using(on_complete=ended, retry=TWICE).enqueue(raise_canceled, str(tmp_path))
    assert (result(work).kind, result(work).attempts, result(work).error) == ("failed", 2, "by nobody")
    assert (count(tmp_path / "begun"), texts("ended", work)) == (2, ["failed:None"])


@pytest.mark.slow
def test_children_that_do_not_stop_are_killed_once_and_alone(live: Live, children: MainProcess, tmp_path: Path) -> None:
    """Whatever they do; the run beside them goes on, and no attempt follows."""
    beside = CHILDREN.enqueue(burn_for, str(tmp_path), 3)
    begun(tmp_path)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (swallow_timeout, (str(tmp_path),)),
        (hold_in_c, (str(tmp_path), 60)),
    ]
    if POSTGRESQL:
        calls.append((hold_mutation_in_c, (str(tmp_path), "killed", 60)))
    for number, (function, arguments) in enumerate(calls):
        retry = None if function is hold_mutation_in_c else FIVE
        work = CHILDREN.using(on_complete=ended, retry=retry).enqueue(function, *arguments)
        begun(tmp_path, 2 + number)
        assert CHILDREN.cancel(work)
        check_canceled(work)
        assert children.output().count(f"event=killed pool=imports work_id={work}") == 1
    assert not Counter.objects.filter(name="killed").exists()
    assert (json.loads(result(beside).value), result(beside).attempts) == ("ended", 1)
    wait_for_quiet()


@pytest.mark.slow
def test_a_coroutine_that_swallows_its_cancelation_goes_on(live: Live, tmp_path: Path) -> None:
    """It is told once, and its value counts."""
    work = THREADS.using(on_complete=ended).enqueue(swallow_cancelation, str(tmp_path))
    wait_until(lambda: RunningWork.objects.filter(work_id=work).exists())
    time.sleep(0.1)
    assert THREADS.cancel(work)
    wait_until((tmp_path / "caught").exists)
    wait_until(lambda: Work.objects.get(id=work).canceled)
    # Two pulses, in which it is found again.
    time.sleep(2.2)
    (tmp_path / "go").touch()
    assert (result(work).kind, json.loads(result(work).value)) == ("success", "caught 1")
    wait_for_quiet()


@both
def test_cancel_all_tells_what_runs(live: Live, tmp_path: Path, pool: Workpool) -> None:
    ids = pool.using(on_complete=ended, retry=FIVE).enqueue_many(stop_when_told, [call(str(tmp_path))] * 2)
    waiting = pool.using(delay=timedelta(hours=1)).enqueue(note, "never")
    begun(tmp_path, 2)
    pool.cancel_all()
    for one in ids:
        check_canceled(one)
    assert (result(waiting).kind, result(waiting).attempts) == ("canceled", 0)
    wait_for_quiet()


@both
def test_what_is_rolled_back_tells_nobody(live: Live, tmp_path: Path, pool: Workpool) -> None:
    work = pool.enqueue(stop_when_told, str(tmp_path))
    begun(tmp_path)
    with transaction.atomic():
        assert pool.cancel(work)
        transaction.set_rollback(True)
    time.sleep(0.3)
    assert not Work.objects.get(id=work).canceled
    assert pool.cancel(work)
    check_canceled(work, called_back=False)
    wait_for_quiet()


@both
def test_cancelation_and_timeout_together(live: Live, tmp_path: Path, pool: Workpool) -> None:
    """In the same moments: one end each, and if any attempt has failed by the timeout, no other one followed the cancelation."""
    pool.configure(max_parallelism=4)
    try:
        short = pool.using(on_complete=ended, retry=FIVE, timeout=timedelta(milliseconds=120))
        ids = short.enqueue_many(stop_when_told, [call(str(tmp_path))] * 10) + short.enqueue_many(wait_for, [call(str(tmp_path), 60)] * 10)
        for one in ids:
            time.sleep(0.03)
            pool.cancel(one)
        done = results(ids)
    finally:
        pool.configure(max_parallelism=10)
    # What was canceled before its first attempt is told of by a callback work, after its result is there.
    wait_for_quiet()
    for one in done:
        assert one.kind == "canceled" or (one.kind, one.attempts) == ("failed", 5), one
        assert texts("ended", one.id) == [f"{one.kind}:None"]
        paths = [failure.class_path for failure in failures(one.id)]
        assert len(paths) == one.attempts
        assert set(paths[:-1]) <= {TIMEOUT} and set(paths[-1:]) <= {TIMEOUT, CANCELED, CANCELED_TASK}


@both
def test_cancelation_while_it_waits_for_its_retry(live: Live, pool: Workpool) -> None:
    slow = RetryBehavior(max_attempts=5, initial_backoff=timedelta(minutes=5))
    work = pool.using(retry=slow, on_complete=ended).enqueue(fail, f"waits {pool.name}")
    wait_until(lambda: PendingStart.objects.filter(work_id=work).exists() and Work.objects.get(id=work).attempts == 1)
    assert pool.cancel(work)
    assert (result(work).kind, result(work).attempts) == ("canceled", 1)
    wait_for_quiet()
    assert texts("ended", work) == ["canceled:None"]


@pytest.mark.slow
@both
def test_cancelations_that_meet_the_end_of_the_function(live: Live, tmp_path: Path, pool: Workpool) -> None:
    """C051: in the same milliseconds: one end, one callback each, no attempt more, nothing left over."""
    pool.configure(max_parallelism=4)
    try:
        ids = pool.using(on_complete=ended, retry=FIVE).enqueue_many(burn_for, [call(str(tmp_path), 0.02)] * 60)
        for one in ids:
            wait_until(lambda one=one: not PendingStart.objects.filter(work_id=one).exists(), poll=0.001)
            pool.cancel(one)
        done = results(ids)
    finally:
        pool.configure(max_parallelism=10)
    wait_for_quiet()
    for one in done:
        assert (one.kind, one.attempts) in {("success", 1), ("canceled", 0), ("canceled", 1)}
        assert texts("ended", one.id) == [f"{one.kind}:None"]
    assert PendingCancelation.objects.count() == 0
    assert live.main.process.poll() is None


@both
def test_what_a_function_is_told_of_its_work(live: Live, pool: Workpool) -> None:
    named = pool.using(name="a label")
    for function in (look_at_itself, look_at_itself_async, look_at_itself_together):
        ids = named.enqueue_many(function, [call()] * 3)
        for one in results(ids):
            told = {"work_id": str(one.id), "pool": pool.name, "name": "a label", "attempt": 1, "canceled": False}
            assert json.loads(one.value) == told


@pytest.mark.slow
def test_what_waits_in_its_process_does_not_begin(live: Live, tmp_path: Path) -> None:
    """Assigned, but behind another one: it ends as canceled, without an attempt."""
    other = live.start("--pool", "default", "--threads", "1", "--prefetch", "5", env={STOP_VARIABLE: "1"})
    other.wait_for("process_started", 60)
    THREADS.configure(max_parallelism=40)
    try:
        ids = THREADS.using(on_complete=ended).enqueue_many(end_when_told, [call(str(tmp_path))] * 16)
        wait_until(lambda: RunningWork.objects.filter(work_id__in=ids).count() == 16)
        begun(tmp_path, 11)
        # At once: else one that ends lets another one begin.
        with transaction.atomic():
            assert all([THREADS.cancel(one) for one in ids])
        done = results(ids)
    finally:
        THREADS.configure(max_parallelism=10)
    assert sorted((one.kind, one.attempts) for one in done) == [("canceled", 0)] * 5 + [("success", 1)] * 11
    assert count(tmp_path / "begun") == 11
    wait_for_quiet()
    other.terminate()
    assert other.wait(20) == 0
