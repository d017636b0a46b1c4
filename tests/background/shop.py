"""A small project written for the backend that comes with the framework: it knows nothing of any pool."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from . import framework

task = framework().task


@task
def price(items: list[list[Any]], *, discount: float = 0.0) -> dict[str, Any]:
    """Add up."""
    return {"sum": round(sum(amount * each for amount, each in items) * (1 - discount), 2), "items": tuple(items)}


@task(priority=5)
async def ship(order: int) -> str:
    """Ship, as a coroutine."""
    return f"shipped {order}"


@task(takes_context=True)
def invoice(context: Any, order: int) -> list[Any]:
    """Return what an invoice says of its own printing."""
    result = context.task_result
    return [order, context.attempt, result.id, result.status.value, result.attempts, result.args, result.task.name]


@task()
def double_dictionary(key: Any) -> dict[Any, Any]:
    """Do what the manual of the framework warns of."""
    return {key: key * 2}


@task
def refuse(order: int) -> None:
    """Raise an error of the project's own, in the handling of another."""
    try:
        {}[order]  # type: ignore[index]
    except KeyError as error:
        raise OutOfStock(f"order {order}") from error


class OutOfStock(Exception):
    """An error of the project."""


@task
def leave() -> None:
    """End the process, as one who knows no better."""
    raise SystemExit("leaving")


@task
def strange() -> Any:
    """Return what is no JSON."""
    return {1, 2}


def observe(seconds: float = 30) -> dict[str, Any]:
    """Use the tasks as a project does, and return all that it sees."""
    seen: dict[str, Any] = {}
    runs: dict[str, Callable[[], Any]] = {
        "price": lambda: price.enqueue([(2, 1.5), [1, 4]], discount=0.5),
        "ship": lambda: ship.enqueue(7),
        "ship later in the queue": lambda: ship.using(priority=-100).enqueue(order=8),
        "invoice": lambda: invoice.enqueue(order=9),
        "double": lambda: double_dictionary.enqueue((1, 2)),
        "refuse": lambda: refuse.enqueue(10),
        "leave": leave.enqueue,
        "strange": strange.enqueue,
        "bytes": lambda: double_dictionary.enqueue(b"ab"),
    }
    for name, enqueue in runs.items():
        seen[name] = told(enqueue(), seconds)
    mistakes: dict[str, Callable[[], Any]] = {
        "datetime": lambda: price.enqueue(datetime(2026, 1, 1)),
        "priority": lambda: price.using(priority=101),
        "half a priority": lambda: price.using(priority=0.5),
        "queue": lambda: price.using(queue_name="unknown"),
        "alias": lambda: price.using(backend="unknown"),
        "lambda": lambda: task(lambda: None),
        "no context": lambda: task(takes_context=True)(price.func),
        "called": lambda: [price.call([[1, 2]])["sum"], ship.call(1)],
    }
    for name, mistake in mistakes.items():
        try:
            seen[name] = mistake()
        except Exception as error:
            seen[name] = f"{type(error).__name__}: {error}"
    return seen


def told(result: Any, seconds: float) -> dict[str, Any]:
    """Wait until a task has ended, and return what its result says, without what differs from run to run."""
    deadline = time.monotonic() + seconds
    while not result.is_finished and time.monotonic() < deadline:
        time.sleep(0.02)
        result.refresh()
    try:
        value = result.return_value
    except ValueError as error:
        value = f"ValueError: {error}"
    if isinstance(value, list):
        value = ["its id" if item == result.id else item for item in value]
    return {
        "status": result.status.value,
        "value": value,
        "args": result.args,
        "kwargs": result.kwargs,
        "backend": result.backend,
        "attempts": result.attempts,
        "task": [result.task.name, result.task.module_path, result.task.priority, result.task.queue_name, result.task.takes_context],
        "errors": [[error.exception_class.__name__, error.traceback.splitlines()[-1]] for error in result.errors],
        "traceback": ["The above exception was the direct cause" in error.traceback for error in result.errors],
        "in order": result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at,
        "id": isinstance(result.id, str) and len(result.id) < 64,
        "workers": len(set(result.worker_ids)),
    }
