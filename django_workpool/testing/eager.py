"""Eager mode: ``enqueue`` runs the function before it returns."""

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from .. import client
from .running import is_running, run_work

_here = threading.local()


@contextmanager
def eager(*, retries: bool = False, raises: bool = False) -> Iterator[None]:
    """Inside the block each enqueue inserts its rows and then runs all that is due, in the caller's transaction.

    Arguments, results and callbacks take the same way as ever, through the rows. What a work enqueues runs when that work has ended;
    what is due later stays, and so do retries unless ``retries`` is set. Works run before the caller's commit, on its connection: what
    depends on that cannot be seen this way.

    Args:
        retries: As ``run_work`` takes it.
        raises: Whether ``enqueue`` raises what the function raises. The failure is kept in any case.
    """
    # The innermost mode holds: it takes the place of one around it.
    enqueue_calls = getattr(client.enqueue_calls, "beneath", client.enqueue_calls)

    def enqueue_and_run(*args: Any, **kwargs: Any) -> Any:
        ids = enqueue_calls(*args, **kwargs)
        if ids and not is_running() and not getattr(_here, "waits", False):
            run_work(retries=retries, raises=raises)
        return ids

    def enqueue_task_and_run(*args: Any, **kwargs: Any) -> Any:
        # Not before its task_enqueued was sent.
        _here.waits = True
        try:
            result = enqueue_task(*args, **kwargs)
        finally:
            _here.waits = False
        if not is_running():
            run_work(retries=retries, raises=raises)
        return result

    enqueue_and_run.beneath = enqueue_calls  # type: ignore[attr-defined]
    # Where it is not in use, there may be no framework for it.
    tasks = sys.modules.get("django_workpool.backend.pool")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(client, "enqueue_calls", enqueue_and_run))
        if tasks is not None:
            enqueue_task = tasks.WorkpoolBackend.enqueue
            enqueue_task = getattr(enqueue_task, "beneath", enqueue_task)
            enqueue_task_and_run.beneath = enqueue_task  # type: ignore[attr-defined]
            stack.enter_context(mock.patch.object(tasks.WorkpoolBackend, "enqueue", enqueue_task_and_run))
        yield
