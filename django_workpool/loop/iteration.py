"""One iteration of one pool: one transaction, read from top to bottom.

``run_iteration`` returns an ``Outcome`` that the runner acts on after the commit. Whatever the runner loses in a crash can be
read again from the rows.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

from ..database import Database, database
from ..types import Lane, Run
from . import cancelations, completions, fence, recovery, starts, state
from .fleet import Fleet
from .memory import Cursor, Depth, PoolMemory, Position, Report, Running

#: Its limit of callback works while a pool is paused: the ends of works go on being told.
PAUSED_CALLBACKS = 10


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


def run_iteration(using: str, memory: PoolMemory, fleet: Fleet, owner: uuid.UUID, *, yields: bool = False) -> Iteration:
    """Work off a pool's queues once.

    Args:
        using: The database.
        memory: The pool's memory; changed after the commit.
        fleet: The workers; their load is changed after the commit.
        owner: Who leads, so we think: the fence checks it.
        yields: Whether other pools have waited longer for the room that this one's completions free.

    Raises:
        StaleGeneration: somebody else leads. Nothing has been written.
        OperationalError: the fence's row is locked, or the database is away. Nothing has been written.
    """
    it = Iteration(db=database(using), memory=memory, fleet=fleet, depth=memory.depth(), yields=yields)
    with it.db.write():
        fence.enter(it, owner)
        completions.retire(it)
        cancelations.cancel(it)
        recovery.recover(it)
        starts.start(it)
        state.keep(it)
    _remember(it)
    return it


def _remember(it: Iteration) -> None:
    """Take over what has been committed into the memory."""
    memory = it.memory
    for work_id, one in it.ended.items():
        if memory.running.pop(work_id, None) is not None:
            it.fleet.add(one, -1)
    for one in it.started:
        memory.running[one.work_id] = one
        it.fleet.add(one)
    memory.orphans = [one for one in memory.orphans if one.work_id not in it.ended]
    memory.starts |= it.new_starts
    for cursor, position in it.advances:
        cursor.advance(position)
    for row_id, page in it.pages.items():
        if page is None:
            memory.pages.pop(row_id, None)
        else:
            memory.pages[row_id] = page
    memory.read(it.depth)
    state.remember(it)
