"""What bounds the runs of functions in this process: their timeouts, and the word that their works were canceled.

A coroutine is canceled on its loop, where it can only be waiting for something of its own. A function on a thread is told by what
``current()`` returns that its work was canceled, and by an exception that its timeout is over (``timeouts``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..current_work import call_for, work_of, working_on
from ..exceptions import WorkTimeout
from ..types import Failure, FnType, Outcome, Run
from .isolation import Isolation
from .timeouts import STOP_GRACE, Timeout, tell_overdue, told_timeout

TIMEOUT, CANCELED = "django_workpool.exceptions.WorkTimeout", "django_workpool.exceptions.WorkCanceled"
#: What a function raises that stops because its work was canceled.
_STOPS = frozenset({CANCELED, "asyncio.exceptions.CancelledError"})

#: Told when a call of a run's function begins and ends that has a timeout or a canceled work; in a child process that is the parent.
on_call: Callable[[Run, bool], None] | None = None


class _Watched:
    """A run of this process."""

    __slots__ = ("calling", "run", "timeout", "work")

    def __init__(self, run: Run) -> None:
        self.run, self.work = run, work_of(run)
        self.timeout: Timeout | None = None
        self.calling = False

    def cancel(self) -> None:
        """Say that the work was canceled."""
        self.work.mark_canceled()

    def call(self, isolation: Isolation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the function. Once for an attempt, or again and again where its transaction is repeated."""
        timed = self.run.timeout_ms is not None
        if timed and self.timeout is None:
            self.timeout = Timeout(self.run)
        self.calling = True
        self._tell()
        try:
            return isolation.call(self._body, (func, args, kwargs))
        finally:
            self.calling = False
            if self.timeout is not None and self.timeout.was_fired:
                # The exception may have come in the middle of whatever the driver was doing.
                isolation.distrust()
            self._tell()

    def _tell(self) -> None:
        if on_call and (self.timeout is not None or self.work.canceled):
            on_call(self.run, self.calling)

    def _body(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.run.fn_type is FnType.CALLBACK:
            return func(*args, **kwargs)
        if self.timeout is None:
            return call_for(self.work, func, args, kwargs)
        return self.timeout.call(lambda: call_for(self.work, func, args, kwargs))


class _Awaited(_Watched):
    """A run that is a task of an event loop. Its methods are called on that loop's thread, ``cancel`` anywhere."""

    __slots__ = ("expired", "loop", "task", "timer")

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.timer: asyncio.TimerHandle | None = None
        self.expired = False

    def cancel(self) -> None:
        if not self.work.canceled:
            super().cancel()
            # A loop that has died has taken the run along.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._stop, "the work was canceled")

    def _stop(self, why: str) -> None:
        if self.calling and self.task is not None:
            self.task.cancel(why)

    def _expire(self) -> None:
        # A function that is stopping for another reason goes on doing so.
        self.expired = not self.work.canceled
        self._stop(told_timeout(self.run))
        self.timer = self.loop.call_later(STOP_GRACE, tell_overdue, self.run)

    async def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for what the function returned."""
        if self.run.timeout_ms is not None:
            self.timer = self.loop.call_later(self.run.timeout_ms / 1000, self._expire)
        self.calling = True
        try:
            with working_on(self.work):
                return await awaitable
        except asyncio.CancelledError as error:
            if not self.expired:
                raise
            raise WorkTimeout(told_timeout(self.run)) from error
        finally:
            self.calling = False
            if self.timer is not None:
                self.timer.cancel()


_watched: dict[int, _Watched] = {}


def begin(run: Run) -> _Watched:
    """Note that a run begins on this thread. Its timeout counts from the first call of its function."""
    found = _watched.get(run.token)
    if found is None:
        found = _watched[run.token] = _Watched(run)
    return found


def end(run: Run) -> None:
    """Note that a run has ended."""
    watched = _watched.pop(run.token, None)
    if watched is not None and watched.timeout is not None:
        watched.timeout.end()


def call(run: Run, isolation: Isolation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a run's function on this thread, in an empty context in which ``current()`` knows it.

    Raises:
        WorkTimeout: its timeout is over.
    """
    watched = _watched.get(run.token) or begin(run)
    if run.timeout_ms is None and on_call is None and run.fn_type is not FnType.CALLBACK:
        # The usual case, kept short.
        return isolation.call(call_for, (watched.work, func, args, kwargs))
    return watched.call(isolation, func, args, kwargs)


async def acall(run: Run, func: Callable[..., Awaitable[Any]], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Await a run's coroutine function in the current task.

    Raises:
        WorkTimeout: its timeout is over.
    """
    awaited = _watched[run.token] = _Awaited(run)
    return await awaited.wait(func(*args, **kwargs))


def failed(run: Run, failure: Failure) -> Outcome:
    """Return the outcome of a run whose function has raised: "canceled" if it was told to stop, and has done so."""
    watched = _watched.get(run.token)
    stopped = watched is not None and watched.work.canceled and failure.class_path in _STOPS
    return Outcome(kind="canceled" if stopped else "failed", failure=failure)


def cancel(tokens: Iterable[int]) -> None:
    """Tell runs of this process that their works were canceled; each is told once. Those that are not here are passed over."""
    for token in tokens:
        if (watched := _watched.get(token)) is not None:
            watched.cancel()


def is_canceled(token: int) -> bool:
    """Return whether a run of this process was told that its work is canceled."""
    watched = _watched.get(token)
    return watched is not None and watched.work.canceled


def is_calling(token: int) -> bool:
    """Return, where ``on_call`` is set, whether a run's function is being called: else its end is being written, or it has not begun."""
    watched = _watched.get(token)
    return watched is not None and watched.calling
