"""What bounds the runs of functions in this process: their timeouts, and the word that their works were canceled.

A coroutine is canceled on its loop, where it can only be waiting for something of its own. A function on a thread is told by what
``current()`` returns that its work was canceled, and by an exception that its timeout is over (``timeouts``).
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from .. import conf, tracing
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
#: What ``on_call`` was told last is true: no call begins or ends between the question and the answer. Never held by a function's call.
_telling = threading.Lock()

#: Called in a function's context before it, in time that is not the function's; awaited if the function is a coroutine function.
Before = Callable[[], Any]


class _Watched:
    """A run of this process."""

    __slots__ = ("calling", "run", "span", "timeout", "work")

    def __init__(self, run: Run, span: tracing.RunSpan | None = None) -> None:
        self.run, self.work = run, work_of(run)
        # Read once: another thread may stop the tracing.
        tracer = tracing.tracer
        self.span = tracer.running(run) if span is None and tracer is not None else span
        self.timeout: Timeout | None = None
        self.calling = False

    def cancel(self) -> None:
        """Say that the work was canceled."""
        self.work.mark_canceled()

    def call(
        self, isolation: Isolation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], before: Before | None
    ) -> Any:
        """Call the function. Once for an attempt, or again and again where its transaction is repeated."""
        try:
            if self.span is None:
                return isolation.call(self._body, (func, args, kwargs, before))
            # Out of reach of the timeout, which would come in the middle of whatever the tracer does.
            return isolation.call(self.span.call, (self._body, func, args, kwargs, before))
        finally:
            # Not in the function's call: a forked copy of this process does not come back from that.
            self._turn(calling=False)
            if self.timeout is not None and self.timeout.was_fired:
                # The exception may have come in the middle of whatever the driver was doing.
                isolation.distrust()

    def _body(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], before: Before | None) -> Any:
        if self.run.fn_type is FnType.CALLBACK:
            return func(*args, **kwargs)
        if before is not None:
            call_for(self.work, before, (), {})
        if self.run.timeout_ms is not None and self.timeout is None:
            self.timeout = Timeout(self.run)
        self._turn(calling=True)
        if self.timeout is None:
            return call_for(self.work, func, args, kwargs)
        return self.timeout.call(lambda: call_for(self.work, func, args, kwargs))

    def _turn(self, *, calling: bool) -> None:
        """Note that the function is called from now on, or no more."""
        if on_call is None:
            self.calling = calling
            return
        with _telling:
            self.calling = calling
            if self.timeout is not None or self.work.canceled:
                on_call(self.run, calling)


class _Awaited(_Watched):
    """A run that is a task of an event loop. Its methods are called on that loop's thread, ``cancel`` anywhere."""

    __slots__ = ("expired", "loop", "task", "timer")

    def __init__(self, run: Run, span: tracing.RunSpan | None = None) -> None:
        super().__init__(run, span)
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

    async def wait(self, func: Callable[[], Awaitable[Any]], before: Before | None) -> Any:
        """Call the function, and wait for what it returns."""
        self.calling = True
        try:
            with working_on(self.work), nullcontext() if self.span is None else self.span.current():
                if before is not None:
                    await before()
                if self.run.timeout_ms is not None:
                    self.timer = self.loop.call_later(self.run.timeout_ms / 1000, self._expire)
                return await func()
        except asyncio.CancelledError as error:
            if not self.expired:
                raise
            raise WorkTimeout(told_timeout(self.run)) from error
        finally:
            self.calling = False
            if self.timer is not None:
                self.timer.cancel()


#: By pool and token: one process may serve several databases, each of which numbers its runs from 1.
_watched: dict[tuple[str, int], _Watched] = {}


def _of(run: Run) -> _Watched | None:
    return _watched.get((run.pool, run.token))


def begin(run: Run) -> _Watched:
    """Note that a run begins. Its timeout counts from the first call of its function."""
    found = _of(run)
    if found is None:
        found = _watched[run.pool, run.token] = _Watched(run)
    return found


def end(run: Run) -> None:
    """Note that a run has ended."""
    watched = _watched.pop((run.pool, run.token), None)
    if watched is None:
        return
    if watched.timeout is not None:
        watched.timeout.end()
    if watched.span is not None:
        watched.span.end()


def came_to(run: Run, status: str, error: str = "") -> None:
    """Note what an attempt came to that is no success, for whoever traces it.

    Args:
        run: The run, which has not ended here yet.
        status: What its span says.
        error: The class path of what was raised, if anything was.
    """
    watched = _of(run)
    if watched is not None and watched.span is not None:
        watched.span.came_to(status, error)


def traced(run: Run) -> Run:
    """Return a run that carries its own span, if it has one, to what is called at its end; it has not ended here yet."""
    watched = _of(run)
    return run if watched is None or watched.span is None else run._replace(trace=watched.span.carried())


def call(
    run: Run,
    isolation: Isolation,
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    before: Before | None = None,
) -> Any:
    """Call a run's function on this thread, in an empty context in which ``current()`` knows it.

    Raises:
        WorkTimeout: its timeout is over.
    """
    watched = _of(run) or begin(run)
    if run.timeout_ms is None and on_call is None and before is None and watched.span is None and run.fn_type is not FnType.CALLBACK:
        # The usual case, kept short.
        return isolation.call(call_for, (watched.work, func, args, kwargs))
    return watched.call(isolation, func, args, kwargs, before)


async def acall(
    run: Run, func: Callable[..., Awaitable[Any]], args: Sequence[Any], kwargs: Mapping[str, Any], before: Before | None = None
) -> Any:
    """Await a run's coroutine function in the current task.

    Raises:
        WorkTimeout: its timeout is over.
    """
    begun = _of(run)
    awaited = _watched[run.pool, run.token] = _Awaited(run, begun.span if begun is not None else None)
    return await awaited.wait(lambda: func(*args, **kwargs), before)


def failed(run: Run, failure: Failure) -> Outcome:
    """Return the outcome of a run whose function has raised: "canceled" if it was told to stop, and has done so."""
    # A coroutine whose call could not be prepared has not begun before: its span does now.
    watched = _of(run) or (None if tracing.tracer is None else begin(run))
    stopped = watched is not None and watched.work.canceled and failure.class_path in _STOPS
    outcome = Outcome(kind="canceled" if stopped else "failed", failure=failure)
    came_to(run, outcome.kind, failure.class_path)
    return outcome


def _with(tokens: Iterable[int], using: str | None) -> list[_Watched]:
    wanted = frozenset(tokens)
    found = [one for one in list(_watched.values()) if one.run.token in wanted] if wanted else []
    return [one for one in found if using is None or conf.database_alias(one.run.pool) == using]


def cancel(tokens: Iterable[int], using: str | None = None) -> None:
    """Tell runs of this process that their works were canceled; each is told once. Those that are not here are passed over.

    Args:
        tokens: Their tokens.
        using: The database of which these are; None where there is one only.
    """
    for watched in _with(tokens, using):
        watched.cancel()


def is_canceled(token: int) -> bool:
    """Return whether a run of this process was told that its work is canceled."""
    return any(watched.work.canceled for watched in _with([token], None))


def tell_call(token: int, tell: Callable[[bool], None]) -> None:
    """Say, where ``on_call`` is set, whether a run's function is being called: else its end is being written, or it has not begun.

    Nothing else is told meanwhile.
    """
    with _telling:
        tell(any(watched.calling for watched in _with([token], None)))
