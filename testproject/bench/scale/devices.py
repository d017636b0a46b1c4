"""What queues form before: cores, an interpreter, a log that is flushed, hints that wake everybody. Times are seconds."""

from heapq import heapify, heapreplace


class Cores:
    """Some cores: whoever comes first is served first. Calls come in the order of their times."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._free = [0.0] * n
        heapify(self._free)
        self.busy = 0.0

    @property
    def free_at(self) -> float:
        """When the next one of them has nothing to do."""
        return self._free[0]

    def serve(self, now: float, seconds: float) -> float:
        """Return when something that comes now has been done."""
        return self.serve_at(now, seconds)[1]

    def serve_at(self, now: float, seconds: float) -> tuple[float, float]:
        """Return when it begins, and when it has been done."""
        begins = max(now, self._free[0])
        heapreplace(self._free, begins + seconds)
        self.busy += seconds
        return begins, begins + seconds


class Log:
    """The write-ahead log: one flush at a time, which ends all commits that came before it began."""

    def __init__(self, flush: float, bytes_s: float) -> None:
        self.flush, self.bytes_s = flush, bytes_s
        #: When the running flush ends, and the one after it, for which commits still come.
        self._ends = self._next_ends = 0.0
        self.bytes = 0.0

    def commit(self, now: float, size: float) -> float:
        """Return when a transaction that commits now is durable."""
        self.bytes += size
        if now >= self._next_ends:
            self._ends = self._next_ends = now + self.flush + size / self.bytes_s
            return self._ends
        if now >= self._ends:
            # The one that was to come runs by now.
            self._ends = self._next_ends
        if self._next_ends == self._ends:
            self._next_ends = self._ends + self.flush
        self._next_ends += size / self.bytes_s
        return self._next_ends


class Hints:
    """NOTIFY: all sessions that listen wake up, on as many cores as there are. Those that have not yet woken take two hints at once."""

    def __init__(self, cores: Cores, signal: float, again: float, wake: float) -> None:
        self.cores = cores
        self.signal, self.again, self.wake = signal, again, wake
        self._begins = self._ends = 0.0
        self.sent = 0

    def send(self, now: float, fixed: float, listeners: int) -> tuple[float, float]:
        """Return when the sender is through, and when everybody has heard."""
        self.sent += 1
        waits = now < self._begins
        sent = self.cores.serve(now, fixed + listeners * (self.again if waits else self.signal))
        if not waits:
            parts = min(self.cores.n, listeners)
            served = [self.cores.serve_at(now, listeners * self.wake / parts) for _ in range(parts)]
            self._begins, self._ends = min(begins for begins, _ in served), max(ends for _, ends in served)
        return sent, max(sent, self._ends)
