"""Cancelations that meet a run, a retry, a completion, another cancelation or nothing at all: one end, one callback each."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction

from django_workpool import RetryBehavior, UnknownPool, Workpool, call
from django_workpool.models import PendingCancelation, PendingStart, Work

from .live import Live, live_main, result, results, texts, times, transactional_db, wait_for_quiet, wait_until
from .works.models import Event
from .works.tasks import cancel_itself, count_up, ended, fail, fail_when_told, hold, note

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

FIVE = RetryBehavior(max_attempts=5, initial_backoff=timedelta(milliseconds=100))


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` for all tests of this module."""
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main")) as running:
        yield running


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call with a connection that is closed afterwards."""
    try:
        return function(*args)
    finally:
        connection.close()


def test_running_work_that_fails_after_its_cancelation(live: Live, tmp_path: Path) -> None:
    """It would be retried, and ends as canceled: no further attempt, one callback."""
    work_id = Workpool().using(retry=FIVE, on_complete=ended).enqueue(fail_when_told, str(tmp_path), "canceled while it runs")
    wait_until((tmp_path / "begun-canceled while it runs").exists)
    assert Workpool().cancel(work_id)
    assert not Workpool().cancel(work_id), "already being canceled"
    wait_until(lambda: Work.objects.get(id=work_id).canceled)
    assert not Workpool().cancel(work_id)
    (tmp_path / "go").touch()
    assert (result(work_id).kind, result(work_id).attempts) == ("canceled", 1)
    wait_for_quiet()
    assert len(times("attempt", "canceled while it runs")) == 1
    assert texts("ended", work_id) == ["canceled:None"]


def test_running_work_that_succeeds_after_its_cancelation(live: Live, tmp_path: Path) -> None:
    """A success stays a success."""
    work_id = Workpool().using(retry=FIVE, on_complete=ended).enqueue(hold, str(tmp_path), "x")
    wait_until((tmp_path / "begun-x").exists)
    assert Workpool().cancel(work_id)
    (tmp_path / "go").touch()
    assert (result(work_id).kind, texts("ended", work_id)) == ("success", ["success:None"])
    wait_for_quiet()


def test_work_canceled_while_it_waits_for_its_retry(live: Live) -> None:
    """It ends at once, long before the retry would start."""
    slow = RetryBehavior(max_attempts=5, initial_backoff=timedelta(minutes=5))
    work_id = Workpool().using(retry=slow, on_complete=ended).enqueue(fail, "canceled in its backoff")
    wait_until(lambda: PendingStart.objects.filter(work_id=work_id).exists() and Work.objects.get(id=work_id).attempts == 1)
    asked = time.time()
    assert Workpool().cancel(work_id)
    assert (result(work_id).kind, result(work_id).attempts) == ("canceled", 1)
    assert result(work_id).finished.timestamp() - asked < 1
    wait_for_quiet()
    assert (len(times("attempt", "canceled in its backoff")), texts("ended", work_id)) == (1, ["canceled:None"])


def test_work_canceled_in_the_moment_of_its_retry(live: Live) -> None:
    """Whoever is first: it ends once, and after that nothing runs."""
    quick = RetryBehavior(max_attempts=3, initial_backoff=timedelta(0))
    keys = [f"canceled in the moment {number}" for number in range(10)]
    ids = [Workpool().using(retry=quick, on_complete=ended).enqueue(fail, key) for key in keys]
    for work_id, key in zip(ids, keys, strict=True):
        wait_until(lambda key=key: times("attempt", key), poll=0.001)
        Workpool().cancel(work_id)
    done = results(ids)
    wait_for_quiet()
    for one, key in zip(done, keys, strict=True):
        assert (one.kind, one.attempts) == ("failed", 3) or (one.kind == "canceled" and one.attempts < 3), one
        # A canceled attempt that ran is counted too.
        assert len(times("attempt", key)) == one.attempts
        assert texts("ended", one.id) == [f"{one.kind}:None"]


@pytest.mark.parametrize("func", [note, count_up])
def test_cancelations_that_meet_the_end(live: Live, func: Any) -> None:
    """Two threads cancel each work in the moments in which it runs and ends: one end, one callback, and no row is left over."""
    pool = Workpool().using(on_complete=ended)
    barrier = threading.Barrier(2)

    def cancel_all_of(ids: list[uuid.UUID]) -> list[bool]:
        barrier.wait(10)
        return [Workpool().cancel(work_id) for work_id in ids]

    ids = pool.enqueue_many(func, [call(f"met {number}") for number in range(30)])
    with ThreadPoolExecutor(2) as threads:
        told = [future.result(30) for future in [threads.submit(in_thread, cancel_all_of, ids) for _ in range(2)]]
    done = results(ids)
    wait_for_quiet()
    for one, first, second in zip(done, *told, strict=True):
        assert one.kind == "success" or (one.kind == "canceled" and (first or second))
        assert texts("ended", one.id) == [f"{one.kind}:None"]
    assert live.main.process.poll() is None


def test_cancelation_of_what_is_not_there(live: Live) -> None:
    """A quiet no-op: after the end, twice, unknown, of another pool, not an id at all."""
    work_id = Workpool().enqueue(note, "over")
    assert result(work_id).kind == "success"
    wait_for_quiet()
    assert not Workpool().cancel(work_id)
    assert not Workpool().cancel(uuid.uuid4())
    for garbage in ("", "x", "x" * 10_000, "a\x00b", "\ud83d", 7, None, 2**200, b"x", ["x"], 1.5, True):
        assert not Workpool().cancel(garbage), garbage
    later = Workpool().using(delay=timedelta(hours=1)).enqueue(note, "later")
    assert not Workpool("imports").cancel(later)
    with pytest.raises(UnknownPool):
        Workpool("nowhere").cancel(later)
    assert PendingCancelation.objects.count() == 0
    assert Workpool().cancel(str(later))
    assert result(later).kind == "canceled"


def test_work_that_cancels_itself(live: Live) -> None:
    """It goes on, and its failure is not followed by another attempt."""
    pool = Workpool().using(retry=FIVE, on_complete=ended)
    with transaction.atomic():
        work_id = pool.enqueue(cancel_itself)
        Event.objects.create(name="cancel itself", key=str(work_id), at=time.time())
    assert (result(work_id).kind, result(work_id).attempts) == ("canceled", 1)
    wait_for_quiet()
    assert (texts("canceled itself", work_id), texts("ended", work_id)) == (["True"], ["canceled:None"])


def test_cancelation_that_is_rolled_back(live: Live) -> None:
    """It never was."""
    work_id = Workpool().using(delay=timedelta(seconds=0.5)).enqueue(note, "not canceled")
    with transaction.atomic():
        assert Workpool().cancel(work_id)
        Workpool().cancel_all()
        assert not Workpool().cancel(work_id)
        transaction.set_rollback(True)
    assert result(work_id).kind == "success"


def test_cancel_all_covers_what_was_enqueued_before(live: Live, tmp_path: Path) -> None:
    """What waits ends as canceled, what runs goes on, what is enqueued later is not covered; each has one callback."""
    pool = Workpool()
    pool.configure(max_parallelism=2)
    try:
        busy = pool.enqueue_many(hold, [call(str(tmp_path), key) for key in ("one", "two")])
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        waiting = pool.using(on_complete=ended).enqueue_many(note, [call(f"covered {number}") for number in range(80)])
        future = pool.using(delay=timedelta(days=1)).enqueue_many(note, [call("in the future")] * 10)
        pool.cancel_all()
        assert not pool.cancel(waiting[0]), "already covered"
        after = pool.enqueue_many(note, [call(f"after {number}") for number in range(5)])
        assert {one.kind for one in results([*waiting, *future])} == {"canceled"}
        (tmp_path / "go").touch()
        assert {one.kind for one in results([*busy, *after])} == {"success"}
    finally:
        pool.configure(max_parallelism=10)
    wait_for_quiet()
    assert sum(len(texts("ended", one)) for one in waiting) == 80
    assert not Event.objects.filter(name="note", key__startswith="covered").exists()
