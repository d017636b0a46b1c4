"""Sends the framework's signals: by the backend's class, and whatever a receiver does, the task goes on."""

import asyncio
import logging
from typing import Any

from django.dispatch import Signal

from ..failures import release
from .framework import BaseTaskBackend, TaskResult

logger = logging.getLogger("django_workpool.backend")


def send(signal: Signal, backend: BaseTaskBackend, result: "TaskResult[Any, Any]") -> None:
    """Send a signal of a task. What receivers raise is logged, and nothing is raised."""
    try:
        signal.send_robust(type(backend), task_result=result)
    except BaseException as error:  # what is no Exception, and what Django's own log of it stumbles over
        _complain(result, error)


async def asend(signal: Signal, backend: BaseTaskBackend, result: "TaskResult[Any, Any]") -> None:
    """Async twin of ``send``: a cancelation of the task itself goes through."""
    try:
        await signal.asend_robust(type(backend), task_result=result)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        _complain(result, error)


def _complain(result: "TaskResult[Any, Any]", error: BaseException) -> None:
    logger.error("a receiver of a signal of task %s raised %s", result.id, type(error).__name__, exc_info=error)
    release(error)
