"""Started works as coroutines: nothing is lost, whatever a coroutine raises, and the loop goes on."""

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_workpool.execution import coroutines
from django_workpool.execution.coroutines import CoroutineExecutor

from .runs import (
    LONG,
    Record,
    WaitUntil,
    a_run,
    araiser,
    arecurse,
    settled,
    some_runs,
    tokens,
)


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def loop(record: Record) -> Iterator[CoroutineExecutor]:
    executor = CoroutineExecutor("coroutines", record.arun, record.crash)
    yield executor
    executor.take_back()
    assert executor.stop(LONG)


@pytest.fixture(autouse=True)
def quiet_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests leave tasks behind on purpose, of which asyncio complains."""
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def test_everything_submitted_runs_once_on_one_thread(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil) -> None:
    submitted = 0
    for size in (1, 2, 0, 500, 1, 1000):
        loop.submit(some_runs(size, submitted + 1))
        submitted += size
    settled(loop, wait_until)
    assert record.ended == list(range(1, submitted + 1))
    assert len(record.threads) == 1
    assert loop.active() == {}


def test_thousands_wait_at_once(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil) -> None:
    """They cost no threads."""
    gates: list[asyncio.Event] = []

    async def wait() -> None:
        gate = asyncio.Event()
        gates.append(gate)
        await gate.wait()

    count = 5000
    before = threading.active_count()
    record.acts = dict.fromkeys(range(1, count + 1), wait)
    loop.submit(some_runs(count))
    record.wait(lambda: len(record.begun) == count)
    wait_until(lambda: len(gates) == count)
    assert len(loop.active()) == count
    # The loop's, and asgiref's one for synchronous code.
    assert threading.active_count() <= before + 2

    async def open_all() -> None:
        for gate in gates:
            gate.set()

    record.acts[count + 1] = open_all
    loop.submit([a_run(count + 1)])
    settled(loop, wait_until)
    assert len(record.ended) == count + 1


def test_whatever_a_coroutine_raises_the_loop_goes_on(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil) -> None:
    """C026: every crash is reported once, the same loop runs the next works."""
    raising = [
        araiser(SystemExit(0)),
        araiser(KeyboardInterrupt()),
        araiser(GeneratorExit()),
        araiser(asyncio.CancelledError()),
        araiser(MemoryError()),
        arecurse,
        araiser(StopIteration()),
        araiser(StopAsyncIteration()),
        araiser(BaseException()),
        cancel_itself,
    ]
    record.acts = dict(enumerate(raising, start=10))
    loop.submit(some_runs(len(raising), 10))
    loop.submit(some_runs(10, 100))
    settled(loop, wait_until)
    assert sorted(record.crashes) == [
        (10, "SystemExit"),
        (11, "KeyboardInterrupt"),
        (12, "GeneratorExit"),
        (13, "CancelledError"),
        (14, "MemoryError"),
        (15, "RecursionError"),
        (16, "RuntimeError"),
        (17, "StopAsyncIteration"),
        (18, "BaseException"),
        (19, "CancelledError"),
    ]
    assert set(range(100, 110)) <= set(record.ended)
    assert len(record.threads) == 1


def test_what_functions_leave_on_the_loop_does_not_end_it(
    loop: CoroutineExecutor, record: Record, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    """SystemExit from a callback or a task of its own passes through the loop; the works that wait on it stay."""
    waiting: list[asyncio.Event] = []

    async def wait() -> None:
        waiting.append(asyncio.Event())
        await waiting[0].wait()

    async def leave() -> None:
        running = asyncio.get_running_loop()
        running.call_soon(sys.exit)
        tasks.append(running.create_task(araiser(KeyboardInterrupt())()))
        running.call_soon(running.stop)

    async def open_all() -> None:
        waiting[0].set()

    tasks: list[asyncio.Task[None]] = []
    record.acts = {1: wait, 2: leave, 3: open_all}
    loop.submit(some_runs(2))
    record.wait(lambda: 2 in record.ended)
    wait_until(lambda: caplog.text.count("reached the event loop, which goes on") == 2)
    loop.submit([a_run(3)])
    settled(loop, wait_until)
    assert sorted(record.ended) == [1, 2, 3]
    assert record.crashes == []
    assert isinstance(tasks.pop().exception(), KeyboardInterrupt)


def test_loop_that_dies_is_made_anew(
    loop: CoroutineExecutor, record: Record, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran is reported, what had not begun runs on the next loop."""
    monkeypatch.setattr(coroutines, "PAUSE", 0)
    late = threading.Event()

    async def kill() -> None:
        loop_object: Any = asyncio.get_running_loop()

        def broken(timeout: Any) -> Any:
            raise OSError("bad file descriptor")

        loop_object._selector.select = broken
        late.wait(LONG)

    record.acts = {1: asyncio.Event().wait, 2: kill}
    loop.submit(some_runs(2))
    record.wait(lambda: 2 in record.begun)
    loop.submit(some_runs(3, 10))
    late.set()
    settled(loop, wait_until)
    assert record.crashes == [(1, "OSError")]
    assert {2, 10, 11, 12} <= set(record.ended)
    loop.submit(some_runs(3, 20))
    settled(loop, wait_until)
    assert {20, 21, 22} <= set(record.ended)
    gc.collect()
    assert record.crashes == [(1, "OSError")]


def test_what_has_not_begun_is_taken_back(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil) -> None:
    """A coroutine that blocks the loop keeps the rest of its own batch from beginning, too."""
    blocked = threading.Event()

    async def block() -> None:
        blocked.wait(LONG)

    record.acts[1] = block
    loop.submit(some_runs(5))
    loop.submit(some_runs(5, 6))
    record.wait(lambda: record.begun)
    assert tokens(loop.take_back()) == list(range(2, 11))
    assert list(loop.active()) == [1]
    loop.submit([a_run(2)])
    blocked.set()
    settled(loop, wait_until)
    assert record.ended == [1, 2]


def test_thread_that_cannot_be_started(
    loop: CoroutineExecutor, record: Record, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C004: the submitter hears of it, and nothing has been taken."""

    def failing(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for _ in range(5):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", failing)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                loop.submit(some_runs(3))
        assert loop.idle
        assert loop.take_back() == []
    loop.submit(some_runs(3))
    settled(loop, wait_until)
    assert record.ended == [1, 2, 3]
