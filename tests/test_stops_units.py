"""What timeouts and cancelations of runs meet in one process: guests, receivers, children that have just ended. No process is started."""

import asyncio
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from django_workpool import WorkTimeout, signals
from django_workpool.execution import limits, offspring, timeouts
from django_workpool.execution.courier import announce_async
from django_workpool.execution.frames import Lines, pack
from django_workpool.execution.offspring import Child
from django_workpool.execution.processes import ProcessExecutor
from django_workpool.models import Archive, Attempt
from django_workpool.testing import run_work
from django_workpool.types import Failure, Outcome, Run

from .runs import a_run

MS = timedelta(milliseconds=1)
TIMEOUT = "django_workpool.exceptions.WorkTimeout"


# Guests ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def background() -> Any:
    pytest.importorskip("tests.background.tasks", reason="no task framework: neither Django 6.0 nor django-tasks", exc_type=ImportError)
    from tests.background import tasks

    return tasks


@pytest.fixture
def slow_receiver(background: Any) -> Iterator[list[str]]:
    """Be a receiver of the framework's own ``task_started`` that takes longer than the task may."""
    from tests.background import framework

    told: list[str] = []

    def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
        told.append(task_result.id)
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass

    signal = framework("signals").task_started
    signal.connect(receive)
    yield told
    signal.disconnect(receive)


