"""Phase (d): start due work by priority, then age, as much as there is spare capacity and room in the workers."""

import uuid
from typing import TYPE_CHECKING, NamedTuple

from ..models import Work
from ..types import MAX_PRIORITY, MIN_PRIORITY, FnType, Lane, Run
from . import holds
from .fleet import Placement
from .memory import BUFFER, Cursor, Depth, Position, Running

if TYPE_CHECKING:
    from .iteration import Iteration

#: Works started in one iteration.
BATCH = 256
#: Rows passed over at the head of a queue (all workers that know them are full) in search of one that can be placed.
PASSED_MAX = 200
#: Rows looked at in one iteration, whatever can be done with them: the lease must not end meanwhile.
LOOK_MAX = 1_000
#: Rows read at least by the second and later reads of a queue.
STEP = 100

_PRIORITIES = ", ".join(f"({priority})" for priority in range(MIN_PRIORITY, MAX_PRIORITY + 1))


class Due(NamedTuple):
    """A due pending start and its work (``fn_type`` None: the work is gone)."""

    id: int
    segment: int
    work_id: uuid.UUID
    fn_type: str | None
    func_path: str
    name: str
    arguments: str
    attempts: int
    on_complete: str
    retry: str
    canceled: bool
    held: bool
    #: A cancelation of it, or a cancel_all that covers it, waits.
    waived: bool

    @property
    def position(self) -> Position:
        """Its place in the queue."""
        return self.segment, self.id


def start(it: "Iteration") -> None:
    """Start a batch of each lane, and find out what is due next."""
    # Room that this iteration has freed is for whoever has waited for room longest.
    placement = Placement(it.fleet, it.pool, () if it.yields else it.ended.values())
    queues = _queues(it)
    room = BATCH
    for lane in (Lane.CALLBACK, Lane.WORK):
        for priority in sorted((p for one, p in queues if one == lane), reverse=True):
            if it.spare(lane) <= 0 or not placement.has_room(lane) or room <= 0:
                break
            room -= _start_queue(it, lane, priority, placement, min(room, it.spare(lane)))
    it.again |= room <= 0 or (it.yields and bool(it.ended))
    crowded = bool(placement.workers) and it.spare(Lane.WORK) > 0
    it.starved = crowded and (it.starved or (not placement.has_room(Lane.WORK) and _has_due(it)))
    it.saturated = it.spare(Lane.WORK) <= 0 or not placement.has_room(Lane.WORK)
    _look_ahead(it)


def _queues(it: "Iteration") -> set[tuple[int, int]]:
    """Return the (lane, priority) pairs that have, or lately had, something due.

    Each is found by a probe with equality on lane and priority: a scan over all priorities would walk their far-future rows.
    """
    if it.depth is Depth.EXACT:
        return it.memory.active
    since = 0 if it.depth is Depth.BEHIND else it.now - BUFFER
    found = it.db.fetch(
        f"WITH lane(value) AS (VALUES (0), (1)), priority(value) AS (VALUES {_PRIORITIES}) "
        "SELECT lane.value, priority.value FROM lane, priority WHERE EXISTS (SELECT 1 FROM {PendingStart} s "
        "WHERE s.pool = %s AND s.lane = lane.value AND s.priority = priority.value AND s.segment >= %s AND s.segment <= %s)",
        [it.pool, since, it.now],
    )
    due = {(int(lane), int(priority)) for lane, priority in found}
    # An empty pool keeps them: what comes next is most likely of the same kind.
    it.memory.active = due or it.memory.active if it.depth is Depth.BEHIND else it.memory.active | due
    return it.memory.active


def _start_queue(it: "Iteration", lane: Lane, priority: int, placement: Placement, most: int) -> int:
    """Start at most ``most`` works of one queue; return how many."""
    cursor = it.memory.starts.get((lane, priority))
    if cursor is None:
        cursor = it.new_starts[lane, priority] = Cursor()
    position, begun, passed, least = cursor.start(it.depth), 0, 0, 0
    while begun < most:
        if it.looked >= LOOK_MAX:
            it.again = True
            break
        rows = _read(it, lane, priority, position, min(max(most - begun + passed, least), BATCH))
        if not rows:
            break
        # What could not be started may go on for long: larger steps from now on.
        it.looked, least = it.looked + len(rows), STEP
        started, left = _start_rows(it, lane, rows, placement, most - begun)
        begun += started
        if passed == 0:
            worked = [row.position for row in rows if row.id not in left]
            first_left = min((row.position for row in rows if row.id in left), default=None)
            done = [one for one in worked if first_left is None or one < first_left]
            if done:
                it.advances.append((cursor, max(done)))
        passed += len(left)
        position = rows[-1].position
        if passed > PASSED_MAX or (left and not placement.has_room(lane)):
            break
    return begun


