"""Receivers of the pool's signals: they write down what they are told, and misbehave if told so."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from django_workpool import signals

from .models import Event

#: What the worker's receivers do: "record", or also what is named after it, with "," between.
SIGNALS_VARIABLE = "WORKPOOL_TEST_SIGNALS"
#: A file for which the receiver of "hang" waits.
GO_VARIABLE = "WORKPOOL_TEST_SIGNALS_GO"


def connect() -> None:
    """Connect what the environment names."""
    wanted = os.environ[SIGNALS_VARIABLE].split(",")
    for name in ("work_enqueued", "work_started", "work_completed", "pool_wedged"):
        signal = getattr(signals, name)
        # What it leaves behind is met by the next signal's receivers.
        for how in sorted({"record", *wanted}, key=["raises", "exits", "holds", "hangs", "record", "spoils"].index):
            receiver = RECORD[name] if how == "record" else HOWS[how]
            signal.connect(receiver, dispatch_uid=how)


def _recorder(signal: str) -> Any:
    def record(sender: None, **kwargs: Any) -> None:
        told = {key: value for key, value in kwargs.items() if key != "signal"}
        key = told.get("name") or told["pool"]
        text = {**told, "pid": os.getpid(), "thread": threading.current_thread().name, "atomic": connection.in_atomic_block}
        Event.objects.create(name=signal, key=key, text=repr({k: str(v) for k, v in text.items()}), at=time.time())

    return record


RECORD = {name: _recorder(name) for name in ("work_enqueued", "work_started", "work_completed", "pool_wedged")}


def raises(sender: None, **kwargs: Any) -> None:
    """Raise."""
    raise ValueError("a receiver raises")


def exits(sender: None, **kwargs: Any) -> None:
    """End the interpreter, it thinks."""
    if "name" in kwargs and str(kwargs["name"]).startswith("exit"):
        sys.exit(3)


def spoils(sender: None, **kwargs: Any) -> None:
    """Leave a transaction open that cannot be used any more."""
    transaction.atomic().__enter__()
    connection.needs_rollback = True


def hangs(sender: None, **kwargs: Any) -> None:
    """Wait for the test, or for ever."""
    go = Path(os.environ[GO_VARIABLE])
    while "status" in kwargs and not go.exists():
        time.sleep(0.02)


def holds(sender: None, **kwargs: Any) -> None:
    """Let no function with a name of that kind begin before the test says so."""
    folder = Path(str(kwargs.get("name", "")))
    while "attempt" in kwargs and folder.is_absolute() and not (folder / "go").exists():
        (folder / "held").touch()
        time.sleep(0.02)


HOWS = {"raises": raises, "exits": exits, "spoils": spoils, "hangs": hangs, "holds": holds}
