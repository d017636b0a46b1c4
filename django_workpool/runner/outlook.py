"""What the loop's thread sees of the rows: what the watch's looks bring it, and its own looks where they are late, or were asked for."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..database import Answers, database
from ..loop import poll
from ..loop.batches import opened
from ..loop.fleet import Fleet, WorkerRow
from ..loop.memory import OpenBatches, PoolMemory
from .lead import Row

#: Seconds after which the loop looks itself: the watch brings every second what no hint has told.
LATE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """Which pools want an iteration."""

    #: As ``poll.due_segments`` has it.
    due: Mapping[str, int]
    #: The database's time when they were looked at, and this process's (monotonic) just before that.
    now_ms: float
    at: float
    #: The pools with open batches.
    batches: Mapping[str, OpenBatches] = field(default_factory=dict)

    @classmethod
    def of(cls, answers: Answers, now_ms: float, at: float) -> "Queues":
        """Return what the answers to ``poll.PARTS`` say."""
        return cls(due=poll.due_segments(answers), now_ms=now_ms, at=at, batches=opened(answers))


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one look of the watch has found."""

    at: float
    now_ms: float
    workers: Sequence[WorkerRow]
    lead: Row
    #: None if this process did not lead.
    queues: Queues | None
    #: For each pool with periodic works their first tick, as ``periodic.first_ticks`` has it.
    ticks: Mapping[str, float] | None = None


class Outlook:
    """One process's. Used by the loop's thread, except for ``bring``.

    Args:
        using: The database.
    """

    def __init__(self, using: str) -> None:
        self.db = database(using)
        #: When the queues that were judged last had been looked at (monotonic); minus infinity asks for a look now.
        self.polled = float("-inf")
        self._lock = threading.Lock()
        self._news: News | None = None
        self._read_ticks = float("-inf")

    def bring(self, news: News) -> None:
        """Take news from the watch's thread in the place of older ones: each tells all."""
        with self._lock:
            self._news = news

    @property
    def lead(self) -> tuple[Row, float] | None:
        """The lead's row and the database's time when it was read, if that was lately."""
        with self._lock:
            news = self._news
        return (news.lead, news.now_ms) if news is not None and time.monotonic() - news.at < LATE else None

    def read_workers(self, fleet: Fleet) -> bool:
        """Let the fleet know the workers' rows; return whether one has come, gone or changed."""
        with self._lock:
            news = self._news
        # What was brought may be older than what is read.
        return fleet.refresh(self.db.using) or (news is not None and fleet.take(self.db.using, news.workers, news.at))

    def read_queues(self) -> Queues | None:
        """Return what is new of the queues."""
        if time.monotonic() - self.polled >= LATE:
            at, now_ms = time.monotonic(), self.db.clock_ms()
            queues: Queues | None = Queues.of(poll.look(self.db), now_ms, at)
        else:
            with self._lock:
                queues = self._news.queues if self._news is not None else None
        if queues is None or queues.at <= self.polled:
            return None
        self.polled = queues.at
        return queues

    def plan_ticks(self, memories: Mapping[str, PoolMemory], next_turns: dict[str, float]) -> None:
        """Let the pools know the first ticks of their periodic works, and take their turns then.

        Looks of the loop's own leave them out: what has changed there is known with the watch's next look.
        """
        with self._lock:
            news = self._news
        if news is None or news.ticks is None or news.at <= self._read_ticks:
            return
        self._read_ticks = news.at
        for pool, memory in memories.items():
            if news.at > memory.read_ticks and not memory.cannot_tick:
                memory.tick_ms = news.ticks.get(pool)
                if memory.tick_ms is not None:
                    next_turns[pool] = min(next_turns[pool], news.at + max(0.0, memory.tick_ms - news.now_ms) / 1000)
