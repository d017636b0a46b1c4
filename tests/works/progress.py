"""What the tests of progress run: functions that say how far they are, and wait there until the test says go."""

import asyncio
import os
import threading
import time
from datetime import timedelta
from pathlib import Path

from django_workpool import RetryBehavior, action, current, mutation, progress, query

from .models import Counter
from .tasks import PATIENCE, count, hold_at


def say_and_hold(folder: str, key: str, done: float, total: float) -> str:
    """Say it, from a helper, and wait."""
    progress(done, total)
    hold_at(folder, key)
    return key


@action
def come_far(folder: str, key: str, done: float, total: float) -> str:
    """Say it in an action."""
    return say_and_hold(folder, key, done, total)


@mutation
def change_so_far(folder: str, key: str, done: float, total: float) -> str:
    """Say it in a transaction that has changed something."""
    count(key)
    return say_and_hold(folder, key, done, total)


@query
def read_so_far(folder: str, key: str, done: float, total: float) -> str:
    """Say it in a transaction that reads only."""
    Counter.objects.filter(name=key).exists()
    return say_and_hold(folder, key, done, total)


@action
async def await_so_far(folder: str, key: str, done: float, total: float) -> str:
    """Say it in a coroutine."""
    progress(done, total)
    Path(folder, f"begun-{key}").touch()
    deadline = time.monotonic() + PATIENCE
    while not Path(folder, "go").exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return key


@action
def say_from_a_thread(folder: str, key: str, done: float, total: float) -> str:
    """Say it on a thread that the function starts."""
    thread = threading.Thread(target=current().progress, args=(done, total))
    thread.start()
    thread.join()
    hold_at(folder, key)
    return key


@action
def say_in_steps(folder: str, key: str, steps: int) -> int:
    """Say each step, then wait."""
    for number in range(steps + 1):
        progress(number, steps)
    hold_at(folder, key)
    return steps


@action
def say_nonsense() -> None:
    """Say what is refused."""
    progress(1, 0)


@action
def say_in_a_copy() -> int:
    """Say it in a copy of the process; return the exit code of that."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            progress(1, 2)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@mutation
def say_and_change(key: str) -> str:
    """Say three things, change something."""
    for done in (0, 1, 2.5):
        progress(done, 5)
    count(key)
    return key


@action(retry=RetryBehavior(max_attempts=2, initial_backoff=timedelta(milliseconds=10)))
def say_the_attempt(folder: str) -> int:
    """Say the number of the attempt, and wait."""
    attempt = current().attempt
    progress(attempt, 10)
    hold_at(folder, str(attempt))
    return attempt
