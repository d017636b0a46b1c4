"""What the leader keeps of a pool between two iterations. All of it can be read again from the rows.

An iteration works on the rows and collects its changes; only after its commit do they enter the memory. After any error the
memory is read again.
"""

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ..database import Database
from ..models import RunningWork
from ..segments import SECOND
from ..types import Lane

#: Segments behind a cursor that are read again: most transactions commit within a second of their insert.
BUFFER = 1 * SECOND
#: Seconds between two reads of that buffer. In between the cursor is exact, so that dead index entries are not walked.
BUFFER_EVERY = 0.05
#: Seconds between two looks at everything behind the cursors: what a slow transaction has committed there.
BEHIND_EVERY = 1.0
#: Seconds after which the set of running work is read again, in case it and the rows ever differ.
RELOAD_EVERY = 10.0

#: Seconds: what takes less is not worth a message to another process.
STAYS = 0.002

Position = tuple[int, int]
BEGINNING: Position = (-(2**62), 0)


class Depth(Enum):
    """How far back an iteration reads its queues."""

    EXACT = "exact"
    BUFFER = "buffer"
    BEHIND = "behind"


@dataclass(slots=True)
class Cursor:
    """The (segment, id) up to which a queue has been read and worked off."""

    position: Position = BEGINNING

    def start(self, depth: Depth) -> Position:
        """Return the position after which to read."""
        if depth is Depth.BEHIND or self.position == BEGINNING:
            return BEGINNING
        return self.position if depth is Depth.EXACT else (self.position[0] - BUFFER, 0)

    def advance(self, position: Position) -> None:
        """Move on to a row that was worked off; a late row behind the cursor does not move it."""
        self.position = max(self.position, position)


class Running(NamedTuple):
    """A running row."""

    token: int
    work_id: uuid.UUID
    lane: int
    worker_id: int
    func_path: str
    started_ms: float


