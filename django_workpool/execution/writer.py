"""Where ended attempts without on_complete wait: for the loop of this process, or to be written here in batches."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from django.db import connections

from ..complete import Completed, complete_many
from ..database import database
from ..database_errors import is_away, is_conflict
from ..types import Attempted, Run
from .persist import persist, tell

logger = logging.getLogger("django_workpool.worker")

#: Attempts completed in one transaction: a few milliseconds, so that no row is locked for long.
BATCH = 256


class Writer:
    """Where the attempts of one process that have ended wait to be written.

    While this process leads, its loop takes them into its next iteration: one transaction then ends them and starts others.
    Otherwise, or if an iteration fails, they are written here, in batches.

    Args:
        using: The database.
        done: Told each run whose completion has been committed.
        is_stopping: Whether to give up waiting for a database that is away.
    """

    def __init__(self, using: str, done: Callable[..., None], is_stopping: Callable[[], bool]) -> None:
        self.using, self.done, self.is_stopping = using, done, is_stopping
        self._queue: queue.SimpleQueue[Attempted | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0
        #: Wakes the loop, while it takes them; and what waits for it, by pool.
        self._wake_loop: Callable[[], None] | None = None
        self._for_loop: dict[str, list[Attempted]] = {}
        #: Counted so that others see that the thread gets on, and whether it has something in hand.
        self.rounds = 0
        self._writes = False

    def put(self, attempted: Attempted) -> None:
        """Take an attempt; it is written soon."""
        wake = None
        with self._lock:
            self._open += 1
            if self._wake_loop is None:
                self._queue.put(attempted)
            else:
                waiting = self._for_loop.setdefault(attempted.run.pool, [])
                # Once for all that come before it looks.
                wake = None if waiting else self._wake_loop
                waiting.append(attempted)
        if wake is not None:
            wake()

    # The loop's side --------------------------------------------------------------------------------------------

    def attach(self, wake: Callable[[], None]) -> None:
        """Keep from now on what comes for the loop of this process.

        Args:
            wake: called when something has come.
        """
        with self._lock:
            self._wake_loop = wake

    def detach(self) -> None:
        """Write everything here again: the loop does not lead any more."""
        with self._lock:
            self._wake_loop = None
            left, self._for_loop = self._for_loop, {}
            for attempted in left.values():
                for one in attempted:
                    self._queue.put(one)
            # The thread may be about to stop, and may have waited for what the loop has written.
            self._queue.put(None)

    def pools(self) -> list[str]:
        """Return the pools for which something waits for the loop."""
        return [pool for pool, waiting in list(self._for_loop.items()) if waiting]

    def take(self, pool: str, most: int) -> list[Attempted]:
        """Give the loop what waits, at most so much; it says of each whether it was ``written``, or to be written here."""
        with self._lock:
            waiting = self._for_loop.get(pool, [])
            taken = waiting[:most]
            del waiting[:most]
        return taken

    def written(self, runs: Sequence[Run]) -> None:
        """Note that completions have been committed, or refused."""
        if runs:
            self.done(*runs)
            with self._lock:
                self._open -= len(runs)

    def keep(self, attempted: Iterable[Attempted]) -> None:
        """Take back what an iteration could not write: it is written here, each alone if need be."""
        for one in attempted:
            self._queue.put(one)

    # Its own side -----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether everything it was given is written."""
        return self._open == 0

    @property
    def progress(self) -> object:
        """Something else each time, as long as the thread gets on or has nothing to write: what the loop has is the loop's matter."""
        return self.rounds if self._writes or self.waits else object()

    def drain(self, timeout: float) -> bool:
        """Write everything here, as the loop may be stuck; wait for that ``timeout`` seconds at most, and return whether it is done."""
        self.detach()
        end = time.monotonic() + timeout
        while not self.idle and time.monotonic() < end:
            time.sleep(0.005)
        return self.idle

    def wake(self) -> None:
        """Let ``run`` look at its stop flag."""
        self._queue.put(None)

    def run(self, stop: threading.Event) -> None:
        """Write until ``stop``: the body of its thread."""
        database(self.using).private_connection("writer")
        try:
            while not stop.is_set() or not self.idle:
                self.turn()
        finally:
            connections[self.using].close()

    @property
    def waits(self) -> bool:
        """Whether anything is to be written here."""
        return not self._queue.empty()

    def turn(self) -> None:
        """Wait for something, and write what there is of it."""
        batch = self._take()
        self.rounds += 1
        if batch:
            self._writes = True
            try:
                self._write(batch)
            finally:
                self._writes = False
                self.written([one.run for one in batch])

    def _take(self) -> list[Attempted]:
        first = self._queue.get()
        batch = [] if first is None else [first]
        while len(batch) < BATCH:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is not None:
                batch.append(following)
        return batch

    def _write(self, batch: Sequence[Attempted]) -> None:
        try:
            written = {one.run.token: one for one in complete_many(self.using, batch)}
        except Exception as error:
            if is_away(error):
                connections[self.using].close()
            elif not is_conflict(error):
                logger.exception("completing a batch of %s failed: each of it is tried alone", len(batch))
            for one in batch:
                tell(one.run, persist(self.using, one, self._write_one, self.is_stopping))
            return
        for one in batch:
            tell(one.run, written.get(one.run.token))

    def _write_one(self, attempted: Attempted) -> Completed | None:
        # Each try counts: waiting for a database that is away is what a writer is for.
        self.rounds += 1
        return next(iter(complete_many(self.using, [attempted])), None)
