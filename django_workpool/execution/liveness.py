"""Death is observed, not computed.

A worker is dead when this process has seen, over an unbroken window of its own monotonic clock, its lock free *and* its beat
unchanged; where locks cannot be used, its beat unchanged for longer. While the lock is held, beats are not judged: a
process whose interpreter is blocked for a minute lives. Whatever interrupts the observation starts the windows again.
"""

import time
from collections.abc import Collection, Hashable, Mapping

#: Seconds of the window with locks, and without.
WINDOW, WINDOW_WITHOUT_LOCKS = 5.0, 30.0
#: Seconds without an observation after which nothing is known of the time between.
GAP = 3.0


class Observer:
    """The windows of one process."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[Hashable, float]] = {}
        self._last: float | None = None

    def reset(self) -> None:
        """Start all windows again: the observation was interrupted."""
        self._since.clear()
        self._last = None

    def observe(
        self, beats: Mapping[int, Hashable], held: set[int] | None, now: float | None = None, lockless: Collection[int] = ()
    ) -> set[int]:
        """Take one look.

        Args:
            beats: Each worker's beat.
            held: The workers whose lock is held; None where this process cannot see locks.
            lockless: Workers that have none, as they are behind a pooler.
            now: The monotonic time, for tests.

        Returns:
            The workers seen dead.
        """
        now = time.monotonic() if now is None else now
        if self._last is not None and now - self._last > GAP:
            self._since.clear()
        self._last = now
        for worker in list(self._since):
            if worker not in beats:
                del self._since[worker]
        dead = set()
        for worker, beat in beats.items():
            seen = self._since.get(worker)
            if seen is None or seen[0] != beat or (held is not None and worker in held):
                self._since[worker] = (beat, now)
            elif now - seen[1] >= (WINDOW_WITHOUT_LOCKS if held is None or worker in lockless else WINDOW):
                dead.add(worker)
        return dead
