"""What the tests with real processes run. A function that waits does so for a file, and not for ever."""

import asyncio
import builtins
import os
import signal
import sys
import threading
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone, translation

from django_workpool import BatchResult, OnCompleteArgs, RetryBehavior, Workpool, action, mutation, on_batch_complete, on_complete, query

from . import behind as behind
from . import coroutines as coroutines
from . import databases as databases
from . import processes as processes
from . import stops as stops
from .models import Child, Counter, Event

#: No test waits longer for anything.
PATIENCE = 60
SOON = RetryBehavior(max_attempts=5, initial_backoff=timedelta(milliseconds=50))


def record(name: str, key: object = "", text: object = "") -> None:
    """Write down that something happened now."""
    Event.objects.create(name=name, key=str(key), text=str(text), at=time.time())


def count(name: str) -> None:
    """Count one more."""
    if not Counter.objects.filter(name=name).update(value=F("value") + 1):
        Counter.objects.create(name=name, value=1)


def wait_for_file(path: Path) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(str(path))
        time.sleep(0.01)


def hold_at(folder: str, key: str) -> None:
    """Tell that ``key`` has come here, and wait until the test says go."""
    Path(folder, f"begun-{key}").touch()
    wait_for_file(Path(folder, "go"))


@action
def note(key: str = "") -> str:
    """Write the key down and return it."""
    record("note", key)
    return key


@action(retry=SOON)
def slow_note(key: str, seconds: float) -> str:
    """Take a while, then write the key down."""
    time.sleep(seconds)
    record("note", key)
    return key


@action
def nap(seconds: float) -> None:
    """Take a while."""
    time.sleep(seconds)


@action
def alone(seconds: float) -> None:
    """Tell when it begins and when it is about to end."""
    record("begin")
    time.sleep(seconds)
    record("end")


@action(retry=True)
def spin() -> None:
    """Compute without an end."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        pass


@action
def hold(folder: str, key: str) -> str:
    """Wait until the test says go."""
    record("begun", key)
    hold_at(folder, key)
    return key


@mutation
def hold_mutation(folder: str, key: str) -> str:
    """Change the database, then wait until the test says go."""
    count(key)
    hold_at(folder, key)
    return key


@mutation
def count_up(name: str) -> None:
    """Count one more, in the transaction that ends the work."""
    count(name)


@mutation(batch=20)
def join(key: str, how: str = "") -> str:
    """Write down a row and the transaction in which that happens; fail, or leave the transaction in a bad state, if told so."""
    Event.objects.create(name="join", key=key, text=transaction_number(), at=time.time())
    if how == "fails":
        raise ValueError(f"{key} fails")
    if how == "leaves":
        transaction.atomic().__enter__()
    if how == "waits":
        time.sleep(0.03)
    return key


def transaction_number() -> str:
    """Return what tells one transaction of the server from another."""
    if connection.vendor != "postgresql":
        return ""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text")
        return str(cursor.fetchone()[0])


@action(retry=RetryBehavior(max_attempts=3, initial_backoff=timedelta(milliseconds=10)))
def die(how: str) -> None:
    """End the process that runs this."""
    record("die", how)
    # So that all that are started together have begun.
    time.sleep(0.3)
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


@action
def fail(text: str = "failed as asked") -> None:
    """Fail."""
    record("attempt", text)
    raise ValueError(text)


@action
def end_at(moment: float, fails: bool) -> None:
    """End at a moment, by the clock of this host."""
    time.sleep(max(0.0, moment - time.time()))
    if fails:
        raise ValueError("failed at the moment")


@action(retry=SOON)
def fail_once(key: str) -> str:
    """Fail, and succeed at the second attempt."""
    record("attempt", key)
    if Event.objects.filter(name="attempt", key=key).count() == 1:
        raise ValueError(f"the first attempt of {key}")
    return key


@action
def fail_when_told(folder: str, key: str) -> None:
    """Wait until the test says go, then fail."""
    record("attempt", key)
    hold_at(folder, key)
    raise ValueError("failed as told")


@action
def fail_together(folder: str, key: str, parties: int) -> None:
    """Fail the first time, succeed the second time, at the same moment as the others."""
    first = not Path(folder, f"first-{key}").exists()
    Path(folder, f"{'first' if first else 'second'}-{key}").touch()
    stage = "first-*" if first else "second-*"
    deadline = time.monotonic() + PATIENCE
    while len(list(Path(folder).glob(stage))) < parties and time.monotonic() < deadline:
        time.sleep(0.002)
    if first:
        raise ValueError("the first attempt fails")


@query
def find_note(key: str) -> bool:
    """Return whether a note is there."""
    return Event.objects.filter(name="note", key=key).exists()


@action
def get_row(pk: int) -> str:
    """Return the key of a row that must be there: it was enqueued in the transaction that inserted it."""
    return Event.objects.get(pk=pk).key


@action
def enqueue_for_row(key: str) -> str:
    """Insert a row and enqueue its reader, from within a work."""
    row = Event.objects.create(name="row", key=key, at=time.time())
    return str(Workpool().enqueue(get_row, row.pk))


@action
def cancel_itself() -> bool:
    """Cancel the work that runs this, and fail, though it would be retried."""
    (work_id,) = Event.objects.filter(name="cancel itself").values_list("key", flat=True)
    asked = Workpool().cancel(work_id)
    record("canceled itself", work_id, asked)
    raise ValueError("after it canceled itself")


@action
def raise_of_class(name: str) -> None:
    """Raise what would end a thread or a process, if it were let."""
    if name == "RecursionError":
        raise_of_class(name)
    record("thread", name, os.getpid())
    if name == "sub-thread":
        thread = threading.Thread(target=sys.exit)
        thread.start()
        thread.join()
        return
    if name == "CancelledError":
        raise asyncio.CancelledError
    raise getattr(builtins, name)(0)


@action
def return_text(text: str) -> Any:
    """Return what JSON or the database cannot take as it is."""
    return {"nul": "x\x00y", "surrogate": os.fsdecode(b"\xff.txt"), "emoji": "🎉 漢字 שלום", "nan": float("nan"), "set": {1}}[text]


@action
def raise_text(text: str) -> None:
    """Raise an error whose text, or whose class's name, cannot be stored as it is."""
    record("attempt", f"raise {text}")
    if text == "class":
        odd = type("Odd", (Exception,), {})
        odd.__qualname__ = "Odd\x00Name\ud83d"
        raise odd("x")
    if text == "path":
        exec(compile("raise ValueError('from an odd file')", "odd\udcff.py", "exec"))
    raise ValueError({"nul": "x\x00y", "surrogate": "\ud83d", "emoji": "🎉 漢字 שלום"}[text])


