"""What the phases of one iteration share: the view it began with, and the changes that it has made so far."""

import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..database import Database
from ..types import Lane, Run
from .fleet import Fleet
from .memory import Cursor, Depth, PoolMemory, Position, Report, Running

#: Its limit of callback works while a pool is paused: the ends of works go on being told.
PAUSED_CALLBACKS = 10


class Ended(NamedTuple):
    """A pending completion."""

    id: int
    work_id: uuid.UUID
    segment: int
    kind: str
    follow: str


@dataclass(slots=True)
class Iteration:
    """One iteration's view and the changes it has made so far."""

    db: Database
    memory: PoolMemory
    fleet: Fleet
    depth: Depth
    #: Set by the fence.
    now_ms: float = 0.0
    limit: int = 0
    #: Changes of the memory, made after the commit.
    ended: dict[uuid.UUID, Running] = field(default_factory=dict)
    started: list[Running] = field(default_factory=list)
    advances: list[tuple[Cursor, Position]] = field(default_factory=list)
    new_starts: dict[tuple[int, int], Cursor] = field(default_factory=dict)
    pages: dict[int, tuple[Position, bool] | None] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    #: What the runner acts on.
    runs: dict[int, list[Run]] = field(default_factory=dict)
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    #: A batch was full: there is more of the same.
    again: bool = False
    #: Nothing more can be placed now.
    saturated: bool = False
    #: Whether other pools wait for the room that this one frees, and whether this one waits for room.
    yields: bool = False
    starved: bool = False
    #: Pending starts looked at so far.
    looked: int = 0
    #: The first segment after now at which something is due.
    next_segment: int | None = None
    #: Set when the report has been emitted, or the state written.
    reported: bool = False
    saved: bool = False

    @property
    def now(self) -> int:
        """The segment that is now."""
        return int(self.now_ms // 100)

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self.memory.pool

    def is_running(self, work_id: uuid.UUID) -> bool:
        """Return whether a work has a running row that this iteration has not ended."""
        return work_id in self.memory.running and work_id not in self.ended

    def lane_limit(self, lane: Lane) -> int:
        """Return how many of a lane may run at once."""
        return self.limit if lane is Lane.WORK else self.limit or PAUSED_CALLBACKS

    def spare(self, lane: Lane) -> int:
        """Return how many more of a lane may be started."""
        # Counts of rows, never a counter: it cannot drift.
        ended = sum(1 for one in self.ended.values() if one.lane == lane)
        begun = sum(1 for one in self.started if one.lane == lane)
        return self.lane_limit(lane) - self.memory.count(lane) + ended - begun

    def emit(self, event: str, level: str, **fields: Any) -> None:
        """Emit an event after the commit."""
        self.events.append((event, level, fields))
