"""How functions on threads are told that their timeout is over.

The interpreter raises an exception in their thread (``PyThreadState_SetAsyncExc``): between two of its bytecodes, so a call into C ends
first. It must never be raised in what comes after the function. So each call has a :class:`Shot`: the watchman fires it while the call
lasts, and the call does not end before it is known whether it was fired; what has not been raised by then is taken back. No lock is
involved: the exception could come between taking and releasing one.
"""

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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
#: Nor in functions that swallow whatever is raised in them: theirs would go on, and nothing would interrupt it again. Not all of that
#: driver's code: a function that works with its database is in it nearly whenever the watchman has a chance to look.
SWALLOWING = frozenset({("pymysql.connections", "_force_close"), ("pymysql.connections", "ping")})
#: Seconds for which it waits at most until a function has left such code, and between two looks.
LEAVE_TIME, LEAVE_EVERY = 1.0, 0.002

# A function object of our own: others may have given theirs other argument types.
_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(("PyThreadState_SetAsyncExc", ctypes.pythonapi))


def told_timeout(run: Run) -> str:
    """Return the text of a run's timeout."""
    return f"it took longer than {(run.timeout_ms or 0) / 1000:g} s"


def tell_overdue(run: Run) -> None:
    """Say that a function goes on after its timeout, and keeps its slot. Never raises."""
    with suppress(Exception):
        eventlog.log("overdue", "WARN", run.pool, work_id=run.work_id, name=run.name, timeout_ms=run.timeout_ms, **tracing.told(run.trace))


class Shot:
    """One exception for one call of a function on a thread: fired while the call lasts, or never."""

    __slots__ = ("done", "fired", "firing", "process", "thread")

    def __init__(self) -> None:
        self.thread, self.process = threading.get_ident(), os.getpid()
        self.done = self.firing = self.fired = False

    def fire(self) -> None:
        """Raise WorkTimeout in the call's thread, unless the call has ended. On the watchman's thread, once."""
        # Whoever comes first, the other sees it: the call sets ``done`` before it looks at ``firing``.
        self.firing = True
        if not self.done:
            _raise_in(self.thread, id(WorkTimeout))
        self.fired = True

    def is_in_the_way(self) -> bool:
        """Return whether the thread is in code that should not be torn apart. While this is asked, it stays where it is."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame.f_code not in (visit.__code__, call_for.__code__, Timeout.call.__code__):
            module = str(frame.f_globals.get("__name__"))
            if module.partition(".")[0] in FRAGILE or (module, frame.f_code.co_name) in SWALLOWING:
                return True
            frame = frame.f_back
        return False

    def end(self) -> None:
        """Note that the call has ended. The exception may come in here, for the last time: then this is called once more."""
        self.done = True
        if self.firing:
            # Moments, however long they are on this machine; but a copy of the process has no watchman.
            while not self.fired and os.getpid() == self.process:
                time.sleep(0)
            # What was not raised yet is not raised any more.
            _raise_in(self.thread, None)


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
        self._told = False
        _watchman.watch(self)

    def call(self, body: Callable[[], Any]) -> Any:
        """Call ``body`` on this thread as long as there is time.

        Raises:
            WorkTimeout: the time is over; raised in ``body``, unless it has not begun yet.
        """
        shot = Shot()
        try:
            try:
                self._shot = shot
                # The watchman may have looked just before that.
                if time.monotonic() >= self._at:
                    raise WorkTimeout
                return body()
            finally:
                shot.end()
        except WorkTimeout as error:
            # Perhaps raised in end() itself; there is no other one to come.
            shot.end()
            if not error.args:
                error.args = (told_timeout(self.run),)
            raise

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
        if shot.done:
            # If another call begins, it sees by itself that it is too late.
            return float("inf")
        if not shot.firing:
            if now < self._at + LEAVE_TIME and shot.is_in_the_way():
                return now + LEAVE_EVERY
            shot.fire()
            self._fired_at = now
        return float("inf") if self._told or self._fired_at is None else self._fired_at + STOP_GRACE

    def is_overdue(self, now: float) -> bool:
        """Return whether the function goes on for long though the exception was raised in it; true once."""
        if self._told or self._fired_at is None or now < self._fired_at + STOP_GRACE or self._shot.done:
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