@dataclass(slots=True)
class Report:
    """What the pool did since the last report."""

    completed: int = 0
    succeeded: int = 0
    failed: int = 0
    retries: int = 0
    canceled: int = 0

    def add(self, other: "Report") -> None:
        """Add another one's counts."""
        for name in ("completed", "succeeded", "failed", "retries", "canceled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class OpenBatches(NamedTuple):
    """What the last look has found of a pool's open batches."""

    open: int
    #: Whether all works of one of them have ended.
    over: bool


@dataclass(slots=True)
class PoolMemory:
    """One pool, as its leader knows it."""

    pool: str
    generation: int
    running: dict[uuid.UUID, Running] = field(default_factory=dict)
    #: The tokens of those that are callback work.
    callbacks: set[int] = field(default_factory=set)
    #: Running rows without a work and without a completion.
    orphans: list[Running] = field(default_factory=list)
    #: A cursor for each (lane, priority), and those that lately had something due.
    starts: dict[tuple[int, int], Cursor] = field(default_factory=dict)
    active: set[tuple[int, int]] = field(default_factory=set)
    completions: Cursor = field(default_factory=Cursor)
    cancelations: Cursor = field(default_factory=Cursor)
    #: For each waiting cancel_all how far its page has come, and whether a locked work was passed over on the way.
    pages: dict[int, tuple[Position, bool]] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    #: The database's time of the last report.
    report_ms: float | None = None
    #: Monotonic times of the last reads.
    loaded: float = float("-inf")
    read_buffer: float = float("-inf")
    read_behind: float = float("-inf")
    #: Somebody has told that there is something: where it is most likely is looked first, everything else right after that.
    hurries: bool = False
    #: For each lane the first segment after the last look back at which something is due.
    ahead: tuple[int | None, int | None] = (None, None)
    #: Something due was found by a poll: as long as the loop has not looked behind its cursors, it may lie there.
    suspects_behind: bool = False
    #: None: there are none, or nobody has looked yet.
    batches: OpenBatches | None = None
    #: The database's time of the first tick of its periodic works (None: there is none; 0: not known yet), and when it was read.
    tick_ms: float | None = 0.0
    read_ticks: float = float("-inf")
    #: The library that they need is not installed here, which has been told.
    cannot_tick: bool = False
    #: When the state's row was written, and whether something has changed since.
    saved: float = float("-inf")
    dirty: bool = False
    #: Seconds that functions took lately in the leader's process.
    took: float = float("inf")
    #: Since when it has had due work but no room in the workers (monotonic).
    starving_since: float | None = None
    #: Iterations in a row that could have gone on at once, or could place nothing.
    busy: int = 0
    full: int = 0
    #: The status that was written last: (state, segment, saturated).
    status: tuple[str, int, bool] | None = None

    def depth(self) -> Depth:
        """Return how far back the next iteration reads."""
        now = time.monotonic()
        if self.hurries and self.active:
            return Depth.EXACT
        if now - self.read_behind >= BEHIND_EVERY:
            return Depth.BEHIND
        return Depth.BUFFER if now - self.read_buffer >= BUFFER_EVERY else Depth.EXACT

    def read(self, depth: Depth) -> None:
        """Note that an iteration has read so far back."""
        self.hurries = False
        if depth is Depth.EXACT:
            return
        self.read_buffer = time.monotonic()
        if depth is Depth.BEHIND:
            self.read_behind, self.suspects_behind = self.read_buffer, False

    def next_look(self, depth: Depth) -> float:
        """Return the monotonic time of the next look at what an iteration of this depth has not read, before the loop may sleep."""
        buffer = self.read_buffer + BUFFER_EVERY if depth is Depth.EXACT else float("inf")
        behind = self.read_behind + BEHIND_EVERY if self.suspects_behind else float("inf")
        return min(buffer, behind)

    def rewind(self) -> None:
        """Let the next iteration look behind the cursors."""
        self.hurries = False
        self.read_behind = float("-inf")

    @property
    def stays(self) -> bool:
        """Whether works end sooner in the leader's own process than another one would have heard of them."""
        return self.took < STAYS

    def learn(self, took: Iterable[float]) -> None:
        """Take note of how long functions took in this process."""
        for seconds in took:
            self.took = seconds if self.took == float("inf") else self.took + (seconds - self.took) / 16

    def count(self, lane: Lane) -> int:
        """Return how many of a lane run."""
        return len(self.callbacks) if lane is Lane.CALLBACK else len(self.running) - len(self.callbacks)

    def begin(self, one: Running) -> None:
        """Take over a running row that has been committed."""
        self.running[one.work_id] = one
        if one.lane == Lane.CALLBACK:
            self.callbacks.add(one.token)

    def end(self, one: Running) -> bool:
        """Take over that it is gone; return whether it was there."""
        self.callbacks.discard(one.token)
        return self.running.pop(one.work_id, None) is not None

    def is_stale(self) -> bool:
        """Return whether the running set is to be read again."""
        return time.monotonic() - self.loaded >= RELOAD_EVERY

    def load(self, db: Database) -> None:
        """Read the running set again. Called under the fence, where the leader is the only writer."""
        rows = db.fetch(
            "SELECT r.work_id, (SELECT w.func_path FROM {Work} w WHERE w.id = r.work_id), "
            "(SELECT c.id FROM {PendingCompletion} c WHERE c.work_id = r.work_id) FROM {RunningWork} r WHERE r.pool = %s",
            [self.pool],
        )
        paths = {db.read_uuid(work_id): path for work_id, path, _ in rows}
        completing = {db.read_uuid(work_id) for work_id, _, completion in rows if completion is not None}
        stored = RunningWork.objects.using(db.using).filter(pool=self.pool).values_list("id", "work_id", "lane", "worker_id", "started")
        self.running = {
            work_id: Running(
                token=token,
                work_id=work_id,
                lane=lane,
                worker_id=worker_id,
                func_path=paths.get(work_id) or "",
                started_ms=started.timestamp() * 1000,
            )
            for token, work_id, lane, worker_id, started in stored
        }
        self.callbacks = {one.token for one in self.running.values() if one.lane == Lane.CALLBACK}
        self.orphans = [one for one in self.running.values() if not one.func_path and one.work_id not in completing]
        self.loaded = time.monotonic()
