"""Coroutine functions that wait."""

import asyncio
import os
import time

from django_workpool import action

#: No test waits longer for anything.
PATIENCE = 60

_here: set[str] = set()


@action
async def nap_async(seconds: float) -> list[float]:
    """Wait; return when that began and ended, by the clock of this host."""
    began = time.time()
    await asyncio.sleep(seconds)
    return [began, time.time()]


@action
async def nap_together(key: str, parties: int, seconds: float) -> list[int]:
    """Wait, and then for the others of the same process; return how many were there at once, and the process."""
    _here.add(key)
    await asyncio.sleep(seconds)
    deadline = time.monotonic() + PATIENCE
    while len(_here) < parties and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return [len(_here), os.getpid()]