# Callbacks ----------------------------------------------------------------------------------------------------------


@on_complete
def ended(done: OnCompleteArgs) -> None:
    """Write down how a work ended."""
    record("ended", done.work_id, f"{done.result.kind.value}:{done.context}")


@on_batch_complete
def batch_ended(done: BatchResult) -> None:
    """Write down how the works of a batch ended."""
    record("batch", done.batch_id, f"{done.total} {done.succeeded} {done.failed} {done.canceled} {done.context}")


@on_batch_complete
def batch_breaks(done: BatchResult) -> None:
    """Fail."""
    record("batch", done.batch_id, "broken")
    raise ValueError("the batch's callback fails")


@on_complete
def ended_once(done: OnCompleteArgs) -> None:
    """Count the ends of a work."""
    count(f"{done.work_id}:{done.result.kind.value}")


@on_complete
def read_status(done: OnCompleteArgs) -> None:
    """Write down what the status of the ended work is."""
    status = Workpool().status(done.work_id)
    record("status", done.work_id, f"{status.state.value}:{status.result.kind.value if status.result else None}")


@on_complete
def break_down(done: OnCompleteArgs) -> None:
    """Fail in the way that the context names."""
    record("broken", done.work_id, done.context)
    if done.context == "exit":
        sys.exit(3)
    if done.context == "integrity":
        Counter.objects.create(name="taken")
        Counter.objects.create(name="taken")
    raise ValueError("the callback fails")


@on_complete
def signature(done: OnCompleteArgs) -> None:
    """Call something with an argument that it does not take."""
    record_nothing(done)  # type: ignore[call-arg]


def record_nothing() -> None:
    """Take no argument."""


@on_complete
def dangle(done: OnCompleteArgs) -> None:
    """Leave a reference to a parent that does not exist: the database finds it at the end of the transaction."""
    record("dangle", done.work_id)
    Child.objects.create(parent_id=uuid.uuid4().int % 10**9)


@on_complete
def enqueue_next(done: OnCompleteArgs) -> None:
    """Insert a row and enqueue its reader, in the transaction that ends the work."""
    row = Event.objects.create(name="row", key=str(done.context), at=time.time())
    Workpool().enqueue(get_row, row.pk)


# What the next function on the same thread must not see --------------------------------------------------------------

#: What changes a session, what shows that, and what that shows in a session that nobody has changed.
SET_SESSION = {
    "postgresql": "SET TIME ZONE 'Asia/Tokyo'",
    "mysql": "SET time_zone = '+09:00'",
    "sqlite": "PRAGMA foreign_keys = OFF",
}
SHOW_SESSION = {"postgresql": "SHOW TIME ZONE", "mysql": "SELECT @@session.time_zone", "sqlite": "PRAGMA foreign_keys"}
UNCHANGED_SESSION = {"postgresql": "UTC", "mysql": "SYSTEM", "sqlite": "1"}


@action
def leave_behind(what: str) -> int:
    """Leave the connection or the thread in another state than it was."""
    if what == "transaction":
        connection.set_autocommit(False)
        Counter.objects.create(name="uncommitted")
    elif what == "error":
        connection.set_autocommit(False)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT * FROM no_such_table")
        except Exception:
            return 1
    elif what == "atomic":
        transaction.atomic().__enter__()
        Counter.objects.create(name="uncommitted too")
    elif what == "session":
        with connection.cursor() as cursor:
            cursor.execute(SET_SESSION[connection.vendor])
    elif what == "thread":
        timezone.activate("Asia/Tokyo")
        translation.activate("de")
        os.chdir("/")
    return 1


@action
def look_around() -> dict[str, Any]:
    """Return the state in which a function finds its thread and connection."""
    with connection.cursor() as cursor:
        cursor.execute(SHOW_SESSION[connection.vendor])
        session = cursor.fetchone()[0]
    return {
        "autocommit": connection.get_autocommit(),
        "in_atomic_block": connection.in_atomic_block,
        "session": str(session),
        "zone": timezone.get_current_timezone_name(),
        "language": translation.get_language(),
        "folder": os.getcwd(),
        "uncommitted": Counter.objects.filter(name__startswith="uncommitted").count(),
    }
