"""What a function can know of the work that it runs for, and whether it should stop."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .exceptions import NoCurrentWork, WorkCanceled
from .types import Run

_current: ContextVar["CurrentWork"] = ContextVar("django_workpool.current")


class CurrentWork:
    """The work that runs here. Threads that a function starts are handed this object: they have contexts of their own.

    Attributes:
        work_id: its id, a UUID.
        pool: the pool's name.
        name: its label: ``using(name=...)``, else the function's path.
        attempt: the number of this attempt, from 1.
    """

    __slots__ = ("_canceled", "attempt", "name", "pool", "work_id")

    def __init__(self, work_id: uuid.UUID, pool: str, name: str, attempt: int = 1) -> None:
        self.work_id, self.pool, self.name, self.attempt = work_id, pool, name, attempt
        self._canceled = False

    @property
    def canceled(self) -> bool:
        """Whether the work was canceled: what it does from now on is probably for nothing."""
        return self._canceled

    def raise_if_canceled(self) -> None:
        """Stop here if the work was canceled; call it where that does no harm.

        Raises:
            WorkCanceled: it was. Let it pass, and the work ends as canceled.
        """
        if self._canceled:
            raise WorkCanceled("the work was canceled")

    def mark_canceled(self) -> None:
        """Say that the work was canceled. The pool calls it, and tests of functions that look."""
        self._canceled = True


def current() -> CurrentWork:
    """Return the work for which the calling function runs: in its thread, its coroutine, or its child process.

    Raises:
        NoCurrentWork: it was not called by a pool: directly, from a thread of its own, or as an ``on_complete``.
    """
    found = _current.get(None)
    if found is None:
        raise NoCurrentWork("current() is for functions that a pool runs; here, none does.")
    return found


def work_of(run: Run) -> CurrentWork:
    """Return what a run's function is told of its work."""
    return CurrentWork(run.work_id, run.pool, run.name, run.attempts + 1)


def call_for(work: CurrentWork, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``func`` so that ``current()`` returns ``work`` in it."""
    token = _current.set(work)
    try:
        return func(*args, **kwargs)
    finally:
        _current.reset(token)


@contextmanager
def working_on(work: CurrentWork) -> Iterator[CurrentWork]:
    """Let ``current()`` return ``work`` inside."""
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)
