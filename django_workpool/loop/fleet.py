"""The live workers, as the leader knows them: who has room for which function."""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

from .. import serialization
from ..callbacks import lane_of
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
    "{Worker}.left, lockless, beat FROM {Worker} ORDER BY id",
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

    def knows(self, path: str, fn_type: str) -> bool:
        """Return whether it has the function, as the kind that its work was enqueued as: another release may have made another of it."""
        return self.functions.get(path, "").partition(":")[0] == fn_type

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
    #: Which room a function takes in a worker, as long as the workers stay the same.
    _places: dict[tuple[int, int, str], tuple[int, Room]] = field(default_factory=dict)
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
        self._places.clear()
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

    @property
    def any_lost(self) -> bool:
        """Return whether anything runs on such a worker."""
        return any(self.is_lost(worker_id) for worker_id, _ in self.load)

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
        self.load.update(map(self.place, now))
        self.load -= Counter(map(self.place, before))

    def place(self, one: Running) -> tuple[int, Room]:
        """Return which room of which worker a running work takes."""
        key = one.worker_id, one.lane, one.func_path
        place = self._places.get(key)
        if place is None:
            worker = self.workers.get(one.worker_id)
            place = self._places[key] = one.worker_id, worker.room_for(one.lane, one.func_path) if worker else Room.THREAD
        return place


@dataclass(slots=True)
class _Slot:
    """One room of one worker, as it fills during an iteration."""

    worker_id: int
    free: int
    capacity: int
    #: The leader's own worker wins ties, as its works need no message; or comes first in any case.
    own: bool
    first: bool

    def entry(self) -> tuple[bool, float, bool, int, int, "_Slot"]:
        """Return itself as a heap orders it: the least loaded first."""
        return not self.first, -self.free / self.capacity, not self.own, -self.worker_id, self.free, self


class Placement:
    """The places of one iteration: hands out room that its commit will take, and that of the runs which it has ended.

    Args:
        fleet: The workers.
        pool: Whose works are placed.
        ended: Running rows that this iteration has deleted.
        stays: Whether the leader's own worker comes first, as works end sooner there than others would hear of them.
    """

    def __init__(self, fleet: Fleet, pool: str, ended: Iterable[Running] = (), *, stays: bool = False) -> None:
        self.fleet = fleet
        self.workers = fleet.serving(pool)
        freed = Counter(map(fleet.place, ended))
        self._slots = {
            (worker.id, room): _Slot(
                worker.id,
                capacity - fleet.load[worker.id, room] + freed[worker.id, room],
                capacity,
                own := worker.id == fleet.own,
                own and stays,
            )
            for worker in self.workers
            for room, capacity in worker.capacity.items()
        }
        #: For each function the rooms that take it, as a heap, whose entries may be older than their room: others take of it, too.
        self._heaps: dict[tuple[str, str], list[tuple[bool, float, bool, int, int, _Slot]]] = {}
        self._known: dict[tuple[str, str], bool] = {}

    def known(self, path: str, fn_type: str) -> bool:
        """Return whether any live worker of the pool knows the function, as that kind."""
        known = self._known.get((path, fn_type))
        if known is None:
            known = self._known[path, fn_type] = any(worker.knows(path, fn_type) for worker in self.workers)
        return known

    def free(self, worker: WorkerInfo, room: Room) -> int:
        """Return how many more of a kind a worker takes."""
        return self._slots[worker.id, room].free

    def has_room(self, lane: Lane) -> bool:
        """Return whether any worker has room for anything of the lane."""
        rooms = (Room.CALLBACK,) if lane is Lane.CALLBACK else (Room.THREAD, Room.COROUTINE)
        return any(self.free(worker, room) > 0 for worker in self.workers for room in rooms)

    def free_threads(self, lane: Lane) -> int:
        """Return how many more of a lane the workers' threads take: most functions need one."""
        room = Room.CALLBACK if lane is Lane.CALLBACK else Room.THREAD
        return sum(max(0, self.free(worker, room)) for worker in self.workers)

    def take(self, path: str, fn_type: str) -> int | None:
        """Take a place for a function with the least loaded worker that knows it; None if none of them has room."""
        heap = self._heaps.get((path, fn_type))
        if heap is None:
            rooms = [self._slots[one.id, one.room_for(lane_of(fn_type), path)] for one in self.workers if one.knows(path, fn_type)]
            heap = self._heaps[path, fn_type] = [slot.entry() for slot in rooms if slot.free > 0]
            heapify(heap)
        while heap:
            *_, free, slot = heap[0]
            if slot.free != free:
                heapreplace(heap, slot.entry()) if slot.free else heappop(heap)
                continue
            slot.free -= 1
            heapreplace(heap, slot.entry()) if slot.free else heappop(heap)
            return slot.worker_id
        return None
