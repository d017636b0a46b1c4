"""Eager mode: ``enqueue`` runs the function before it returns."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .. import client
from .running import is_running, run_work


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
    enqueue_calls = client.enqueue_calls

    def enqueue_and_run(*args: Any, **kwargs: Any) -> Any:
        ids = enqueue_calls(*args, **kwargs)
        if ids and not is_running():
            run_work(retries=retries, raises=raises)
        return ids

    client.enqueue_calls = enqueue_and_run
    try:
        yield
    finally:
        client.enqueue_calls = enqueue_calls
