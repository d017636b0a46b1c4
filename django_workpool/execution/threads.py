"""Threads that run started works, each with an isolation of its own.

One list for all threads: a thread that has ended a work takes the next one itself, without being woken, so a backlog costs no
hand-over, and nothing waits behind a slow work while another thread is idle. Only idle threads are woken, each by one token.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from ..types import Run
from .backlog import Backlog
from .isolation import Isolation, working_folder

logger = logging.getLogger("django_workpool.execution")


class ExecutorStopped(RuntimeError):
    """The executor has been stopped and takes no more work."""


class Together(NamedTuple):
    """How runs that wait may share what they cost."""

    #: How many runs like this one may.
    most: Callable[[Run], int]
    #: Runs them, and returns those that are still to run, each alone: the last ones, or all.
    perform: Callable[[list[Run], Isolation], list[Run]]


ALONE = Together(lambda run: 1, lambda runs, isolation: runs)


class ThreadExecutor(Backlog):
    """Runs works on up to ``threads`` daemon threads, which are made when they are needed and then stay.

    Args:
        name: what the threads are called, with a number: "workpool" makes "workpool-1".
        threads: the most that may run at once.
        run: runs one work and completes it, on one of the threads, in an empty context. It is not supposed to raise.
        together: how runs that wait may share what they cost.
        on_crash: called on the same thread, with its connections restored, with what ``run`` raised nevertheless. The thread goes on.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        run: Callable[[Run, Isolation], None],
        on_crash: Callable[[Run, BaseException], None],
        together: Together = ALONE,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads must be 1 or more, not {threads!r}")
        self.name = name
        self.threads = threads
        self._run = run
        self._on_crash = on_crash
        self._together = together
        self._home = working_folder()
        # Its lock guards all that follows, and is held during the start of a thread.
        super().__init__()
        self._live: set[threading.Thread] = set()
        self._idle = 0
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._numbers = 0
        self._stopped = False

    @property
    def live(self) -> int:
        """How many threads there are."""
        with self._lock:
            return len(self._live)

    def submit(self, runs: Sequence[Run]) -> None:
        """Take ``runs``, all or none, and start them in this order as threads become free.

        Raises:
            ExecutorStopped: after ``stop``.
            RuntimeError: there is no thread, and none could be started. Nothing was taken.
        """
        with self._lock:
            if self._stopped:
                raise ExecutorStopped(f"{self.name} has been stopped")
            self._start_threads(len(runs) - self._idle)
            self._waiting.extend(runs)
            self._wake_threads(min(len(runs), self._idle))

    def stop(self, timeout: float) -> bool:
        """Begin nothing more, and wait until what runs has ended. What has not begun stays for ``take_back``.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether all threads have ended.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            self._stopped = True
            self._wake_threads(self._idle)
            threads = [thread for thread in self._live if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        with self._lock:
            return not self._live

    def _start_threads(self, wanted: int) -> None:
        for _ in range(min(wanted, self.threads - len(self._live))):
            self._numbers += 1
            thread = threading.Thread(target=self._work, name=f"{self.name}-{self._numbers}", daemon=True)
            self._live.add(thread)
            try:
                thread.start()
            except BaseException as error:
                if thread.ident is None:
                    self._live.discard(thread)
                if not self._live or not isinstance(error, (RuntimeError, MemoryError)):
                    raise
                logger.warning("%s goes on with %d of %d threads: %s", self.name, len(self._live), self.threads, error)
                return

    def _wake_threads(self, count: int) -> None:
        self._idle -= count
        for _ in range(count):
            self._wake.put(None)

    def _work(self) -> None:
        try:
            isolation = Isolation(self._home)
            while self._step(isolation):
                pass
            isolation.close()
        finally:
            with self._lock:
                self._live.discard(threading.current_thread())

    def _step(self, isolation: Isolation) -> bool:
        """Run the next work, or wait for a token; False when it is time to end. Whatever is raised, the thread goes on."""
        try:
            with self._lock:
                if self._stopped:
                    return False
                enough = not self.is_low
                runs = self._draw()
                self._idle += not runs
                low = enough and self.is_low
            if low:
                self._on_low()
            if not runs:
                self._wake.get()
            elif len(runs) == 1:
                self._run_one(runs[0], isolation)
            else:
                self._run_some(runs, isolation)
        except BaseException:
            with suppress(BaseException):
                logger.exception("%s: a thread was disturbed and goes on.", self.name)
        return True

    def _draw(self) -> list[Run]:
        """Take the next run, and those behind it that may run together with it: a fair share of them. The lock is held."""
        if not self._waiting:
            return []
        runs = [self._waiting.popleft()]
        most = min(self._together.most(runs[0]), 1 + len(self._waiting) // self.threads)
        while len(runs) < most and self._waiting and self._joins(self._waiting[0], runs[0]):
            runs.append(self._waiting.popleft())
        for run in runs:
            self._active[run.token] = (run, time.monotonic())
        return runs

    @staticmethod
    def _joins(run: Run, first: Run) -> bool:
        return (run.func_path, run.pool, run.has_callback, run.timeout_ms) == (first.func_path, first.pool, False, None)

    def _run_some(self, runs: list[Run], isolation: Isolation) -> None:
        left = runs
        try:
            left = contextvars.Context().run(self._together.perform, runs, isolation)
        finally:
            isolation.end()
            with self._lock:
                for run in runs[: len(runs) - len(left)]:
                    self._active.pop(run.token, None)
            for run in left:
                self._run_one(run, isolation)
            self._tell_idle()

    def _run_one(self, run: Run, isolation: Isolation) -> None:
        try:
            contextvars.Context().run(self._run, run, isolation)
        except BaseException as error:
            isolation.end()
            report_crash(self._on_crash, run, error)
        finally:
            # Once more, as whoever was told may have used the connections; most of the time there is nothing to do.
            isolation.end()
            with self._lock:
                self._active.pop(run.token, None)
            self._tell_idle()

    def _tell_idle(self) -> None:
        if not self._active and not self._waiting:
            self._on_low()


def report_crash(on_crash: Callable[[Run, BaseException], None], run: Run, error: BaseException) -> None:
    """Tell of what an executor's ``run`` raised. Never raises."""
    try:
        on_crash(run, error)
    except BaseException:
        with suppress(BaseException):
            logger.exception("work %s: its run %d crashed, and could not be reported.", run.work_id, run.token)
