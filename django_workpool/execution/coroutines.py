"""One thread with an event loop, on which any number of coroutines wait at once.

Coroutines share the loop: one that blocks, blocks them all. They share Django's connections too: its asynchronous calls run on
asgiref's one thread for synchronous code, where ``SharedThread`` keeps order as far as that is possible.
"""

import asyncio
import contextvars
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence, Set
from contextlib import suppress
from typing import Any

from ..types import Run
from .isolation import working_folder
from .shared import SharedThread, ThreadsBeside
from .threads import ExecutorStopped, report_crash

logger = logging.getLogger("django_workpool.execution")

#: Seconds for what functions have left on the loop to take note that it ends.
FAREWELL = 1.0
#: Seconds from the death of a loop to the next one: what killed it may kill that one too.
PAUSE = 0.1


_executors: "weakref.WeakSet[CoroutineExecutor]" = weakref.WeakSet()


class CoroutineExecutor:
    """Runs works as tasks of one event loop, on one daemon thread that is made when it is needed.

    Args:
        name: what the thread is called.
        run: runs one work and completes it: a task with an empty context. It is not supposed to raise.
        on_crash: called on the loop's thread, where the database cannot be used, with what ``run`` raised nevertheless, or with
            what the loop itself has died of. The loop goes on, or is made anew.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Run], Coroutine[Any, Any, None]],
        on_crash: Callable[[Run, BaseException], None],
    ) -> None:
        self.name = name
        self._run = run
        self._on_crash = on_crash
        # Guards all that follows. Nothing is called and nothing waited for while it is held, but for the start of the thread.
        self._changed = threading.Condition()
        self._waiting: dict[int, Run] = {}
        self._active: dict[int, tuple[Run, float]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._ending = False
        # The loop itself keeps only weak references.
        self._tasks: set[asyncio.Task[None]] = set()
        self._shared = SharedThread(name, working_folder(), self._is_quiet)
        self._ident: int | None = None
        _executors.add(self)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        with self._changed:
            return not self._waiting and not self._active

    def active(self) -> dict[int, tuple[Run, float]]:
        """Return what runs now: the run and when it began (monotonic clock, seconds), by the run's token."""
        with self._changed:
            return dict(self._active)

    def submit(self, runs: Sequence[Run]) -> None:
        """Take ``runs``, all or none.

        Raises:
            ExecutorStopped: after ``stop``.
            RuntimeError: there is no thread, and none could be started. Nothing was taken.
        """
        tokens = [run.token for run in runs]
        with self._changed:
            if self._stopped:
                raise ExecutorStopped(f"{self.name} has been stopped")
            if self._thread is None:
                self._start_thread()
            self._waiting.update(zip(tokens, runs, strict=True))
            if self._loop is not None:
                # A loop that has died meanwhile is replaced by one that begins with all that waits.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._begin, tokens)

    def cancel(self, tokens: Set[int]) -> list[Run]:
        """Return which of the runs with these tokens have not begun, and forget them: their works are canceled."""
        with self._changed:
            return [self._waiting.pop(token) for token in tokens & self._waiting.keys()]

    def take_back(self) -> list[Run]:
        """Return what has not begun, and forget it: it will not run."""
        with self._changed:
            runs = list(self._waiting.values())
            self._waiting.clear()
        return runs

    def stop(self, timeout: float) -> bool:
        """Begin nothing more, and wait until what runs has ended. What has not begun stays for ``take_back``.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether all has ended. If not, it goes on, and may be waited for again.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._stopped = True
            if not self._changed.wait_for(lambda: not self._active, timeout):
                return False
            self._ending = True
            thread, loop = self._thread, self._loop
            if loop is not None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), FAREWELL))
        return True

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        thread.start()
        self._thread = thread

    # From here on: on the executor's thread.

    def _serve(self) -> None:
        """Run loops, one after the other if need be, until the end."""
        self._ident = threading.get_ident()
        try:
            while not self._ending:
                loop = None
                try:
                    loop = asyncio.new_event_loop()
                    self._open(loop)
                    self._run_loop(loop)
                    self._say_farewell(loop)
                except BaseException as error:
                    self._bury(error)
                    time.sleep(PAUSE)
                finally:
                    self._tasks.clear()
                    if loop is not None:
                        with suppress(BaseException):
                            loop.close()
        finally:
            with self._changed:
                self._thread = self._loop = None

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_default_executor(ThreadsBeside(self.name, working_folder()))
        with self._changed:
            self._loop = loop
            loop.call_soon(self._begin, list(self._waiting))

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ending:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A callback or a task of a function's own raised it; the loop has let go of it and is unharmed.
                with suppress(BaseException):
                    logger.error("%s: %r reached the event loop, which goes on.", self.name, error)

    def _begin(self, tokens: Sequence[int]) -> None:
        """Make tasks of what waits. They begin one after the other, and until then may be taken back."""
        loop = asyncio.get_running_loop()
        self._tidy(loop)
        for token in tokens:
            try:
                self._make_task(loop, self._guarded(token))
            except BaseException as error:
                with self._changed:
                    run = self._waiting.pop(token, None)
                if run is not None:
                    report_crash(self._on_crash, run, error)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            task = loop.create_task(coroutine, context=contextvars.Context())
        except BaseException:
            coroutine.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tidy(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._shared.is_due():
            # On a loop that a function has spoilt the works come first.
            with suppress(Exception):
                self._make_task(loop, self._shared.tidy())

    def _is_quiet(self) -> bool:
        with self._changed:
            return not self._active

    async def _guarded(self, token: int) -> None:
        with self._changed:
            run = None if self._stopped else self._waiting.pop(token, None)
            if run is None:
                return
            entry = self._active[token] = (run, time.monotonic())
        try:
            await self._run(run)
        except BaseException as error:
            # What ran on a loop that has died is reported already.
            if self._active.get(token) is entry:
                report_crash(self._on_crash, run, error)
        with self._changed:
            if self._active.get(token) is not entry:
                return
            del self._active[token]
            self._changed.notify_all()
            quiet = not self._active
        if quiet:
            self._tidy(asyncio.get_running_loop())

    def _bury(self, error: BaseException) -> None:
        """Report what ran on a loop that has died."""
        with suppress(BaseException):
            logger.error("%s: the event loop has died of %r and is made anew.", self.name, error)
        with self._changed:
            lost = [run for run, _ in self._active.values()]
            self._active.clear()
            self._loop = None
        for run in lost:
            report_crash(self._on_crash, run, error)
        with self._changed:
            self._changed.notify_all()

    def _say_farewell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let tasks that functions have left on the loop take note that it ends. Never raises."""
        with suppress(BaseException):
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=FAREWELL))
        with suppress(BaseException):
            loop.run_until_complete(asyncio.wait_for(self._shared.close(), FAREWELL))
        with suppress(BaseException):
            loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), FAREWELL))

    def _end_copy(self) -> None:
        """In a copy of the process that a coroutine has forked: end when it waits or returns. All else on the loop is the original's."""
        loop: Any = self._loop
        if loop is None or self._ident != threading.get_ident():
            return
        # Another kind of loop may take some steps of others first.
        with suppress(AttributeError):
            loop._ready.clear()
        loop.call_soon(os._exit, 0)


def _end_copies() -> None:
    for executor in list(_executors):
        with suppress(Exception):
            executor._end_copy()


os.register_at_fork(after_in_child=_end_copies)
