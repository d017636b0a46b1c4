"""Which runs this process has: so that the same running row, found twice, is run once."""

import threading
import time
from collections.abc import Sequence

from ..types import Run


class Assignments:
    """The tokens of the runs that this process has taken and not yet seen gone from the running rows.

    A run that was completed while somebody was reading the running rows may still be in what they have read. So its token is
    forgotten only when a read begins after its completion (that one, and all later ones, cannot find it any more), and long
    after: the leader of the same process may still be about to hand over what it has started.
    """

    #: Seconds for which a completed run is remembered at least.
    REMEMBER = 60.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine: set[int] = set()
        self._done: dict[int, float] = {}

    def take(self, runs: Sequence[Run]) -> list[Run]:
        """Return those of ``runs`` that are new; they are this process's from now on."""
        with self._lock:
            fresh = [run for run in runs if run.token not in self._mine]
            self._mine |= {run.token for run in fresh}
        return fresh

    def done(self, run: Run) -> None:
        """Note that a run's completion has been committed (or refused)."""
        with self._lock:
            self._done[run.token] = time.monotonic()

    def forget(self, runs: Sequence[Run]) -> None:
        """Give up runs that could not be handed on: they are to be found again."""
        with self._lock:
            self._mine -= {run.token for run in runs}

    def has_any(self, runs: Sequence[Run]) -> bool:
        """Return whether any of ``runs`` was taken by this process."""
        with self._lock:
            return any(run.token in self._mine for run in runs)

    def begin_fetch(self) -> None:
        """Note that a read of the running rows begins; there is one at a time."""
        with self._lock:
            before = time.monotonic() - self.REMEMBER
            # Insertion order is the order of time.
            for token, at in list(self._done.items()):
                if at > before:
                    break
                del self._done[token]
                self._mine.discard(token)

    def __len__(self) -> int:
        return len(self._mine) - len(self._done)
