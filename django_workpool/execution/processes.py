"""Child processes that run started works: each a fresh interpreter that shares nothing with this one but a pair of sockets.

One thread, ``ProcessExecutor.run``, starts them, feeds them, hears them and buries them. It must live as long as they do: the
kernel ends a child together with the thread that has started it.
"""

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress

from ..database.forks import keep_from_children
from ..types import Outcome, Run
from .backlog import Backlog
from .courier import post_frames
from .frames import read_outcome
from .offspring import Child, Program
from .threads import ExecutorStopped

logger = logging.getLogger("django_workpool.execution")

#: Seconds between two looks at what no socket tells of, and while something is about to end.
LOOK_EVERY, LOOK_SOON = 0.5, 0.01
#: Seconds until the next start after one that has failed: doubled each time. So many in a row, with no child alive, are the end.
START_AGAIN, START_AGAIN_MAX, STARTS_MAX = 0.2, 30.0, 5
#: Seconds after which a child that has done nothing yet counts as well started.
PROVEN_TIME = 10.0
#: Seconds that killed children get to disappear.
KILL_TIME = 1.0


class ProcessExecutor(Backlog):
    """Runs works in child processes, one at a time in each.

    Args:
        processes: how many children there are.
        program: what they are started with.
        home: takes the outcome of a run: what a child brings back, or what its death means for the run.
        done: told each run that a child has completed itself.
        recycle: works after which a child is replaced; 0 for never.
    """

    def __init__(
        self,
        processes: int,
        program: Program,
        home: Callable[[Run, Outcome], None],
        done: Callable[[Run], None],
        recycle: int = 0,
    ) -> None:
        self.processes, self.program, self.home, self.done, self.recycle = processes, program, home, done, recycle
        super().__init__()
        #: Whether the loop of this process leads: then it is told here what a child has completed, and the child tells nobody.
        self.leads: Callable[[], bool] = lambda: False
        self._changed = threading.Condition(self._lock)
        self._cut: list[Run] = []
        self._canceled: set[int] = set()
        self._stopped = self._cutting = self._over = False
        self._live = 0
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        # The thread's own.
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._failures = 0
        self._failed_at = self._start_at = self._look_at = float("-inf")
        # What a coroutine or a callback forks must not keep children from seeing the end of this process.
        keep_from_children(self, lambda executor: [child.channel.fileno() for child in executor._children])

    @property
    def live(self) -> int:
        """How many children there are, those that end included."""
        with self._changed:
            return self._live

    def submit(self, runs: Sequence[Run]) -> None:
        """Take ``runs``, all or none, and start them in this order as children become free.

        Raises:
            ExecutorStopped: after ``stop``.
        """
        with self._changed:
            if self._stopped:
                raise ExecutorStopped("the child processes have been stopped")
            self._waiting.extend(runs)
        self._ring()

    def stop(self, timeout: float) -> bool:
        """Begin nothing more, end idle children, and wait until the others have ended too.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether all children have ended.
        """
        with self._changed:
            self._stopped = True
            self._ring()
            return self._changed.wait_for(lambda: not self._live, timeout)

    def cut_off(self) -> list[Run]:
        """Kill the children that still run something; return these runs: what becomes of them is the caller's to say."""
        with self._changed:
            self._stopped = self._cutting = True
            self._ring()
            self._changed.wait_for(lambda: not self._active, KILL_TIME)
            runs = self._cut + [run for run, _ in self._active.values()]
            self._cut = []
            self._active.clear()
        return runs

    def cancel(self, tokens: Set[int]) -> list[Run]:
        """Return which of the runs with these tokens have not begun, and forget them; children that run one are told, and killed later."""
        with self._changed:
            self._canceled |= tokens & self._active.keys()
        self._ring()
        return super().cancel(tokens)

    def _ring(self) -> None:
        # A full buffer wakes the thread just as well.
        with suppress(BlockingIOError):
            self._bell.send(b"!")

    # From here on: on the executor's thread.

    def run(self, stop: threading.Event) -> None:
        """Keep children and feed them: the body of a thread. Returns after ``stop``, or when no child can be started any more."""
        while not self._is_over(stop):
            self._bury()
            self._dismiss()
            self._tell_canceled()
            if not self._start():
                return
            self._feed()
            for key, _ in self._selector.select(self._patience()):
                if key.data is None:
                    with suppress(BlockingIOError):
                        self._ear.recv(4096)
                else:
                    self._exchange(key.data)

    def _is_over(self, stop: threading.Event) -> bool:
        with self._changed:
            if stop.is_set():
                self._stopped = self._cutting = self._over = True
            self._live = len(self._children)
            self._changed.notify_all()
            return self._stopped and not self._children

    def _patience(self) -> float:
        if self._cutting or any(child.ends for child in self._children):
            return LOOK_SOON
        now = time.monotonic()
        times = [now + LOOK_EVERY, *(child.kill_at for child in self._children), *([self._start_at] if self._start_at > now else [])]
        return max(0.0, min(times) - now)

    def _start(self) -> bool:
        """Start children that are missing; return False when that is hopeless."""
        if self._failures and not all(child.ready for child in self._children):
            # First it must be known what becomes of those.
            return True
        while not self._stopped and time.monotonic() >= self._start_at and len(self._staying()) < self.processes:
            if self._failures >= STARTS_MAX and not self._staying():
                logger.critical("no child process can be started: giving up after %d attempts", self._failures)
                return False
            try:
                child = Child(self.program)
            except OSError as error:
                self._failed(f"could not be started: {error}", time.monotonic())
                continue
            self._children.append(child)
            self._selector.register(child.channel, selectors.EVENT_READ, child)
        return True

    def _staying(self) -> list[Child]:
        return [child for child in self._children if child.stopping is None]

    def _failed(self, what: str, started: float) -> None:
        # Children that were started together have failed once.
        self._failures += started >= self._failed_at
        self._failed_at = time.monotonic()
        wait = min(START_AGAIN * 2 ** (self._failures - 1), START_AGAIN_MAX)
        self._start_at = self._failed_at + wait
        logger.error("a child process %s; next try in %.1f s", what, wait)

    def _feed(self) -> None:
        for child in self._children:
            if not child.is_free:
                continue
            with self._changed:
                if self._stopped or not self._waiting:
                    return
                run = self._waiting.popleft()
                self._active[run.token] = (run, time.monotonic())
                low = len(self._waiting) == self._low
            if low:
                self._on_low()
            child.give(run, leads=self.leads())
            self._listen(child)

    def _tell_canceled(self) -> None:
        with self._changed:
            canceled, self._canceled = self._canceled, set()
        for child in self._children if canceled else ():
            if child.run is not None and child.run.token in canceled:
                child.cancel()
                self._listen(child)

    def _listen(self, child: Child) -> None:
        if child.closed is None:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.unsent else 0)
            self._selector.modify(child.channel, wanted, child)
        else:
            self._ignore(child)

    def _exchange(self, child: Child) -> None:
        """Send and receive what is possible without waiting, as long as its end is open."""
        if child.closed is not None:
            return
        child.flush()
        for frame in child.receive():
            if child.run is not None and frame.get("token") == child.run.token and not child.note(frame):
                run, child.run = child.run, None
                child.works += 1
                outcome = frame["outcome"]
                self._bring_home(run, outcome and read_outcome(outcome))
                post_frames(frame["signals"])
        self._listen(child)

    def _ignore(self, child: Child) -> None:
        with suppress(KeyError):
            self._selector.unregister(child.channel)

    def _bring_home(self, run: Run, outcome: Outcome | None) -> None:
        self.done(run) if outcome is None else self.home(run, outcome)
        self._forget(run)

    def _forget(self, run: Run) -> None:
        with self._changed:
            self._active.pop(run.token, None)
            self._changed.notify_all()
            idle = not self._active and not self._waiting
        if idle:
            self._on_low()

    def _dismiss(self) -> None:
        """Tell children to stop that are not needed any more, and kill those that do not obey, or hang."""
        now = time.monotonic()
        for child in self._children:
            worn = self.recycle and child.works >= self.recycle
            if self._over or (self._cutting and child.run) or (self._stopped and not child.ready):
                child.kill()
            elif child.is_free and (self._stopped or worn):
                child.stop()
                self._listen(child)
            elif child.is_overdue(now):
                child.kill()
            elif now >= child.kill_at:
                # It may have said meanwhile that the function has ended.
                self._exchange(child)
                if now >= child.kill_at:
                    child.kill_for_good()

    def _bury(self) -> None:
        """Take note of children that have ended."""
        now = time.monotonic()
        if now < self._look_at and not self._cutting and not any(child.ends for child in self._children):
            return
        self._look_at = now + LOOK_EVERY
        for child in list(self._children):
            if not child.proven and (child.works or (child.ready and now - child.started > PROVEN_TIME)):
                child.proven, self._failures = True, 0
            if child.has_ended():
                self._exchange(child)
                self._ignore(child)
                self._children.remove(child)
                child.channel.close()
                self._take_note(child)

    def _take_note(self, child: Child) -> None:
        run, told = child.run, child.told()
        if run is not None and self._cutting:
            with self._changed:
                self._cut.append(run)
            self._forget(run)
        elif run is not None:
            self._bring_home(run, child.lost(run))
        elif not self._stopped and child.stopping is None and child.killed is None:
            if not child.proven:
                self._failed(f"has ended before its first work ({told})", child.started)
                return
            logger.warning("a child process has ended while it was idle (%s)", told)
        self._start_at = float("-inf")
