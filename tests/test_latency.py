"""How soon things happen: late commits, lost hints, retries and delays in an idle pool."""

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction

from django_workpool import RetryBehavior, Workpool, call, kick
from django_workpool.models import Archive, PendingStart, RunStatus

from .live import Live, database_clock, live_main, result, results, times, transactional_db, wait_for_quiet, wait_until
from .works.models import Event
from .works.tasks import enqueue_for_row, fail, fail_once, get_row, nap, note

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

POSTGRESQL = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer: nothing commits behind another")
#: The manual's number: what no hint has told is found by then.
POLL = 1.0
#: What a busy machine adds.
SLACK = 0.3


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` for all tests of this module."""
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main")) as running:
        yield running


def lag(work_id: uuid.UUID) -> float:
    """Return the seconds from the creation of a work to its start."""
    ended = result(work_id)
    assert ended.started is not None
    return (ended.started - ended.created).total_seconds()


def wait_until_idle() -> None:
    """Wait until the loop sleeps."""
    wait_for_quiet()
    wait_until(lambda: RunStatus.objects.get(pool="default").state == "idle")


@pytest.mark.slow
@POSTGRESQL
@pytest.mark.parametrize("kicks", [True, False])
def test_work_of_a_late_commit(live: Live, kicks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enqueued 2.5 s before its commit, while others ran and the pool went idle: it starts soon after it, kicked or not."""
    if not kicks:
        monkeypatch.setattr(kick, "kick", lambda *args, **kwargs: None)
    inserted, others_done = threading.Event(), threading.Event()
    committed: list[tuple[uuid.UUID, float]] = []

    def late() -> None:
        try:
            with transaction.atomic():
                work_id = Workpool().enqueue(note, f"late {kicks}")
                inserted.set()
                assert others_done.wait(30)
            committed.append((work_id, database_clock()))
        finally:
            connection.close()

    thread = threading.Thread(target=late)
    thread.start()
    assert inserted.wait(30)
    begun = time.monotonic()
    while time.monotonic() - begun < 2.5:
        # Segments and ids behind which the late one lies.
        result(Workpool().enqueue(note, "other"))
        time.sleep(0.2)
    wait_until_idle()
    others_done.set()
    thread.join(30)
    ((work_id, at),) = committed
    ended = result(work_id)
    assert ended.started is not None
    assert ended.started.timestamp() - at < (SLACK if kicks else POLL + SLACK)
    assert at - ended.created.timestamp() > 2.5


@pytest.mark.slow
def test_works_whose_kicks_are_lost(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enqueue, cancel and a delayed work are found within the poll interval."""
    monkeypatch.setattr(kick, "kick", lambda *args, **kwargs: None)
    for _ in range(2):
        wait_until_idle()
        assert lag(Workpool().enqueue(note, "no kick")) < POLL + SLACK
    delayed = Workpool().using(delay=timedelta(seconds=0.3)).enqueue(note, "no kick")
    assert 0.3 <= lag(delayed) < 0.3 + POLL + SLACK
    wait_until_idle()
    # Until the loop has looked back and saved its state for the last time: only a poll finds the next one.
    time.sleep(2.5)
    canceled = Workpool().using(delay=timedelta(hours=1)).enqueue(note, "no kick")
    wait_until(lambda: RunStatus.objects.get(pool="default").state == "scheduled")
    asked = database_clock()
    Workpool().cancel(canceled)
    assert result(canceled).finished.timestamp() - asked < POLL + SLACK


def test_retry_in_an_idle_pool(live: Live) -> None:
    """The second attempt of the only work begins 50 to 600 ms after the failure of the first."""
    soon = RetryBehavior(max_attempts=2, initial_backoff=timedelta(milliseconds=100))
    for number in range(8):
        wait_until_idle()
        key = f"retry {number}"
        assert result(Workpool().using(retry=soon).enqueue(fail_once, key)).kind == "success"
        first, second = times("attempt", key)
        assert 0.05 <= second - first <= 0.6 + SLACK


def test_delayed_work_in_an_idle_pool(live: Live) -> None:
    """It starts within 300 ms of its time, and not before it."""
    for _ in range(5):
        wait_until_idle()
        assert 0.3 <= lag(Workpool().using(delay=timedelta(milliseconds=300)).enqueue(note, "delayed")) < 0.6 + SLACK


def test_trickle(live: Live) -> None:
    """Works that come one by one start long before the next poll, whatever the loop was about to do."""
    lags = []
    for number in range(20):
        work_id = Workpool().enqueue(note, f"trickle {number}")
        lags.append(lag(work_id))
        time.sleep(number % 5 * 0.03)
    assert sorted(lags)[17] < SLACK, lags
    assert max(lags) < POLL + SLACK, lags


def test_cancelation_in_an_idle_pool(live: Live) -> None:
    """It is worked off within a second."""
    for _ in range(5):
        work_id = Workpool().using(delay=timedelta(hours=1)).enqueue(note, "canceled")
        wait_until(lambda: RunStatus.objects.get(pool="default").state == "scheduled")
        asked = database_clock()
        assert Workpool().cancel(work_id)
        assert result(work_id).finished.timestamp() - asked < 0.5 + SLACK


def test_slot_that_becomes_free(live: Live) -> None:
    """In a full pool the next work starts when one has ended, not at the next poll."""
    Workpool().configure(max_parallelism=1)
    try:
        ids = Workpool().enqueue_many(nap, [call(0.1)] * 15)
        ended = sorted(results(ids), key=lambda one: one.finished)
        gaps = sorted(after.started.timestamp() - before.finished.timestamp() for before, after in pairwise(ended) if after.started)
        # The time of a start is that of the iteration that has ended the one before, which is written a statement later.
        assert gaps[0] > -0.05, "one at a time"
        assert gaps[11] < SLACK, gaps
    finally:
        Workpool().configure(max_parallelism=10)


def test_retries_are_spread(live: Live) -> None:
    """200 works that failed together come back over half to one and a half of the wait, few of them in any 100 ms."""
    # Long: all of them are to have failed, on however slow a machine, before the first one comes back.
    wait = 60.0
    pool = Workpool().using(retry=RetryBehavior(max_attempts=3, initial_backoff=timedelta(seconds=wait)))
    ids = pool.enqueue_many(fail, [call(f"together {number}") for number in range(200)])
    wait_until(lambda: PendingStart.objects.filter(work_id__in=ids, segment__gt=database_clock() * 10 + 5).count() == 200, poll=0.1)
    failed_at = dict(Event.objects.filter(name="attempt", key__startswith="together").values_list("key", "at"))
    segments = list(PendingStart.objects.filter(work_id__in=ids).values_list("segment", flat=True))
    Workpool().cancel_all()
    assert len(failed_at) == 200
    first, last = min(failed_at.values()), max(failed_at.values())
    assert first + 0.5 * wait <= min(segments) / 10 <= max(segments) / 10 <= last + 1.5 * wait + POLL + SLACK
    assert max(segments) - min(segments) > 0.8 * wait * 10
    assert max(segments.count(one) for one in set(segments)) < 20
    assert {one.kind for one in results(ids)} == {"canceled"}
    wait_for_quiet()


def test_row_of_the_transaction_that_enqueues(live: Live) -> None:
    """The work never starts before the commit: it finds the row at its first attempt, also from within a work."""
    ids = []
    for number in range(20):
        with transaction.atomic():
            row = Event.objects.create(name="row", key=str(number), at=time.time())
            ids.append(Workpool().enqueue(get_row, row.pk))
            time.sleep(number % 5 * 0.02)
    assert [(one.kind, one.attempts, one.value) for one in results(ids)] == [("success", 1, f'"{number}"') for number in range(20)]
    outer = results(Workpool().enqueue_many(enqueue_for_row, [call(f"inner {number}") for number in range(5)]))
    inner = results([uuid.UUID(one.value.strip('"')) for one in outer])
    assert [(one.kind, one.attempts) for one in inner] == [("success", 1)] * 5
    assert Archive.objects.filter(kind="failed", func_path="tests.works.tasks.get_row").count() == 0
