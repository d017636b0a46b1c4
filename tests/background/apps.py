"""The app, and what its processes write down of the signals that they hear."""

import json
import os
import sys
import threading
import time
from typing import Any

from django.apps import AppConfig

from . import framework

#: Set to anything: each signal of a task becomes an event, and receivers of the task named ``annoying`` raise.
SIGNALS_VARIABLE = "WORKPOOL_TEST_TASK_SIGNALS"


class BackgroundConfig(AppConfig):
    """What INSTALLED_APPS loads for ``tests.background``."""

    name = "tests.background"
    label = "background"

    def ready(self) -> None:
        """Connect the receivers, if the environment asks for it."""
        if os.environ.get(SIGNALS_VARIABLE):
            signals = framework("signals")
            for name in ("task_enqueued", "task_started", "task_finished"):
                getattr(signals, name).connect(Receiver(name), weak=False)


class Receiver:
    """Writes down one kind of signal."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, sender: Any, task_result: Any, **kwargs: Any) -> None:
        """Write the signal down; raise if it is of an annoying task."""
        from tests.works.models import Event

        raised = sys.exc_info()[1]
        told = {
            "signal": self.name,
            "sender": f"{sender.__module__}.{sender.__qualname__}",
            "status": str(task_result.status.value),
            "attempts": task_result.attempts,
            "errors": [error.exception_class_path for error in task_result.errors],
            "value": task_result._return_value,
            "finished": task_result.finished_at is not None,
            "raised": None if raised is None else f"{type(raised).__name__}: {raised}",
            "frames": _frames(raised),
            "thread": threading.current_thread().name,
            "pid": os.getpid(),
        }
        Event.objects.create(name="signal", key=task_result.id, text=json.dumps(told), at=time.time())
        if task_result.task.name == "annoying":
            raise SystemExit("a receiver") if self.name == "task_finished" else ValueError("a receiver")


def _frames(raised: BaseException | None) -> list[str]:
    names, tb = [], raised.__traceback__ if raised is not None else None
    while tb is not None:
        names.append(tb.tb_frame.f_code.co_name)
        tb = tb.tb_next
    return names
