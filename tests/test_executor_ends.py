"""What runs and crashes raise on threads, and how the threads end."""

import asyncio
import gc
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_workpool.execution.isolation import Isolation
from django_workpool.execution.threads import ExecutorStopped, ThreadExecutor
from django_workpool.types import Run

from .runs import (
    LONG,
    MakeThreads,
    Record,
    WaitUntil,
    a_run,
    exit_in_a_thread,
    raiser,
    recurse,
    settled,
    some_runs,
    tokens,
    variable,
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_a_run_raises_the_threads_go_on(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """C026: every crash is reported once, the same threads run the next works, as many at once as before."""
    executor = threads(2)
    record.gate.clear()
    executor.submit(some_runs(2))
    record.wait(lambda: len(record.begun) == 2)
    record.gate.set()
    settled(executor, wait_until)
    before = set(record.threads)
    raising = [
        raiser(SystemExit(0)),
        raiser(KeyboardInterrupt()),
        raiser(GeneratorExit()),
        raiser(asyncio.CancelledError()),
        raiser(MemoryError()),
        recurse,
        exit_in_a_thread,
        raiser(StopIteration()),
        raiser(BaseException()),
    ]
    record.acts = dict(enumerate(raising, start=10))
    executor.submit(some_runs(len(raising), 10))
    executor.submit(some_runs(10, 100))
    settled(executor, wait_until)
    assert sorted(record.crashes) == [
        (10, "SystemExit"),
        (11, "KeyboardInterrupt"),
        (12, "GeneratorExit"),
        (13, "CancelledError"),
        (14, "MemoryError"),
        (15, "RecursionError"),
        (17, "StopIteration"),
        (18, "BaseException"),
    ]
    assert set(range(100, 110)) <= set(record.ended)
    assert record.threads == before
    assert executor.live == 2
    record.gate.clear()
    executor.submit(some_runs(2, 200))
    record.wait(lambda: {200, 201} <= set(record.begun))


def test_report_of_a_crash_that_crashes(record: Record, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with the id of the work, and the thread goes on."""

    def crash(run: Run, error: BaseException) -> None:
        raise SystemExit

    executor = ThreadExecutor("worker", 1, record.run, crash)
    record.acts[1] = raiser(ValueError("x"))
    executor.submit(some_runs(2))
    settled(executor, wait_until)
    assert record.ended == [1, 2]
    assert str(uuid.UUID(int=1)) in caplog.text
    assert executor.stop(LONG)


def test_stop_waits_for_what_runs(threads: MakeThreads, record: Record) -> None:
    """What waits does not begin any more and can be taken back; nothing new is taken."""
    executor = threads(2)
    record.gate.clear()
    executor.submit(some_runs(5))
    record.wait(lambda: len(record.begun) == 2)
    assert executor.stop(0) is False
    with pytest.raises(ExecutorStopped):
        executor.submit([a_run(9)])
    record.gate.set()
    assert executor.stop(LONG) is True
    assert executor.live == 0
    assert sorted(record.ended) == [1, 2]
    assert tokens(executor.take_back()) == [3, 4, 5]
    assert executor.idle


def test_stop_of_idle_threads(threads: MakeThreads, wait_until: WaitUntil) -> None:
    """They end, those too that were never made."""
    executor = threads(3)
    executor.submit(some_runs(3))
    settled(executor, wait_until)
    assert executor.stop(LONG)
    assert threads(3).stop(0)


def test_each_run_has_an_empty_context(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """What one run sets, in the pool's own code too, the next one does not see."""
    seen: list[str] = []
    record.acts = {1: lambda: variable.set("left"), 2: lambda: seen.append(variable.get())}
    executor = threads(1)
    executor.submit(some_runs(2))
    settled(executor, wait_until)
    assert seen == ["unset"]


def test_nothing_of_a_run_is_kept(threads: MakeThreads, record: Record, wait_until: WaitUntil) -> None:
    """C066: an idle thread holds neither the last run nor its exception."""

    class Big:
        pass

    refs: list[weakref.ref[Big]] = []

    def fail() -> None:
        big = Big()
        refs.append(weakref.ref(big))
        raise ValueError("x")

    record.acts[1] = fail
    executor = threads(1)
    executor.submit(some_runs(1))
    settled(executor, wait_until)
    wait_until(lambda: executor._idle == 1)
    gc.collect()
    assert record.crashes == [(1, "ValueError")]
    assert refs[0]() is None


def test_number_of_threads_is_checked(record: Record) -> None:
    with pytest.raises(ValueError, match="threads must be 1 or more"):
        ThreadExecutor("worker", 0, record.run, record.crash)


@pytest.mark.django_db(transaction=True)
def test_connection_is_kept_between_runs_and_closed_at_the_end(threads: MakeThreads, record: Record) -> None:
    """One connection a thread, none when it has gone."""
    raws: list[Any] = []

    def use() -> None:
        connection.ensure_connection()
        raws.append(connection.connection)

    record.acts = {1: use, 2: use}
    executor = threads(1)
    executor.submit(some_runs(2))
    record.wait(lambda: len(record.ended) == 2)
    assert executor.stop(LONG)
    assert raws[0] is raws[1]
    with pytest.raises(connection.Database.Error):
        raws[0].cursor().execute("SELECT 1")


@pytest.mark.django_db(transaction=True)
def test_run_that_crashes_amid_a_function_is_put_right_before_it_is_reported(record: Record, wait_until: WaitUntil) -> None:
    """Whoever reports a crash can use the thread's connection."""
    found: list[bool] = []

    def run(run: Run, isolation: Isolation) -> None:
        isolation.begin("tests.crash")
        isolation.call(lambda: connection.set_autocommit(False))
        raise SystemExit

    executor = ThreadExecutor("worker", 1, run, lambda run, error: found.append(connection.get_autocommit()))
    executor.submit(some_runs(2))
    settled(executor, wait_until)
    assert executor.stop(LONG)
    assert found == [True, True]
