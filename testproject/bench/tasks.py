"""What the bench has the pool run. Each execution leaves a stamp: its number and when it began."""

import os
import struct
import time
from functools import cache

from django_workpool import OnCompleteArgs, action, mutation, on_complete

from .models import Inserted

#: Names the file of stamps.
VARIABLE = "BENCH_STAMPS"
#: A number, and seconds since 1970.
STAMP = struct.Struct("<qd")
#: Longer than a bench waits for its end.
LONG_SECONDS = 600


def stamp(number: int) -> None:
    """Append to the file of all processes: in one write, so that no two of them mix."""
    os.write(_stamps(), STAMP.pack(number, time.time()))


@cache
def _stamps() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@action
def noop(number: int, ballast: str = "") -> None:
    """Do nothing."""
    stamp(number)


@action
async def anoop(number: int) -> None:
    """Do nothing, as a coroutine."""
    stamp(number)


@mutation(batch=50)
def insert(number: int) -> None:
    """Insert a row in the transaction that ends the work."""
    stamp(number)
    Inserted.objects.create(number=number)


@on_complete
def inserted(done: OnCompleteArgs) -> None:
    """Insert a row in the transaction that ends the work."""
    Inserted.objects.create(number=done.context)


@action(retry=True)
def killed(number: int) -> None:
    """Take long the first time, so that the process can be killed meanwhile. Such works run one after another, from 0 on."""
    first = os.fstat(_stamps()).st_size // STAMP.size == 2 * number
    stamp(number)
    if first:
        time.sleep(LONG_SECONDS)
