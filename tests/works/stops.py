"""What tests of timeouts and cancelations run: functions that take long, that stop when told, that do not, that look at themselves."""

import asyncio
import ctypes
import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.models import F

from django_workpool import RetryBehavior, WorkTimeout, action, current, mutation, query

from .models import Counter

#: What runs longer was forgotten.
PATIENCE = 60
TWICE = RetryBehavior(max_attempts=2, initial_backoff=timedelta(milliseconds=10))


def line(folder: str, name: str) -> None:
    """Add a line to a file."""
    with Path(folder, name).open("a") as file:
        file.write("x\n")


def compute(seconds: float) -> None:
    """Compute for a while, without a call that could be waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def count(name: str) -> None:
    """Count one more, in the present transaction."""
    if not Counter.objects.filter(name=name).update(value=F("value") + 1):
        Counter.objects.create(name=name, value=1)


# Timeouts -------------------------------------------------------------------------------------------------------------


@action
def burn_for(folder: str, seconds: float) -> str:
    """Compute."""
    line(folder, "begun")
    compute(seconds)
    return "ended"


@action
async def wait_for(folder: str, seconds: float) -> str:
    """Wait, and tell of the cancelation."""
    line(folder, "begun")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        line(folder, "canceled")
        raise
    return "ended"


@action(timeout=timedelta(milliseconds=200))
def burn_with_timeout(folder: str, seconds: float) -> str:
    """Compute, for a fifth of a second at most."""
    line(folder, "begun")
    compute(seconds)
    return "ended"


@mutation
def change_and_burn(folder: str, name: str, seconds: float) -> int:
    """Change the database, then compute."""
    count(name)
    line(folder, "begun")
    compute(seconds)
    return 1


@query
def look_and_burn(folder: str, seconds: float) -> int:
    """Read, then compute."""
    line(folder, "begun")
    number = Counter.objects.filter(name="none").count()
    compute(seconds)
    return number


@action
def burn_first(folder: str, seconds: float) -> str:
    """Compute in the first attempt only."""
    line(folder, "begun")
    if current().attempt == 1:
        compute(seconds)
    return "ended"


@action
def swallow_timeout(folder: str) -> str:
    """Take no notice of the timeout, and go on until the test says go."""
    end, caught, told, goes_on = time.monotonic() + PATIENCE, 0, False, True
    while goes_on:
        # The exception may come anywhere.
        try:
            if not told:
                line(folder, "begun")
                told = True
            time.sleep(0.005)
            goes_on = time.monotonic() < end and not Path(folder, "go").exists()
        except WorkTimeout:
            line(folder, "caught")
            caught += 1
    return f"caught {caught}"


@action
async def swallow_cancelation(folder: str) -> str:
    """The same."""
    end = time.monotonic() + PATIENCE
    caught = 0
    while time.monotonic() < end and not Path(folder, "go").exists():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            line(folder, "caught")
            caught += 1
    return f"caught {caught}"


@action
def sleep_in_c(folder: str, seconds: float) -> str:
    """Sleep in one call."""
    line(folder, "begun")
    time.sleep(seconds)
    return "ended"


@action
def hold_in_c(folder: str, seconds: int) -> None:
    """Let no other thread of the process run."""
    line(folder, "begun")
    ctypes.PyDLL(None).sleep(seconds)


@mutation
def hold_mutation_in_c(folder: str, name: str, seconds: int) -> None:
    """The same, after a change of the database."""
    count(name)
    line(folder, "begun")
    ctypes.PyDLL(None).sleep(seconds)


# Cancelations ---------------------------------------------------------------------------------------------------------


@action
def stop_when_told(folder: str) -> str:
    """Look again and again whether the work was canceled."""
    line(folder, "begun")
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        current().raise_if_canceled()
        time.sleep(0.005)
    return "ended"


@mutation
def change_until_told(folder: str, name: str) -> str:
    """Change the database, then the same."""
    count(name)
    return stop_when_told(folder)


@action
def end_when_told(folder: str) -> str:
    """End well when the work was canceled."""
    line(folder, "begun")
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not current().canceled:
        time.sleep(0.005)
    return "ended well"


@action
def raise_canceled(folder: str) -> None:
    """Say that the work was canceled, which it was not."""
    from django_workpool import WorkCanceled

    line(folder, "begun")
    raise WorkCanceled("by nobody")


@action
def look_at_itself() -> dict[str, Any]:
    """Return what is told of the work."""
    work = current()
    return {"work_id": str(work.work_id), "pool": work.pool, "name": work.name, "attempt": work.attempt, "canceled": work.canceled}


@action
async def look_at_itself_async() -> dict[str, Any]:
    """Return the same, from a task of its own and from a thread."""
    inner = await asyncio.create_task(asyncio.to_thread(current))
    assert inner is current()
    return {"work_id": str(inner.work_id), "pool": inner.pool, "name": inner.name, "attempt": inner.attempt, "canceled": inner.canceled}


@mutation(batch=20)
def look_at_itself_together() -> dict[str, Any]:
    """Return the same, in a transaction that is shared."""
    return look_at_itself()


# In the midst of everything -------------------------------------------------------------------------------------------

logger = logging.getLogger("tests.works.stops")


def _busy(seconds: float, *, alone: bool) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with transaction.atomic():
            Counter.objects.filter(name="none").count()
            with transaction.atomic():
                Counter.objects.filter(name="none").exists()
        logger.warning("busy")
        try:
            list(Counter.objects.all()[:3])
        finally:
            Counter.objects.filter(name="none").first()
        if alone:
            connection.close()


@action
def busy(seconds: float) -> str:
    """Do all that Django does with a connection, again and again: open, begin, look, commit, close."""
    _busy(seconds, alone=True)
    return "ended"


@mutation
def change_and_be_busy(name: str, seconds: float) -> str:
    """Change the database, then the same."""
    count(name)
    _busy(seconds, alone=False)
    return "ended"


@query
def look_busily(seconds: float) -> str:
    """Only look."""
    _busy(seconds, alone=False)
    return "ended"


@action
async def shield_itself(folder: str, how: str) -> str:
    """Wait for ever, behind a shield, deaf, or as anybody would."""
    if how == "shield":
        await asyncio.shield(asyncio.ensure_future(asyncio.sleep(PATIENCE)))
    try:
        await asyncio.sleep(PATIENCE)
    except asyncio.CancelledError:
        if how != "deaf":
            raise
    return how
