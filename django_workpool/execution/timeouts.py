"""How functions on threads are told that their timeout is over.

The interpreter raises an exception in their thread (``PyThreadState_SetAsyncExc``): between two of its bytecodes, so a call into C ends
first. It must never be raised in what comes after the function. So each call has a :class:`Shot`: the watchman fires it while the call
lasts, and the call does not end before it is known whether it was fired; what has not been raised by then is taken back. No lock is
involved: the exception could come between taking and releasing one.
"""

import ctypes
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from .. import eventlog, tracing
from ..adapters import visit
from ..current_work import call_for
from ..exceptions import WorkTimeout
from ..types import Run

logger = logging.getLogger("django_workpool.execution")

#: Seconds that a function gets to end after its timeout, or after its work was canceled: then its child process is killed; a thread
#: or a coroutine that goes on after its timeout is told in the log.
STOP_GRACE = 5.0
#: The watchman looks at least so often, in seconds.
LOOK_EVERY = 3600.0
#: Packages in whose code the exception is not raised if that can be helped: they hold locks, or change what the whole process shares.
FRAGILE = frozenset({"logging", "importlib", "_frozen_importlib", "threading", "queue", "django_workpool"})
#: Nor in functions that swallow whatever is raised in them: the function would go on, and nothing would interrupt it again.
SWALLOWING = frozenset(
    {
        *(("pymysql.connections", name) for name in ("close", "_force_close", "ping")),
        # What finalizes its cursors that read row by row.
        ("pymysql.cursors", "close"),
        # It would take UTC for the server's zone, for all of the process and for good.
        ("psycopg._tz", "get_tzinfo"),
        # A rollback that fails gives way to the exception it is for; a robust hook to the next one.
        ("django.db.transaction", "__exit__"),
        ("django.db.backends.base.base", "on_commit"),
        ("django.db.backends.base.base", "run_and_clear_commit_hooks"),
        ("django.dispatch.dispatcher", "send_robust"),
    }
)
#: Whether a collection in the midst of ``sys._current_frames()`` can lock the whole interpreter up, for good: CPython's issue 106883.
COLLECTING_LOCKS_UP = sys.version_info < (3, 11, 12)
#: Seconds for which it waits at most until a function has left such code, and between two looks.
LEAVE_TIME, LEAVE_EVERY = 1.0, 0.002

#: The timeout of the call on each thread.
_here = threading.local()

# A function object of our own: others may have given theirs other argument types.
_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(("PyThreadState_SetAsyncExc", ctypes.pythonapi))


def told_timeout(run: Run) -> str:
    """Return the text of a run's timeout."""
    return f"it took longer than {(run.timeout_ms or 0) / 1000:g} s"


def tell_overdue(run: Run) -> None:
    """Say that a function goes on after its timeout, and keeps its slot. Never raises."""
    with suppress(Exception):
        eventlog.log("overdue", "WARN", run.pool, work_id=run.work_id, name=run.name, timeout_ms=run.timeout_ms, **tracing.told(run.trace))


def raise_if_over() -> None:
    """Raise WorkTimeout if the time of the function on this thread is over. For what is called before and after each of its statements.

    Nothing is torn apart there. The watchman looks when the thread waits, in the midst of a statement: of a function that sends one after
    another he sees nothing else.
    """
    timeout: Timeout | None = getattr(_here, "timeout", None)
    # The frame is that of whoever sends the statement: it may be code in which the exception must not be raised.
    if timeout is not None and timeout.is_due and not _is_in_the_way(sys._getframe(2)):
        timeout.raise_here()


class Shot:
    """One exception for one call of a function on a thread: raised while the call lasts, or never."""

    __slots__ = ("done", "fired", "firing", "process", "raised", "thread")

    def __init__(self) -> None:
        self.thread, self.process = threading.get_ident(), os.getpid()
        self.done = self.firing = self.fired = self.raised = False

    def fire(self) -> None:
        """Raise WorkTimeout in the call's thread, unless the call has ended. On the watchman's thread, once."""
        # Whoever comes first, the other sees it: the call sets ``done`` before it looks at ``firing``.
        self.firing = True
        if not self.done:
            _raise_in(self.thread, id(WorkTimeout))
        self.fired = True

    def is_in_the_way(self) -> bool:
        """Return whether the thread is in code that should not be torn apart. While this is asked, it stays where it is."""
        return _is_in_the_way(_frame_of(self.thread))

    def end(self) -> None:
        """Note that the call has ended, or needs no shot any more. The exception may come in here, for the last time: then once more."""
        self.done = True
        if self.firing:
            # Moments, however long they are on this machine; but a copy of the process has no watchman.
            while not self.fired and os.getpid() == self.process:
                time.sleep(0)
            # What was not raised yet is not raised any more.
            _raise_in(self.thread, None)


