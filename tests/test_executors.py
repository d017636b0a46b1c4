"""Started works on threads: nothing is lost, whatever a function raises, and the threads go on."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from django_workpool.execution.threads import ThreadExecutor

from .runs import (
    LONG,
    MakeThreads,
    Record,
    WaitUntil,
    a_run,
    settled,
    some_runs,
    tokens,
)


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def threads(record: Record) -> Iterator[Callable[[int], ThreadExecutor]]:
    made: list[ThreadExecutor] = []

    def make(count: int) -> ThreadExecutor:
        made.append(ThreadExecutor("worker", count, record.run, record.crash))
        return made[-1]

    yield make
    record.gate.set()
    for executor in made:
        executor.take_back()
        assert executor.stop(LONG)


def test_everything_submitted_runs_once(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """Many small and large batches on a few threads."""
    executor = threads(4)
    submitted = 0
    for size in (1, 2, 3, 500, 1, 7, 0, 1000):
        executor.submit(some_runs(size, submitted + 1))
        submitted += size
    settled(executor, wait_until)
    assert sorted(record.ended) == list(range(1, submitted + 1))
    assert executor.active() == {}
    assert record.crashes == []


def test_threads_are_made_when_they_are_needed(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """None at first, one for one work, never more than allowed; an idle one is used before another is made."""
    executor = threads(3)
    assert executor.live == 0
    for token in range(1, 6):
        executor.submit([a_run(token)])
        settled(executor, wait_until)
        wait_until(lambda: executor._idle == 1, poll=0.002)
    assert executor.live == 1
    record.gate.clear()
    executor.submit(some_runs(50, 10))
    record.wait(lambda: len(record.begun) == 5 + 3)
    assert executor.live == 3
    assert [thread.name for thread in sorted(executor._live, key=lambda thread: thread.name)] == ["worker-1", "worker-2", "worker-3"]
    assert all(thread.daemon for thread in executor._live)


def test_all_idle_threads_get_work_first(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """Nothing waits behind a slow work while another thread is idle."""
    executor = threads(4)
    record.gate.clear()
    executor.submit(some_runs(4))
    record.wait(lambda: len(record.begun) == 4)
    record.gate.set()
    settled(executor, wait_until)
    slow = threading.Event()
    record.acts[11] = lambda: slow.wait(LONG)
    executor.submit(some_runs(100, 11))
    record.wait(lambda: len(record.ended) == 4 + 99)
    assert list(executor.active()) == [11]
    slow.set()


def test_order_of_a_batch_is_kept(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    executor = threads(1)
    executor.submit(some_runs(100))
    executor.submit(some_runs(100, 101))
    settled(executor, wait_until)
    assert record.ended == list(range(1, 201))


def test_what_has_not_begun_is_taken_back(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """All of it, once, and it does not run."""
    executor = threads(2)
    record.gate.clear()
    executor.submit(some_runs(10))
    record.wait(lambda: len(record.begun) == 2)
    assert tokens(executor.take_back()) == list(range(3, 11))
    assert executor.take_back() == []
    assert sorted(executor.active()) == [1, 2]
    assert not executor.idle
    record.gate.set()
    settled(executor, wait_until)
    assert sorted(record.ended) == [1, 2]


def test_taking_back_races_with_running(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """Each work either runs or is taken back."""
    executor = threads(3)
    back: list[int] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for first in range(1, 3001, 30):
            executor.submit(some_runs(30, first))
            back += tokens(executor.take_back())
        settled(executor, wait_until)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(record.ended + back) == list(range(1, 3001))


def test_active_tells_run_and_beginning(threads: MakeThreads, record: Record) -> None:
    executor = threads(1)
    record.gate.clear()
    before = time.monotonic()
    run = a_run(7)
    executor.submit([run])
    record.wait(lambda: record.begun)
    [(token, (active, began))] = executor.active().items()
    assert (token, active) == (7, run)
    assert before <= began <= time.monotonic()


def test_threads_that_cannot_be_started(
    threads: MakeThreads, record: Record, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C004: the submitter hears of it, nothing has been taken, and the same works can be submitted again."""
    failures = [RuntimeError("can't start new thread")] * 5
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    executor = threads(2)
    refused = 0
    for token in range(1, 11):
        while True:
            try:
                executor.submit([a_run(token)])
                break
            except RuntimeError:
                refused += 1
                assert executor.idle
                assert executor.live == 0
    assert refused == 5
    settled(executor, wait_until)
    assert sorted(record.ended) == list(range(1, 11))
    record.gate.clear()
    executor.submit(some_runs(2, 20))
    record.wait(lambda: len(record.begun) == 12)
    assert executor.live == 2


def test_fewer_threads_than_wanted(
    threads: MakeThreads, record: Record, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C004: if some threads live, they do all the work, and a warning says why they are few."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def failing(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    executor = threads(4)
    monkeypatch.setattr(threading.Thread, "start", failing)
    executor.submit(some_runs(20))
    settled(executor, wait_until)
    assert sorted(record.ended) == list(range(1, 21))
    assert executor.live == 1
    assert "can't start new thread" in caplog.text
    monkeypatch.undo()
    record.gate.clear()
    executor.submit(some_runs(4, 30))
    record.wait(lambda: len(record.begun) == 24)
    assert executor.live == 4


def test_runs_that_take_long_hold_others_up_only_if_some_wait(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    executor = threads(2)
    record.gate.clear()
    executor.submit(some_runs(2))
    record.wait(lambda: len(record.begun) == 2)
    assert executor.held_up(0.0) == []
    executor.submit(some_runs(1, 10))
    wait_until(lambda: len(executor.held_up(0.01)) == 2)
    assert executor.held_up(LONG * 10) == []
