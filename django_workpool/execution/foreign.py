"""The EXECUTOR seam: actions run wherever an executor of others takes them, and their outcomes come home.

What is handed over is ``call`` with two texts, so any engine that can import this package on the other side will do. Importable
without settings: on that side they are set up by the first call.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from ..failures import describe
from ..types import Failure, Outcome, Run
from .frames import outcome_frame, pack, read_outcome, read_run, run_frame, unpack
from .isolation import Isolation
from .threads import ExecutorStopped

logger = logging.getLogger("django_workpool.execution")

#: Seconds from one making of an executor to the next, and from one complaint to the next.
MAKE_AGAIN = 5.0
EXECUTOR_LOST = "django_workpool.ExecutorLost"

_setup_lock = threading.Lock()
_here = threading.local()


def call(run: str, settings: str) -> str:
    """Run an action here, and return its outcome: what an executor calls, in whatever process and thread.

    Args:
        run: The run, a frame.
        settings: The module of the project's settings, unless this process has one already.

    Returns:
        The outcome, a frame; whatever the function raises is in there.
    """
    _set_up(settings)
    # They lead to the models.
    from .run import Performer
    from .workers import host_name

    brought: list[Outcome] = []
    isolation: Isolation | None = getattr(_here, "isolation", None)
    if isolation is None:
        isolation = _here.isolation = Isolation()
    performer = Performer(
        "default",
        f"{host_name()}:{os.getpid()}",
        write=lambda attempted: brought.append(attempted.outcome),
        aside=lambda _: None,
        done=lambda _: None,
        is_stopping=lambda: True,
        ends=False,
    )
    # Its on_complete is called where its end is written.
    performer.perform(read_run(unpack(run))._replace(has_callback=False), isolation)
    return pack(outcome_frame(brought[0])).decode()


def _set_up(settings: str) -> None:
    from django.apps import apps

    if not apps.ready:
        with _setup_lock:
            if not apps.ready:
                import django

                os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings)
                django.setup()


class _Ask(NamedTuple):
    """The wish that an executor cancels a run."""

    token: int


class ForeignExecutor:
    """Hands runs to an executor of others.

    Args:
        factory: makes the executor: an object with ``submit(function, *args)`` that returns a future with ``result()`` and
            ``add_done_callback(function)``. Another one is made when it is broken, or takes nothing any more.
        settings: the module of the project's settings.
        home: takes the outcome of a run.
        refused: takes runs that could not be handed over: they are to be found again.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        settings: str,
        home: Callable[[Run, Outcome], None],
        refused: Callable[[Sequence[Run]], None],
    ) -> None:
        self.factory, self.settings, self.home, self.refused = factory, settings, home, refused
        # Guards what follows. Nothing is called and nothing waited for while it is held.
        self._changed = threading.Condition()
        self._waiting: dict[int, Run] = {}
        self._active: dict[int, tuple[Run, float]] = {}
        self._futures: dict[int, Any] = {}
        #: Tokens of those that it was asked to cancel.
        self._canceled: set[int] = set()
        self._stopped = False
        self._executor: Any = None
        self._made = self._told = float("-inf")
        #: Tokens of runs to hand over, what to ask for, executors to give up, None for the end.
        self._to_do: SimpleQueue[Any] = SimpleQueue()

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        with self._changed:
            return not self._waiting and not self._active

    def active(self) -> dict[int, tuple[Run, float]]:
        """Return what was handed over and has not come home: the run and when that was (monotonic clock), by the run's token."""
        with self._changed:
            return dict(self._active)

    def submit(self, runs: Sequence[Run]) -> None:
        """Take ``runs``, all or none. They are handed over by a thread: executors may be slow to take something.

        Raises:
            ExecutorStopped: after ``stop``.
        """
        with self._changed:
            if self._stopped:
                raise ExecutorStopped("the executor has been stopped")
            self._waiting.update((run.token, run) for run in runs)
        for run in runs:
            self._to_do.put(run.token)

    def cancel(self, tokens: Set[int]) -> list[Run]:
        """Return which of the runs with these tokens were not handed over, and forget them; the executor is asked to let go of others."""
        with self._changed:
            runs = [self._waiting.pop(token) for token in tokens & self._waiting.keys()]
            asks = (tokens & self._futures.keys()) - self._canceled
            self._canceled |= asks
        for token in asks:
            self._to_do.put(_Ask(token))
        return runs

    def take_back(self) -> list[Run]:
        """Return what was not handed over, and forget it: it will not run. What an executor has, it may have begun."""
        with self._changed:
            runs = list(self._waiting.values())
            self._waiting.clear()
        return runs

    def stop(self, timeout: float) -> bool:
        """Hand nothing more over, and wait until what was is at home.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether it is.
        """
        with self._changed:
            self._stopped = True
            at_home = self._changed.wait_for(lambda: not self._active, timeout)
        if at_home:
            # Not before: some executors cancel what they have when they are shut down.
            self._to_do.put(None)
        return at_home

    def cut_off(self) -> list[Run]:
        """Cancel what was handed over, as far as the executor can; return these runs, whose outcomes nobody waits for any more."""
        with self._changed:
            runs = [run for run, _ in self._active.values()]
            futures = list(self._futures.values())
            self._active.clear()
            self._futures.clear()
        for future in futures:
            with suppress(Exception):
                future.cancel()
        return runs

    # From here on: on the executor's thread, and on those that call back.

    def run(self, stop: threading.Event) -> None:
        """Hand over what was submitted, until ``self.stop``: the body of a thread."""
        while (one := self._to_do.get()) is not None and not stop.is_set():
            if isinstance(one, _Ask):
                with self._changed:
                    future = self._futures.get(one.token)
                if future is not None:
                    with suppress(Exception):
                        # If it has begun, it goes on.
                        future.cancel()
                continue
            if not isinstance(one, int):
                self._close(one)
                continue
            with self._changed:
                run = None if self._stopped else self._waiting.pop(one, None)
                if run is not None:
                    self._active[run.token] = (run, time.monotonic())
            if run is not None:
                self._hand_over(run)
        self._close(self._executor)

    def _hand_over(self, run: Run) -> None:
        executor = None
        try:
            executor = self._take_executor()
            future = executor.submit(call, pack(run_frame(run)).decode(), self.settings)
        except BaseException as error:
            if time.monotonic() - self._told >= MAKE_AGAIN:
                self._told = time.monotonic()
                logger.warning("the executor did not take work %s (%s): it is offered again", run.work_id, describe(error).text)
            if isinstance(error, BrokenExecutor):
                self._close(executor)
            # What it has taken before may still come home.
            self._executor = None
            with self._changed:
                self._active.pop(run.token, None)
                self._changed.notify_all()
            self.refused([run])
            return
        with self._changed:
            if run.token in self._active:
                self._futures[run.token] = future
        future.add_done_callback(lambda future: self._come_home(run, future, executor))

    def _take_executor(self) -> Any:
        if self._executor is None:
            now = time.monotonic()
            if now - self._made < MAKE_AGAIN:
                raise BrokenExecutor("it is made again soon")
            self._made = now
            self._executor = self.factory()
        return self._executor

    def _close(self, executor: Any) -> None:
        """Give an executor up; the next run makes another one."""
        if executor is not None:
            if executor is self._executor:
                self._executor = None
            with suppress(Exception):
                executor.shutdown(wait=False)

    def _come_home(self, run: Run, future: Any, executor: Any) -> None:
        try:
            outcome = read_outcome(unpack(future.result()))
        except BaseException as error:
            if isinstance(error, BrokenExecutor):
                # Not here: this may be a thread of the executor's own that holds the lock which its shutdown takes.
                self._to_do.put(executor)
            failure = describe(error)
            text = f"the executor lost it: {failure.class_path.rpartition('.')[2]}: {failure.text}"
            outcome = Outcome(kind="failed", failure=Failure(class_path=EXECUTOR_LOST, text=text, traceback=failure.traceback))
            if run.token in self._canceled and "Cancelled" in type(error).__name__:
                # It had not begun.
                outcome = Outcome(kind="returned")
        with self._changed:
            self._futures.pop(run.token, None)
            self._canceled.discard(run.token)
            mine = run.token in self._active
        if not mine:
            return
        try:
            self.home(run, outcome)
        finally:
            with self._changed:
                self._active.pop(run.token, None)
                self._changed.notify_all()
