"""What the simulation keeps of a process, and what it tells."""

from collections import deque
from dataclasses import dataclass, field

from .devices import Cores


@dataclass(slots=True)
class Result:
    """What came of it; rates are of all shards, shares of one."""

    carried: float = 0.0
    #: What was enqueued a second.
    offered: float = 0.0
    #: The share of the time in which the loop iterates, and the cores that are busy on average.
    leader: float = 0.0
    cores: float = 0.0
    #: Of one shard's log.
    wal_mb_s: float = 0.0
    #: Works started by an iteration that started any.
    batch: float = 0.0
    #: Sent in one shard a second.
    hints_s: float = 0.0
    #: Seconds from the commit of the enqueue to the function's first line, sorted.
    latencies: list[float] = field(default_factory=list)
    #: How often each work ran, and ended.
    runs: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    #: Whether whoever enqueues had to wait: the backlog would grow, and the latencies with it.
    held_back: bool = False

    def percentile(self, share: float) -> float:
        """Return a latency in seconds; 0 if nothing ran."""
        return self.latencies[min(len(self.latencies) - 1, int(len(self.latencies) * share))] if self.latencies else 0.0


@dataclass(slots=True)
class Worker:
    """A process: what is assigned to it, what has ended in it, and its interpreter, which does one thing at a time."""

    python: Cores = field(default_factory=lambda: Cores(1))
    assigned: list[int] = field(default_factory=list)
    ended: deque[int] = field(default_factory=deque)
    running: int = 0
    fetches: bool = False
    writes: bool = False
