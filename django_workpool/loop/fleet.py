"""The live workers, as the leader knows them: who has room for which function."""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from .. import serialization
from ..database import Part, database
from ..models import FunctionSet
from ..types import Lane
from .memory import Running

#: Seconds after which the workers' rows are known anew without a hint: the watch brings them with each of its looks.
REFRESH_EVERY = 1.0
#: Seconds after which they are read when nobody has brought them.
REFRESH_LATE = 2.0
#: Callback works that one worker takes at once: they have threads of their own, so that long actions do not keep them waiting.
CALLBACK_CAPACITY = 4


class WorkerRow(NamedTuple):
    """A worker's row, as it is read and brought."""

    id: int
    process: Any
    host: str
    pid: int
    capacity: int
    async_capacity: int
    pools: str
    function_set: str
    accepting: bool
    left: bool
    lockless: bool
    beat: Any


WORKERS = Part(
    "workers",
    "SELECT id, process, host, pid, capacity, async_capacity, pools, function_set, accepting, "
    '"left", lockless, beat FROM {Worker} ORDER BY id',
)


class Room(Enum):
    """Where in a worker a function runs: each has a capacity of its own."""

    THREAD = "thread"
    COROUTINE = "coroutine"
    CALLBACK = "callback"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker's row."""

    id: int
    name: str
    process: uuid.UUID
    capacity: Mapping[Room, int]
    #: None: all pools.
    pools: frozenset[str] | None
    #: Dotted path -> kind, ":async" behind it for coroutines.
    functions: Mapping[str, str]
    accepting: bool
    #: Whether it has ended in order.
    left: bool = False

    def serves(self, pool: str) -> bool:
        """Return whether it takes works of the pool."""
        return self.accepting and (self.pools is None or pool in self.pools)

    def room_for(self, lane: int, path: str) -> Room:
        """Return where a function of this worker runs."""
        if lane == Lane.CALLBACK:
            return Room.CALLBACK
        return Room.COROUTINE if self.functions.get(path, "").endswith(":async") else Room.THREAD