def _frame_of(thread: int) -> FrameType | None:
    """Return the frame that another thread is in."""
    if not COLLECTING_LOCKS_UP or not gc.isenabled():
        return sys._current_frames().get(thread)
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        gc.enable()


def _is_in_the_way(frame: FrameType | None) -> bool:
    """Return whether a frame, or one that it was called from in the function's call, is of code that should not be torn apart."""
    while frame is not None and frame.f_code not in (visit.__code__, call_for.__code__, Timeout.call.__code__):
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        # What a finalizer raises is printed, and no more.
        if module.partition(".")[0] in FRAGILE or (module, name) in SWALLOWING or name == "__del__":
            return True
        frame = frame.f_back
    return False


class Timeout:
    """The timeout of a run on a thread, from the first call of its function on.

    Args:
        run: A run that has one.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._at = time.monotonic() + (run.timeout_ms or 0) / 1000
        self._shot = Shot()
        # There is no call yet.
        self._shot.done = True
        self._fired_at: float | None = None
        self._told = self._calling = False
        _watchman.watch(self)

    def call(self, body: Callable[[], Any]) -> Any:
        """Call ``body`` on this thread as long as there is time.

        Raises:
            WorkTimeout: the time is over; raised in ``body``, unless it has not begun yet.
        """
        shot, outer = Shot(), getattr(_here, "timeout", None)
        try:
            try:
                self._shot, self._calling, _here.timeout = shot, True, self
                # The watchman may have looked just before that.
                if time.monotonic() >= self._at:
                    raise WorkTimeout
                return body()
            finally:
                shot.end()
        except Exception as error:
            # Perhaps raised in end() itself; there is no other one to come.
            shot.end()
            if isinstance(error, WorkTimeout):
                error.args = error.args or (told_timeout(self.run),)
            raise
        finally:
            self._calling, _here.timeout = False, outer

    @property
    def is_due(self) -> bool:
        """Whether it is time, and nothing has been raised yet. On the call's thread."""
        return time.monotonic() >= self._at and not (self._shot.done or self._shot.firing)

    def raise_here(self) -> None:
        """Raise WorkTimeout on the call's own thread, in the place of what the watchman could fire."""
        self._shot.raised = True
        self._shot.end()
        raise WorkTimeout

    @property
    def was_fired(self) -> bool:
        """Whether the exception was, or may have been, raised in the last call."""
        return self._shot.firing

    @property
    def at(self) -> float:
        """When it is over (monotonic)."""
        return self._at

    def look(self, now: float) -> float:
        """Fire if it is time; return when to look again. On the watchman's thread."""
        shot = self._shot
        if now < self._at:
            return self._at
        if shot.done and not (shot.raised and self._calling):
            # If another call begins, it sees by itself that it is too late.
            return float("inf")
        if shot.raised:
            self._fired_at = self._fired_at or now
        elif not shot.firing:
            if now < self._at + LEAVE_TIME and shot.is_in_the_way():
                return now + LEAVE_EVERY
            shot.fire()
            self._fired_at = now
        return float("inf") if self._told or self._fired_at is None else self._fired_at + STOP_GRACE

    def is_overdue(self, now: float) -> bool:
        """Return whether the function goes on for long though the exception was raised in it; true once."""
        if self._told or self._fired_at is None or now < self._fired_at + STOP_GRACE or not self._calling:
            return False
        self._told = True
        return True

    def end(self) -> None:
        """Forget it: its run has ended."""
        _watchman.timed.discard(self)


class _Watchman:
    """Looks after timeouts on threads: one daemon thread, made when it is needed."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.timed: set[Timeout] = set()
        self.wake_at = float("inf")
        self.thread: threading.Thread | None = None

    def watch(self, one: Timeout) -> None:
        """Look after a run from now on, until it is taken out of ``timed``."""
        with self.changed:
            self.timed.add(one)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._run, name="workpool-timeouts", daemon=True)
                self.thread.start()
            elif one.at < self.wake_at:
                self.changed.notify()

    def _run(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:
                logger.exception("looking after timeouts failed, and goes on")
                time.sleep(0.1)

    def _turn(self) -> None:
        with self.changed:
            now = time.monotonic()
            running = list(self.timed)
            overdue = [one for one in running if one.is_overdue(now)]
            self.wake_at = min((one.look(now) for one in running), default=float("inf"))
            if not overdue:
                self.changed.wait(min(max(self.wake_at - now, 0.0), LOOK_EVERY))
        # Whoever listens to the log may take its time.
        for one in overdue:
            tell_overdue(one.run)


_watchman = _Watchman()


def _begin_anew() -> None:
    """In a forked copy of the process there is no watchman, and perhaps a lock that nobody releases."""
    global _watchman
    _watchman = _Watchman()


os.register_at_fork(after_in_child=_begin_anew)
