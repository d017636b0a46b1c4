"""Tasks as projects write them."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from django.db import connection

from django_workpool import OnCompleteArgs, RetryBehavior, current, on_complete
from django_workpool.backend import with_options
from tests.works.models import Event
from tests.works.stops import compute, line, stop_when_told, swallow_timeout
from tests.works.tasks import SOON, hold_at, record

from . import framework

task = framework().task


@task()
def noop(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


@task
async def noop_async(*args: Any, **kwargs: Any) -> None:
    """Do nothing, as a coroutine."""


@task
def meaning() -> int:
    """Return what each of Django's tests returns."""
    return 42


@task
def give_back(value: Any) -> Any:
    """Return the argument."""
    return value


@task
def annoying() -> str:
    """Be one whose signals annoy."""
    return "done"


@task
def fail_value() -> None:
    """Raise what everybody raises."""
    raise ValueError("This task failed due to ValueError")


@task
def fail_exit() -> None:
    """Raise what is no Exception."""
    raise SystemExit("This task failed due to SystemExit")


@task
def fail_complex() -> None:
    """Raise an exception that holds another one."""
    raise ValueError(ValueError("This task failed"))


@task
def return_complex() -> Any:
    """Return what JSON cannot carry."""
    return lambda: True


@task(takes_context=True)
def look(context: Any, key: str = "") -> dict[str, Any]:
    """Return what the context tells."""
    result = context.task_result
    return {
        "attempt": context.attempt,
        "id": result.id,
        "status": result.status.value,
        "args": result.args,
        "workers": result.worker_ids,
        "errors": [error.exception_class_path for error in result.errors],
        "priority": result.task.priority,
        "queue": result.task.queue_name,
        "backend": result.backend,
        "started": result.started_at.isoformat(),
        "last": result.last_attempted_at.isoformat(),
        "enqueued": result.enqueued_at.isoformat(),
        "atomic": connection.in_atomic_block,
        "key": key,
    }


@task(takes_context=True)
async def look_async(context: Any, key: str) -> dict[str, Any]:
    """Return what the context tells, as a coroutine."""
    await asyncio.sleep(0)
    return {"attempt": context.attempt, "id": context.task_result.id, "key": key}


@with_options(retry=SOON, max_attempts=3)
@task(takes_context=True)
def third_time(context: Any, key: str) -> int:
    """Succeed at the third attempt."""
    record("third", key, context.attempt)
    if context.attempt < 3:
        raise (ValueError, KeyError)[context.attempt - 1](f"attempt {context.attempt} of {key}")
    return int(context.attempt)


@with_options(retry=RetryBehavior(max_attempts=2, initial_backoff=SOON.initial_backoff))
@task
async def fail_async(key: str) -> None:
    """Fail twice, as a coroutine."""
    await asyncio.sleep(0)
    raise LookupError(f"no {key}")


@with_options(max_attempts=2)
@task(takes_context=True)
def die_once(context: Any, key: str) -> int:
    """Take the process along, the first time."""
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(context.attempt)


@task
def hold_task(folder: str, key: str) -> str:
    """Wait until the test says go."""
    hold_at(folder, key)
    return key


@with_options(retry=True)
@task
def fail_when_told(folder: str, key: str) -> None:
    """Wait until the test says go, and fail; to be retried."""
    hold_at(folder, key)
    raise ValueError("failed as told")


@task
def note_order(key: str) -> None:
    """Write down that it is its turn."""
    record("order", key)


@task
def read_row(pk: int) -> str:
    """Return the key of a row that must be there."""
    return Event.objects.get(pk=pk).key


@task(backend="immediate")
def elsewhere(key: str) -> str:
    """Belong to another backend, unless it is told otherwise."""
    return f"elsewhere {key}"


@task
def outside_world(folder: str) -> None:
    """Make a file."""
    Path(folder, str(time.time())).touch()


@on_complete
def task_ended(done: OnCompleteArgs) -> None:
    """Write down how a task ended."""
    record("task ended", done.work_id, f"{done.result.kind.value}:{done.result.value}:{done.result.error}:{done.context}")


# Timeouts and cancelations ---------------------------------------------------------------------------------------------


@task(takes_context=True)
def compute_task(context: Any, folder: str, seconds: float) -> int:
    """Compute."""
    line(folder, "begun")
    compute(seconds)
    return int(context.attempt)


@task(takes_context=True)
def stop_task(context: Any, folder: str) -> str:
    """Look again and again whether the work was canceled."""
    assert str(current().work_id) == context.task_result.id
    return stop_when_told(folder)


@task(takes_context=True)
async def wait_task(context: Any, folder: str, seconds: float) -> int:
    """Wait."""
    assert str(current().work_id) == context.task_result.id
    line(folder, "begun")
    await asyncio.sleep(seconds)
    return int(context.attempt)


@task
def deaf_task(folder: str) -> str:
    """Take no notice of whatever is raised."""
    return swallow_timeout(folder)
