"""How a loop ends, and what coroutines leave on the thread that they share."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections

from django_workpool.execution.coroutines import CoroutineExecutor
from django_workpool.execution.threads import ExecutorStopped

from .runs import (
    LONG,
    Record,
    WaitUntil,
    a_run,
    settled,
    some_runs,
    tokens,
    variable,
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


def test_stop_waits_for_what_runs(record: Record) -> None:
    """What waits does not begin any more and can be taken back; nothing new is taken."""
    loop = CoroutineExecutor("coroutines", record.arun, record.crash)
    blocked = threading.Event()

    async def block() -> None:
        blocked.wait(LONG)
        await asyncio.sleep(0.01)

    record.acts[1] = block
    loop.submit(some_runs(3))
    record.wait(lambda: record.begun)
    assert loop.stop(0) is False
    with pytest.raises(ExecutorStopped):
        loop.submit([a_run(9)])
    blocked.set()
    assert loop.stop(LONG) is True
    assert record.ended == [1]
    assert tokens(loop.take_back()) == [2, 3]
    assert "coroutines" not in [thread.name for thread in threading.enumerate()]


def test_stop_lets_tasks_of_the_functions_own_take_note(record: Record) -> None:
    loop = CoroutineExecutor("coroutines", record.arun, record.crash)
    noted: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            noted.append("canceled")

    async def leave() -> None:
        tasks.append(asyncio.get_running_loop().create_task(background()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    record.acts[1] = leave
    loop.submit(some_runs(1))
    record.wait(lambda: record.ended)
    assert loop.stop(LONG)
    assert noted == ["canceled"]


def test_stop_before_anything_ran(record: Record) -> None:
    assert CoroutineExecutor("coroutines", record.arun, record.crash).stop(0)


def test_each_run_has_an_empty_context(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil) -> None:
    seen: list[str] = []

    async def leave() -> None:
        variable.set("left")

    async def look() -> None:
        seen.append(variable.get())

    record.acts = {1: leave, 2: look}
    variable.set("the submitter's")
    loop.submit(some_runs(2))
    settled(loop, wait_until)
    assert seen == ["unset"]


@pytest.mark.django_db(transaction=True)
def test_connection_lost_by_one_is_not_met_by_the_next(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil) -> None:
    def lose() -> None:
        connection.ensure_connection()
        connection.connection.close()

    answers = in_turn(loop, record, wait_until, lose, select_one)
    assert answers == [None, 1]


@pytest.mark.django_db(transaction=True)
def test_transaction_left_open_by_one_is_not_met_by_the_next(
    loop: CoroutineExecutor, record: Record, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    """C025 for coroutines, as far as it goes: it is put right as soon as none runs."""

    def leave() -> None:
        connection.set_autocommit(False)

    answers = in_turn(loop, record, wait_until, leave, lambda: connection.get_autocommit())
    assert answers == [None, True]
    assert "autocommit" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_changed_session_of_one_is_not_met_by_the_next(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil) -> None:
    def change() -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE scratch (id integer)")

    assert in_turn(loop, record, wait_until, change, change) == [None, None]


@pytest.mark.django_db(transaction=True)
def test_connection_of_the_shared_thread_is_closed_at_the_end(record: Record, wait_until: WaitUntil) -> None:
    loop = CoroutineExecutor("coroutines", record.arun, record.crash)
    raws: list[Any] = []
    in_turn(loop, record, wait_until, lambda: connection.ensure_connection() or raws.append(connection.connection))
    assert loop.stop(LONG)
    with pytest.raises(connection.Database.Error):
        raws[0].cursor().execute("SELECT 1")


def in_turn(loop: CoroutineExecutor, record: Record, wait_until: WaitUntil, *functions: Callable[[], Any]) -> list[Any]:
    """Call synchronous functions from one coroutine each, one after the other."""
    answers: list[Any] = []
    for token, function in enumerate(functions, start=1):

        async def act(function: Callable[[], Any] = function) -> None:
            answers.append(await sync_to_async(function)())

        record.acts[token] = act
        loop.submit([a_run(token)])
        settled(loop, wait_until)
    assert record.crashes == []
    return answers


def select_one() -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1")
        return int(cursor.fetchone()[0])
