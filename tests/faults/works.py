"""The functions of the drills. Each notes in a file when it begins and how it ends (see ``journal.py``); ``key`` names the work."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import time
from datetime import timedelta

from django.db import connection

from django_workpool import OnCompleteArgs, RetryBehavior, action, mutation, on_complete, query

from ..works.models import Event
from .journal import is_first, note, noted

#: For works that must succeed in the end, whatever happens to their process: an outage may take many attempts.
PATIENT = RetryBehavior(max_attempts=200, initial_backoff=timedelta(milliseconds=100), base=1.5, max_backoff=timedelta(seconds=1))
THREE = RetryBehavior(max_attempts=3, initial_backoff=timedelta(milliseconds=50))


@action(retry=PATIENT)
def act(key: str, seconds: float = 0.0) -> str:
    """Take a while."""
    with noted(key):
        time.sleep(seconds)
    return key


@action
def act_once(key: str, seconds: float = 0.0) -> str:
    """Take a while; what is lost is not run again."""
    with noted(key):
        time.sleep(seconds)
    return key


@action(retry=PATIENT)
async def wait(key: str, seconds: float = 0.0) -> str:
    """Take a while, as a coroutine."""
    with noted(key):
        await asyncio.sleep(seconds)
    return key


@action(retry=PATIENT)
def read_row(key: str, seconds: float = 0.0) -> int:
    """Use the database, take a while, use it again."""
    with noted(key):
        before = Event.objects.filter(name="asked", key=key).count()
        time.sleep(seconds)
        return before + Event.objects.filter(name="asked", key=key).count()


@action(retry=PATIENT)
def late_row(key: str, seconds: float = 0.0) -> int:
    """Take a while, and only then use the database."""
    with noted(key):
        time.sleep(seconds)
        return Event.objects.filter(name="asked", key=key).count()


@action(retry=PATIENT)
def fork(key: str, seconds: float = 0.0) -> int:
    """Use the database, and start processes of its own: a bare fork, and a pool of two."""
    with noted(key):
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            os._exit(0)
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            total = sum(pool.map(abs, [-1, -2, -3]))
        return total + Event.objects.filter(name="asked", key=key).count()


@action(retry=PATIENT)
def fail_once(key: str, seconds: float = 0.0) -> str:
    """Fail the first time."""
    with noted(key):
        time.sleep(seconds)
        if is_first(key):
            raise ValueError(f"the first attempt of {key}")
    return key


@action(retry=THREE)
def fail(key: str, seconds: float = 0.0) -> None:
    """Fail each time."""
    with noted(key):
        time.sleep(seconds)
        raise ValueError(f"an attempt of {key}")


@mutation
def insert(key: str, seconds: float = 0.0) -> str:
    """Insert a row, in the transaction that ends the work."""
    with noted(key):
        Event.objects.create(name="effect", key=key, at=time.time())
        time.sleep(seconds)
    return key


@query
def look(key: str, seconds: float = 0.0) -> int:
    """Count rows."""
    with noted(key):
        time.sleep(seconds)
        return Event.objects.filter(name="asked", key=key).count()


@action(retry=PATIENT)
def compute(key: str, seconds: float = 0.0) -> int:
    """Compute in Python: other threads of the process get their turns, but few."""
    with noted(key):
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
    return number


@action(retry=PATIENT)
def hold_interpreter(key: str, seconds: float = 0.0) -> str:
    """Let no other thread of the process run: C code that does not release the interpreter's lock."""
    with noted(key):
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return key


@action(retry=THREE)
def die(key: str, seconds: float = 0.0) -> None:
    """Kill the process that runs this."""
    with noted(key) as run:
        time.sleep(seconds)
        note("dying", key, run)
        os.kill(os.getpid(), signal.SIGKILL)


@action
def small() -> None:
    """Do nothing, and note nothing."""


@action
def fat() -> None:
    """Fail while a local variable holds 10 MB."""
    held = bytearray(10_000_000)
    raise ValueError(len(held))


@on_complete
def called(done: OnCompleteArgs) -> None:
    """Insert a row, in the transaction that ends the work."""
    Event.objects.create(name="called", key=str(done.work_id), text=f"{done.result.kind.value}:{done.context}", at=time.time())


@mutation
def insert_slowly(key: str, seconds: float = 0.0) -> int:
    """Insert a row, and let the server take its time, in the transaction that ends the work."""
    with noted(key):
        Event.objects.create(name="effect", key=key, at=time.time())
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(%s)", [seconds])
    return 1