@dataclass(slots=True)
class Fleet:
    """All workers that have a row, how full each is, and which were seen dead."""

    #: The worker in this process: it wins ties, as its works need no message.
    own: int | None = None
    workers: dict[int, WorkerInfo] = field(default_factory=dict)
    load: Counter[tuple[int, Room]] = field(default_factory=Counter)
    #: Observed deaths; see execution.liveness.
    dead: set[int] = field(default_factory=set)
    refreshed: float = float("-inf")
    _sets: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _rows: list[WorkerRow] | None = None

    @property
    def is_late(self) -> bool:
        """Whether the rows are to be read, as nobody has brought them, or something has changed."""
        return time.monotonic() - self.refreshed >= REFRESH_LATE

    def refresh(self, using: str, *, now: bool = False) -> bool:
        """Read the workers' rows if that is due; return whether one has come, gone or changed."""
        if not now and not self.is_late:
            return False
        at = time.monotonic()
        rows = [WorkerRow(*row) for row in database(using).fetch(WORKERS.template)]
        # Nothing that is known is newer than what this thread has just read.
        self.refreshed = float("-inf")
        return self.take(using, rows, at)

    def take(self, using: str, rows: Sequence[WorkerRow], at: float) -> bool:
        """Take over the workers' rows, unless newer ones are known; return whether one has come, gone or changed.

        Args:
            using: The database.
            rows: The rows.
            at: The monotonic time when they were about to be read.
        """
        if at <= self.refreshed:
            return False
        self.refreshed = at
        rows = [row._replace(lockless=False, beat=None) for row in rows]
        if rows == self._rows:
            return False
        unknown = {row.function_set for row in rows if row.function_set} - set(self._sets)
        for digest, functions in FunctionSet.objects.using(using).filter(digest__in=unknown).values_list("digest", "functions"):
            self._sets[digest] = serialization.decode(functions)
        old, self.workers = self.workers, {row.id: self._info(using, row) for row in rows}
        # A list of functions that was not there yet is looked for again.
        self._rows = rows if all(not row.function_set or row.function_set in self._sets for row in rows) else None
        self.dead &= set(self.workers)
        return old != self.workers

    def _info(self, using: str, row: WorkerRow) -> WorkerInfo:
        pools = serialization.decode(row.pools)
        functions = self._sets.get(row.function_set, {})
        # Without coroutine functions there is no use for their room, and nothing to look for behind works that wait for a thread.
        coroutines = row.async_capacity if any(kind.endswith(":async") for kind in functions.values()) else 0
        capacity = {Room.THREAD: row.capacity, Room.COROUTINE: coroutines, Room.CALLBACK: CALLBACK_CAPACITY}
        return WorkerInfo(
            id=row.id,
            name=f"{row.host}:{row.pid}",
            process=database(using).read_uuid(row.process),
            capacity=capacity,
            pools=None if pools is None else frozenset(pools),
            functions=functions,
            accepting=bool(row.accepting),
            left=bool(row.left),
        )

    def name(self, worker_id: int) -> str:
        """Return a worker's name for people."""
        worker = self.workers.get(worker_id)
        return worker.name if worker else f"worker {worker_id}"

    def is_lost(self, worker_id: int) -> bool:
        """Return whether nothing that this worker runs will ever be completed: it was seen dead, has left, or has no row any more."""
        return worker_id in self.dead or worker_id not in self.workers or self.has_left(worker_id)

    def has_left(self, worker_id: int) -> bool:
        """Return whether a worker has ended in order: what is still assigned to it was never begun."""
        return worker_id in self.workers and self.workers[worker_id].left

    def serving(self, pool: str) -> list[WorkerInfo]:
        """Return the live workers of a pool."""
        return [one for one in self.workers.values() if one.serves(pool) and one.id not in self.dead]

    def recount(self, running: Iterable[Running]) -> None:
        """Count anew how full each worker is, from all running rows."""
        self.load = Counter(self.place(one) for one in running)

    def swap(self, before: Iterable[Running], now: Iterable[Running]) -> None:
        """Replace running rows that were counted by others."""
        self.load.subtract(self.place(one) for one in before)
        self.load.update(self.place(one) for one in now)

    def place(self, one: Running) -> tuple[int, Room]:
        """Return which room of which worker a running work takes."""
        worker = self.workers.get(one.worker_id)
        room = worker.room_for(one.lane, one.func_path) if worker else Room.THREAD
        return one.worker_id, room

    def add(self, one: Running, by: int = 1) -> None:
        """Note a start (or an end, ``by`` −1)."""
        self.load[self.place(one)] += by


class Placement:
    """The places of one iteration: hands out room that its commit will take, and that of the runs which it has ended."""

    def __init__(self, fleet: Fleet, pool: str, ended: Iterable[Running] = ()) -> None:
        self.fleet = fleet
        self.workers = fleet.serving(pool)
        self.taken: Counter[tuple[int, Room]] = Counter()
        self.taken.subtract(fleet.place(one) for one in ended)

    def known(self, path: str) -> bool:
        """Return whether any live worker of the pool knows the function."""
        return any(path in worker.functions for worker in self.workers)

    def free(self, worker: WorkerInfo, room: Room) -> int:
        """Return how many more of a kind a worker takes."""
        return worker.capacity[room] - self.fleet.load[worker.id, room] - self.taken[worker.id, room]

    def has_room(self, lane: Lane) -> bool:
        """Return whether any worker has room for anything of the lane."""
        rooms = (Room.CALLBACK,) if lane is Lane.CALLBACK else (Room.THREAD, Room.COROUTINE)
        return any(self.free(worker, room) > 0 for worker in self.workers for room in rooms)

    def take(self, lane: int, path: str) -> int | None:
        """Take a place for a function with the least loaded worker that knows it; None if none of them has room."""
        best: tuple[float, bool, int] | None = None
        for worker in self.workers:
            if path not in worker.functions:
                continue
            room = worker.room_for(lane, path)
            free = self.free(worker, room)
            if free > 0:
                rank = (free / worker.capacity[room], worker.id == self.fleet.own, worker.id)
                best = rank if best is None else max(best, rank)
        if best is None:
            return None
        worker = next(one for one in self.workers if one.id == best[2])
        self.taken[worker.id, worker.room_for(lane, path)] += 1
        return worker.id
