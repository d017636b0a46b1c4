"""What a function can know of the work that it runs for, whether it should stop, and what it says of its progress."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .exceptions import NoCurrentWork, WorkCanceled
from .progress_values import check_progress
from .types import Run

#: Takes what functions say of their progress, where there is somebody to whom it is shown. Called inside the function: it must not wait.
on_progress: Callable[["CurrentWork", float, float], object] | None = None

_current: ContextVar["CurrentWork"] = ContextVar("django_workpool.current")


class CurrentWork:
    """The work that runs here. Threads that a function starts are handed this object: they have contexts of their own.

    Attributes:
        work_id: its id, a UUID.
        pool: the pool's name.
        name: its label: ``using(name=...)``, else the function's path.
        attempt: the number of this attempt, from 1.
        token: what tells this attempt from others of the work; for the pool itself.
    """

    __slots__ = ("_canceled", "attempt", "name", "pool", "token", "work_id")

    def __init__(self, work_id: uuid.UUID, pool: str, name: str, attempt: int = 1, token: int = 0) -> None:
        self.work_id, self.pool, self.name, self.attempt, self.token = work_id, pool, name, attempt, token
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

    def progress(self, done: float, total: float) -> None:
        """Say how far the work has come. Args and Raises: see ``progress``."""
        _tell(self, *check_progress(done, total))

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
        raise NoCurrentWork("current() and progress() are for functions that a pool runs; here, none does.")
    return found


def progress(done: float, total: float) -> None:
    """Say how far the work has come for which the calling function runs: in its thread, its coroutine, or its child process.

    Never waits and costs nothing that would be worth saving: it may be called for each row of a file. The newest value is written once a
    second, in no transaction of the function's, and told by ``Workpool.status``; the last before the end need not be.

    Args:
        done: What is done, in whatever unit: a finite number from 0.
        total: What there is to do, in the same unit: a finite number above 0.

    Raises:
        InvalidWork: a value is something else.
        NoCurrentWork: it was not called by a pool: directly, from a thread of its own, or as an ``on_complete``.
    """
    part, whole = check_progress(done, total)
    _tell(current(), part, whole)


def _tell(work: CurrentWork, done: float, total: float) -> None:
    if on_progress is not None:
        on_progress(work, done, total)


def work_of(run: Run) -> CurrentWork:
    """Return what a run's function is told of its work."""
    return CurrentWork(run.work_id, run.pool, run.name, run.attempts + 1, run.token)


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


@contextmanager
def hearing_progress(hear: Callable[[CurrentWork, float, float], object]) -> Iterator[None]:
    """Let ``hear`` take what functions say of their progress inside, whoever takes it outside."""
    global on_progress
    before, on_progress = on_progress, hear
    try:
        yield
    finally:
        on_progress = before