@pytest.mark.django_db
def test_the_time_of_a_task_is_not_that_of_who_hears_of_its_begin(
    background: Any, slow_receiver: list[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the exception would come, and be swallowed, before the function: then nothing would ever interrupt it."""
    monkeypatch.setattr(timeouts, "LEAVE_TIME", 60.0)
    task = background.compute_task
    in_time = task.using(timeout=200 * MS).enqueue(str(tmp_path), 0.0)
    late = task.using(timeout=200 * MS).enqueue(str(tmp_path), 40.0)
    began = time.monotonic()
    run_work()
    assert time.monotonic() - began < 35, "a task's function is not in its own way"
    kinds = {str(one.id): (one.kind, one.attempts) for one in Archive.objects.all()}
    assert kinds == {in_time.id: ("success", 1), late.id: ("failed", 1)}
    assert [one.class_path for one in Attempt.objects.all()] == [TIMEOUT]
    assert slow_receiver == [in_time.id, late.id]
    # Only these two: functions that other tests have left to their threads may still be watched.
    watched = [one.run for one in [*limits._watched.values(), *timeouts._watchman.timed]]
    assert not {in_time.id, late.id} & {str(run.work_id) for run in watched}, "both have ended"


@pytest.mark.django_db
def test_a_coroutine_is_timed_from_its_first_line() -> None:
    heard: list[str] = []

    async def before() -> None:
        await asyncio.sleep(0.3)
        heard.append("begun")

    async def function(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "ended"

    async def both() -> list[str]:
        run = a_run(1)._replace(timeout_ms=200)
        told = [await limits.acall(run, function, (0,), {}, before)]
        limits.end(run)
        try:
            await limits.acall(run, function, (40,), {}, before)
        except WorkTimeout as error:
            told.append(str(error))
        limits.end(run)
        return told

    assert asyncio.run(both()) == ["ended", "it took longer than 0.2 s"]
    assert heard == ["begun", "begun"]


@pytest.mark.django_db
def test_a_coroutine_is_canceled_before_its_first_line_too() -> None:
    async def before() -> None:
        limits.cancel([1])
        await asyncio.sleep(40)

    async def function() -> None:
        raise AssertionError("never called")

    async def body() -> str:
        try:
            await limits.acall(a_run(1), function, (), {}, before)
        except asyncio.CancelledError:
            return limits.failed(a_run(1), Failure(class_path="asyncio.exceptions.CancelledError", text="x")).kind
        return "not at all"

    assert asyncio.run(body()) == "canceled"
    limits.end(a_run(1))


# Receivers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_what_a_receiver_raises_before_a_coroutine_changes_nothing(error: type[BaseException], caplog: Any) -> None:
    async def receive(sender: None, **kwargs: Any) -> None:
        raise error("a receiver")

    signals.work_started.connect(receive)
    loop = asyncio.new_event_loop()
    task = loop.create_task(announced())
    try:
        while not task.done():
            # As the pool's own loop does.
            with suppress(SystemExit):
                loop.run_until_complete(task)
        assert task.result() == "went on"
    finally:
        loop.close()
        signals.work_started.disconnect(receive)
    # Newer versions of Django take a receiver's own CancelledError for the receiver's end.
    assert "a receiver" in caplog.text or error is asyncio.CancelledError


async def announced() -> str:
    await announce_async(a_run(1))
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()
    return "went on"


def test_a_cancelation_of_the_loops_own_goes_through_a_receiver() -> None:
    async def receive(sender: None, **kwargs: Any) -> None:
        await asyncio.sleep(40)

    async def body() -> bool:
        task = asyncio.create_task(announced())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    signals.work_started.connect(receive)
    try:
        assert asyncio.run(body())
    finally:
        signals.work_started.disconnect(receive)


# Children -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "killed"), [([], True), ([{"token": 1, "calls": False}], False), ([{"token": 7, "calls": False}], True)])
def test_a_child_is_heard_before_it_is_killed(said: list[dict[str, Any]], killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has said while its parent had no time: that its function has ended, and its completion is not to be cut off."""
    homes: list[tuple[int, str]] = []
    events: list[str] = []
    monkeypatch.setattr(offspring.eventlog, "log", lambda event, *args, **kwargs: events.append(event))
    program = offspring.Program(using="default", worker="w", settings="tests.settings")
    executor = ProcessExecutor(
        1, program, lambda run, outcome: homes.append((run.token, outcome.kind)), lambda run: homes.append((run.token, "done"))
    )
    child, theirs = a_child(a_run(1)._replace(timeout_ms=1))
    try:
        monkeypatch.setattr(child, "kill", lambda: events.append("SIGKILL"))
        executor._children.append(child)
        executor._selector.register(child.channel, selectors.EVENT_READ, child)
        for frame in said:
            theirs.sendall(pack(frame))
        executor._dismiss()
        assert events == (["killed", "SIGKILL"] if killed else [])
        assert child.run is not None and homes == []
        if not killed:
            assert child.kill_at == float("inf")
    finally:
        executor._selector.close()
        executor._ear.close()
        executor._bell.close()
        child.channel.close()
        theirs.close()


def test_an_outcome_that_has_come_already_is_taken_instead_of_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[tuple[int, Outcome | None]] = []
    program = offspring.Program(using="default", worker="w", settings="tests.settings")
    executor = ProcessExecutor(
        1, program, lambda run, outcome: homes.append((run.token, outcome)), lambda run: homes.append((run.token, None))
    )
    child, theirs = a_child(a_run(1)._replace(timeout_ms=1))
    try:
        monkeypatch.setattr(child, "kill", lambda: pytest.fail("killed"))
        executor._children.append(child)
        executor._selector.register(child.channel, selectors.EVENT_READ, child)
        theirs.sendall(pack({"token": 1, "calls": False}) + pack({"token": 1, "outcome": None, "signals": []}))
        executor._dismiss()
        assert homes == [(1, None)] and child.run is None and child.works == 1
    finally:
        executor._selector.close()
        executor._ear.close()
        executor._bell.close()
        child.channel.close()
        theirs.close()


def a_child(run: Run) -> tuple[Child, socket.socket]:
    """Return a child that runs something for too long, as its parent sees it, and its end of the sockets."""
    child: Any = Child.__new__(Child)
    child.channel, theirs = socket.socketpair()
    child.channel.setblocking(False)
    child.process = SimpleNamespace(pid=0)
    child.started, child.ready, child.run, child._calls = time.monotonic(), True, run, True
    child._timeout_at, child._stop_at, child.killed = time.monotonic() - 1, float("inf"), None
    child.works, child.proven, child.stopping, child.closed, child._code = 0, False, None, None, None
    child._unsent, child._lines = bytearray(), Lines()
    return child, theirs
