"""Which runs this process has: so that the same running row, found twice, is run once."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..types import Run


class Assignments:
    """The tokens of the runs that this process has taken and not yet seen gone from the running rows.

    A run may be offered twice: by a read of the running rows that began before its completion, and by the leader of this process,
    whose iteration has started it. So the token of a completed run is forgotten only when a read *and* an iteration have begun after
    its completion: those, and all later ones, cannot find it any more. (A process that does not lead has no iterations.)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine: set[int] = set()
        #: Completed since the last read began, and before that: the latter wait for an iteration to begin, if one is under way.
        self._fresh: list[int] = []
        self._read: list[int] = []
        self._iterating = False

    def take(self, runs: Sequence[Run]) -> list[Run]:
        """Return those of ``runs`` that are new; they are this process's from now on."""
        with self._lock:
            fresh = [run for run in runs if run.token not in self._mine]
            self._mine.update([run.token for run in fresh])
        return fresh

    def done(self, *runs: Run) -> None:
        """Note that the completions of runs have been committed (or refused)."""
        with self._lock:
            self._fresh.extend([run.token for run in runs])

    def forget(self, runs: Sequence[Run]) -> None:
        """Give up runs that could not be handed on: they are to be found again."""
        with self._lock:
            self._mine -= {run.token for run in runs}

    def has_any(self, runs: Sequence[Run]) -> bool:
        """Return whether any of ``runs`` was taken by this process."""
        with self._lock:
            return any(run.token in self._mine for run in runs)

    def unknown(self, tokens: Sequence[int]) -> list[int]:
        """Return which of the tokens are of runs that this process does not have."""
        with self._lock:
            return [token for token in tokens if token not in self._mine]

    def begin_fetch(self) -> None:
        """Note that a read of the running rows begins; there is one at a time."""
        with self._lock:
            if not self._iterating:
                self._mine.difference_update(self._read)
                self._read.clear()
            self._read += self._fresh
            self._fresh = []

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Surround an iteration of this process's loop and the handing over of what it has started."""
        with self._lock:
            self._iterating = True
            self._mine.difference_update(self._read)
            self._read.clear()
        try:
            yield
        finally:
            with self._lock:
                self._iterating = False

    def __len__(self) -> int:
        return len(self._mine) - len(self._fresh) - len(self._read)
