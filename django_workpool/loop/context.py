"""What the phases of one iteration share: the view it began with, and the changes that it has made so far."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import eventlog
from ..database import Database, Sent
from ..segments import segment_ms
from ..settle import LockedWork, Verdict
from ..types import Attempted, Lane, Run
from .fleet import Fleet
from .memory import Cursor, Depth, OpenBatches, PoolMemory, Position, Report, Running
from .tallies import Counts

if TYPE_CHECKING:
    from .due import Due

#: Its limit of callback works while a pool is paused: the ends of works go on being told.
PAUSED_CALLBACKS = 10


class Ended(NamedTuple):
    """An attempt that has ended: a pending completion, or (``id`` 0) a result that this iteration has settled itself."""

    work_id: uuid.UUID
    kind: str
    follow: str
    segment: int = 0
    id: int = 0


@dataclass(slots=True)
class Iteration:
    """One iteration's view and the changes it has made so far."""

    db: Database
    memory: PoolMemory
    fleet: Fleet
    depth: Depth
    #: Set by the fence.
    now_ms: float = 0.0
    #: This process's monotonic time, just after that.
    at: float = 0.0
    limit: int = 0
    #: False: the row that says it is gone, and nothing is started until it has been made again.
    has_limit: bool = True
    #: Whether pending completions wait, and pending cancelations.
    completing: bool = False
    canceling: bool = False
    #: Changes of the memory, made after the commit.
    #: By token.
    ended: dict[int, Running] = field(default_factory=dict)
    started: list[Running] = field(default_factory=list)
    #: What is to be started, and by which worker, by lane.
    chosen: "list[list[tuple[Due, int]]]" = field(default_factory=lambda: [[] for _ in Lane])
    #: How many of each lane these are: ended, and chosen.
    freed: list[int] = field(default_factory=lambda: [0] * len(Lane))
    taken: list[int] = field(default_factory=lambda: [0] * len(Lane))
    #: Attempts that have ended in this process: those that this iteration ends, and what it leaves to others.
    results: Sequence[Attempted] = ()
    succeeded: list[Attempted] = field(default_factory=list)
    others: list[Attempted] = field(default_factory=list)
    deleted: Sent | None = None
    settled: list[tuple[Attempted, Verdict]] = field(default_factory=list)
    passed_over: list[Attempted] = field(default_factory=list)
    advances: list[tuple[Cursor, Position]] = field(default_factory=list)
    new_starts: dict[tuple[int, int], Cursor] = field(default_factory=dict)
    pages: dict[int, tuple[Position, bool] | None] = field(default_factory=dict)
    #: What has happened, by lane.
    counts: list[Counts] = field(default_factory=lambda: [Counts() for _ in Lane])
    #: How many works wait and run, where the report is due.
    held: tuple[int, int] | None = None
    batches: OpenBatches | None = None
    #: What the runner acts on.
    runs: dict[int, list[Run]] = field(default_factory=dict)
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    #: The tokens of runs whose works it has marked as canceled, by worker: these are told.
    stops: dict[int, list[int]] = field(default_factory=dict)
    #: Works that this iteration has ended, or sent back, without an attempt that came home: signals tell of them.
    judged: list[tuple[LockedWork, Verdict]] = field(default_factory=list)
    #: A batch was full: there is more of the same.
    again: bool = False
    #: Nothing more can be placed now.
    saturated: bool = False
    #: Whether other pools wait for the room that this one frees, and whether this one waits for room.
    yields: bool = False
    starved: bool = False
    #: Pending starts looked at so far.
    looked: int = 0
    #: For each lane the first segment after now at which something is due, if that was looked for; and of those that have room.
    ahead: tuple[int | None, int | None] | None = None
    next_segment: int | None = None
    #: The pool's first periodic tick after now, if that was looked for.
    ticks: tuple[float | None] | None = None
    #: There are periodic works, but not the library that they need.
    cannot_tick: bool = False
    #: Set when the report has been emitted, or the state written.
    reported: bool = False
    saved: bool = False

    @property
    def now(self) -> int:
        """The segment that is now."""
        return int(self.now_ms // 100)

    @property
    def wait(self) -> float:
        """Seconds from ``at``, after the commit, until something comes due; infinity if nothing does."""
        moments = [float(segment_ms(self.next_segment))] if self.next_segment is not None else []
        moments += [self.memory.tick_ms] if self.memory.tick_ms is not None else []
        return (min(moments, default=float("inf")) - self.now_ms) / 1000

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self.memory.pool

    @property
    def report(self) -> Report:
        """What the report counts of it: works, not their callbacks."""
        return self.counts[Lane.WORK].report()

    def is_running(self, work_id: uuid.UUID) -> bool:
        """Return whether a work has a running row that this iteration has not ended."""
        running = self.memory.running.get(work_id)
        return running is not None and running.token not in self.ended

    def end(self, one: Running) -> None:
        """Note that a running row is deleted."""
        if one.token not in self.ended:
            self.ended[one.token] = one
            self.freed[one.lane] += 1

    def forget_ended(self) -> None:
        """Take note that the memory knows by now what has ended so far."""
        self.ended.clear()
        self.freed = [0] * len(Lane)

    def choose(self, lane: Lane, chosen: "Sequence[tuple[Due, int]]") -> None:
        """Note what is to be started: it takes its room from now on."""
        self.chosen[lane] += chosen
        self.taken[lane] += len(chosen)

    def lane_limit(self, lane: Lane) -> int:
        """Return how many of a lane may run at once."""
        return self.limit if lane is Lane.WORK else self.limit or PAUSED_CALLBACKS

    def spare(self, lane: Lane) -> int:
        """Return how many more of a lane may be started."""
        # Counts of rows, never a counter that is kept: it cannot drift.
        return self.lane_limit(lane) - self.memory.count(lane) + self.freed[lane] - self.taken[lane]

    def tells(self, level: str) -> bool:
        """Return whether events of a level are wanted: there is one for each work."""
        return eventlog.is_wanted(level, self.pool)

    def emit_end(self, work: LockedWork, verdict: Verdict) -> None:
        """Emit, after the commit, the event of an end that no worker has brought home."""
        level, fields = eventlog.end(verdict.status, verdict.attempts, verdict.failure, work.trace)
        self.emit("completed", level, work_id=work.id, name=work.name, **fields)

    def emit(self, event: str, level: str, **fields: Any) -> None:
        """Emit an event after the commit."""
        self.events.append((event, level, fields))
