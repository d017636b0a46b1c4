"""Completes attempts without on_complete in batches, on a thread and a connection of its own."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from django.db import connections

from ..complete import Attempted, Completed, complete_many
from ..database import database
from ..database_errors import is_away, is_conflict
from ..types import Run
from .persist import persist, tell

logger = logging.getLogger("django_workpool.worker")

#: Attempts completed in one transaction: a few milliseconds, so that no row is locked for long.
BATCH = 256


class Writer:
    """The batch writer of one process.

    Args:
        using: The database.
        done: Told each run whose completion has been committed.
        is_stopping: Whether to give up waiting for a database that is away.
    """

    def __init__(self, using: str, done: Callable[[Run], None], is_stopping: Callable[[], bool]) -> None:
        self.using, self.done, self.is_stopping = using, done, is_stopping
        self._queue: queue.SimpleQueue[Attempted | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0
        #: Counted so that others see that the thread gets on.
        self.rounds = 0

    def put(self, attempted: Attempted) -> None:
        """Take an attempt; it is written soon."""
        with self._lock:
            self._open += 1
        self._queue.put(attempted)

    @property
    def idle(self) -> bool:
        """Whether everything it was given is written."""
        return self._open == 0

    def drain(self, timeout: float) -> bool:
        """Wait until everything is written, at most ``timeout`` seconds; return whether it is."""
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
                batch = self._take()
                self.rounds += 1
                if batch:
                    try:
                        self._write(batch)
                    finally:
                        for one in batch:
                            self.done(one.run)
                        with self._lock:
                            self._open -= len(batch)
        finally:
            connections[self.using].close()

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
