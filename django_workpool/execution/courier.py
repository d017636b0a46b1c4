"""Brings signals to the receivers of the project, which may do anything: raise, hang, leave a transaction open.

``work_started`` is sent where the function runs. What the loop, the watch and the writer have to tell goes through one bounded queue to
a thread of its own, as they never run the code of others. What does not fit is dropped and counted: signals are sent at most once.
"""

import asyncio
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.db import connections
from django.dispatch import Signal

from .. import eventlog
from ..settle import Verdict
from ..signals import is_heard, work_completed, work_started
from ..types import Run
from .isolation import Isolation

logger = logging.getLogger("django_workpool.signals")

#: Signals that wait for their receivers at most: some megabytes.
MOST = 10_000
#: Seconds without a signal after which the thread's connections are closed.
IDLE = 10.0
#: Seconds between two events that tell how many were dropped.
TELL_EVERY = 60.0


class Notice(NamedTuple):
    """One signal that is to be sent."""

    signal: Signal
    fields: dict[str, Any]


class Courier:
    """The queue, and the body of the thread that empties it. One for the process; safe to use from any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Notice | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: Threads that deliver, and threads of the pool that may still have something to tell.
        self._delivering = self._feeding = 0
        self._dropped, self._told = 0, float("-inf")
        #: In a child process: where the notices go instead.
        self._aside: list[Notice] | None = None

    def post(self, signal: Signal, **fields: Any) -> None:
        """Let a signal be sent soon, if anybody listens. Never waits, never raises."""
        if not is_heard(signal):
            return
        if self._aside is not None:
            self._aside.append(Notice(signal, fields))
        elif self._delivering and self._queue.qsize() < MOST:
            self._queue.put(Notice(signal, fields))
        elif self._delivering:
            self._drop()

    def completed(self, source: Any, work_id: uuid.UUID, verdict: Verdict) -> None:
        """Post ``work_completed``.

        Args:
            source: The run, or the work's row: what both know of the work.
            work_id: Its id.
            verdict: What was written.
        """
        if work_completed.receivers:
            self.post(
                work_completed,
                pool=source.pool,
                work_id=work_id,
                name=source.name,
                function=source.func_path,
                kind=str(source.fn_type),
                attempts=verdict.attempts,
                status=verdict.status,
                error=verdict.error,
            )

    def _drop(self) -> None:
        with self._lock:
            self._dropped += 1
            now = time.monotonic()
            if now - self._told < TELL_EVERY:
                return
            self._told, dropped, self._dropped = now, self._dropped, 0
        eventlog.log("signals_dropped", "WARN", "*", signals=dropped, waiting=MOST)

    # Its thread -------------------------------------------------------------------------------------------------

    def feeding(self, body: Callable[[threading.Event], None]) -> Callable[[threading.Event], None]:
        """Return the body of a thread that may have something to tell until it ends: the courier stays as long."""

        def fed(stop: threading.Event) -> None:
            with self._counted("_feeding"):
                body(stop)

        return fed

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)
        try:
            yield
        finally:
            with self._lock:
                setattr(self, name, getattr(self, name) - 1)
            # Whoever waits for the end has a look.
            for _ in range(self._delivering):
                self._queue.put(None)

    def run(self, stop: threading.Event) -> None:
        """Deliver until ``stop``, and until nobody has anything more to tell: the body of its thread."""
        isolation = Isolation()
        with self._counted("_delivering"):
            try:
                while not (stop.is_set() and not self._feeding and self._queue.empty()):
                    try:
                        notice = self._queue.get(timeout=IDLE)
                    except queue.Empty:
                        connections.close_all()
                    else:
                        if notice is not None:
                            send(notice.signal, notice.fields, isolation)
            finally:
                isolation.close()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Send what is posted inside the block on this thread, at its end: in the tests of a project, where no process runs."""
        before, self._aside = self._aside, []
        try:
            yield
        finally:
            posted, self._aside = self._aside, before
        for notice in posted:
            notice.signal.send_robust(None, **notice.fields)

    # Child processes --------------------------------------------------------------------------------------------

    def collect(self) -> list[Notice]:
        """Put notices into the returned list from now on: in a child process, which hands them to its parent."""
        self._aside = []
        return self._aside


#: The process's one.
courier = Courier()


def frames(notices: list[Notice]) -> list[dict[str, Any]]:
    """Return what a child process has collected as JSON, and empty the list."""
    told = [{**notice.fields, "work_id": notice.fields["work_id"].hex} for notice in notices if notice.signal is work_completed]
    notices.clear()
    return told


def post_frames(told: Iterable[dict[str, Any]]) -> None:
    """Post what a child process has collected."""
    for fields in told:
        courier.post(work_completed, **{**fields, "work_id": uuid.UUID(fields["work_id"])})


def send(signal: Signal, fields: dict[str, Any], isolation: Isolation) -> None:
    """Send a signal on this thread, whose state is as before afterwards. Never raises: what receivers raise, ``django.dispatch`` logs."""
    try:
        with isolation.function("a receiver of a signal"):
            isolation.call(signal.send_robust, (None,), fields)
    except BaseException:
        logger.exception("a receiver of a signal ended its thread's turn")


def announce(run: Run, isolation: Isolation) -> None:
    """Send ``work_started`` on the thread that is about to call the function."""
    if is_heard(work_started):
        send(work_started, _started(run), isolation)


async def announce_async(run: Run) -> None:
    """Send ``work_started`` from the coroutine that is about to await the function; plain receivers run on asgiref's thread."""
    if is_heard(work_started):
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        try:
            await work_started.asend_robust(None, **_started(run))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > before:
                # Not a receiver's own doing.
                raise
            logger.exception("a receiver of a signal could not be called")
            while task is not None and task.cancelling() > before:
                # Of the group of receivers, of which one has ended the others.
                task.uncancel()


def _started(run: Run) -> dict[str, Any]:
    return {
        "pool": run.pool,
        "work_id": run.work_id,
        "name": run.name,
        "function": run.func_path,
        "kind": str(run.fn_type),
        "attempt": run.attempts + 1,
    }