def _read(it: "Iteration", lane: Lane, priority: int, after: Position, limit: int) -> list[Due]:
    rows = it.db.fetch(
        "SELECT s.id, s.segment, s.work_id, w.fn_type, w.func_path, w.name, w.arguments, w.attempts, w.on_complete, w.retry, w.canceled, "
        "w.held_since IS NOT NULL, w.callback_of IS NULL AND (EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.work_id = s.work_id) OR "
        "EXISTS (SELECT 1 FROM {PendingCancelation} c "
        "WHERE c.pool = s.pool AND c.created_up_to IS NOT NULL AND c.created_up_to >= w.created)) "
        "FROM {PendingStart} s LEFT JOIN {Work} w ON w.id = s.work_id WHERE s.pool = %s AND s.lane = %s AND s.priority = %s "
        f"AND (s.segment, s.id) > (%s, %s) AND s.segment <= %s ORDER BY s.segment, s.id LIMIT {limit}",
        [it.pool, lane, priority, *after, it.now],
    )
    return [Due(row[0], row[1], it.db.read_uuid(row[2]), *row[3:]) for row in rows]


def _start_rows(it: "Iteration", lane: Lane, rows: list[Due], placement: Placement, most: int) -> tuple[int, set[int]]:
    """Start what can be; return how many, and the ids of the rows that stay as they are."""
    chosen: list[tuple[Due, int]] = []
    drop, over, unknown, left = [], [], [], set()
    for row in rows:
        if row.fn_type is None or it.is_running(row.work_id):
            drop.append(row)
        elif row.canceled:
            over.append(row)
        elif row.waived:
            # The cancelation that waits will delete it.
            continue
        elif placement.workers and not placement.known(row.func_path):
            unknown.append(row)
        elif len(chosen) >= most:
            left.add(row.id)
        elif (worker_id := placement.take(lane, row.func_path)) is not None:
            chosen.append((row, worker_id))
        else:
            it.starved |= lane is Lane.WORK
            left.add(row.id)
    left |= holds.end_canceled(it, over) | holds.hold(it, unknown)
    holds.delete_starts(it, drop + [row for row, _ in chosen])
    _insert(it, lane, chosen)
    return len(chosen), left


def _insert(it: "Iteration", lane: Lane, chosen: list[tuple[Due, int]]) -> None:
    if not chosen:
        return
    held = [row.work_id for row, _ in chosen if row.held]
    if held:
        Work.objects.using(it.db.using).filter(id__in=held).update(held_since=None)
    now = it.db.moment(it.now_ms)
    tokens = it.db.insert_running([(row.work_id, it.pool, lane, worker_id, row.segment, now) for row, worker_id in chosen])
    for row, worker_id in chosen:
        token = tokens[row.work_id]
        running = Running(token=token, work_id=row.work_id, lane=lane, worker_id=worker_id, func_path=row.func_path, started_ms=it.now_ms)
        it.started.append(running)
        it.runs.setdefault(worker_id, []).append(
            Run(
                token=token,
                work_id=row.work_id,
                pool=it.pool,
                fn_type=FnType(row.fn_type or ""),
                func_path=row.func_path,
                name=row.name,
                arguments=row.arguments,
                attempts=row.attempts,
                has_callback=row.on_complete != "",
                retryable=row.retry != "",
                started=now,
            )
        )
        it.emit(
            "started",
            "INFO",
            work_id=row.work_id,
            name=row.name,
            attempt=row.attempts + 1,
            lag_ms=max(0, round(it.now_ms - row.segment * 100)),
        )


def _has_due(it: "Iteration") -> bool:
    """Return whether anything of the pool is due."""
    due = "SELECT 1 FROM {PendingStart} WHERE pool = %s AND lane = 0 AND segment <= %s LIMIT 1"
    return bool(it.db.fetch(due, [it.pool, it.now]))


def _look_ahead(it: "Iteration") -> None:
    """Find the next segment at which anything can be started that is not due yet."""
    due = "SELECT MIN(segment) FROM {PendingStart} WHERE pool = %s AND lane = {lane} AND segment > %s"
    ((work, callback),) = it.db.fetch(
        f"SELECT ({due.replace('{lane}', '0')}), ({due.replace('{lane}', '1')})",
        [it.pool, it.now] * 2,
    )
    if it.saturated:
        # Callback work has room of its own.
        work = None
    it.next_segment = min((segment for segment in (work, callback) if segment is not None), default=None)
