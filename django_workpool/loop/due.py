"""What is due, in the order in which it is to be started, and what will be. Reads only."""

import uuid
from typing import NamedTuple

from ..types import MAX_PRIORITY, MIN_PRIORITY, Lane
from . import retries
from .context import Iteration
from .memory import BUFFER, Depth, Position

#: In the order in which things are started; the other index of the table would walk what is due of all priorities.
INDEX = "workpool_start_due"


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
    has_callback: bool
    retryable: bool
    canceled: bool
    timeout_ms: int | None
    trace: str | None
    held: bool
    #: Whether any cancelation waits in the pool: then ``waived`` tells of which works.
    canceling: bool

    @property
    def position(self) -> Position:
        """Its place in the queue."""
        return self.segment, self.id


def queues(it: Iteration) -> set[tuple[int, int]]:
    """Return the (lane, priority) pairs that have, or lately had, something due.

    Each is found by a probe with equality on lane and priority: a scan over all priorities would walk their far-future rows.
    """
    if it.depth is Depth.EXACT:
        return it.memory.active
    # Where a probe finds no range it must not pass over what is older: that is among the known ones.
    since = 0 if it.depth is Depth.BEHIND or not it.db.correlates else it.now - BUFFER
    # A value, not an EXISTS, stays a probe: a planner that takes the table for small would join it. The order is that of one index only:
    # in the other one it would look through all that is due for each priority. A lane without anything due, as that of callbacks
    # mostly is, costs one probe instead of one for each priority. Where a probe finds a range it ends at now, and does not ask the table
    # whether what is due later is still there; elsewhere it would walk all of that.
    bound, is_due = (" AND s.segment <= %s", "IS NOT NULL") if it.db.correlates else ("", "<= %s")
    due = (
        "(SELECT s.segment FROM {{PendingStart}} s {by} WHERE s.pool = %s AND s.lane = lane.value{priority} AND s.segment >= %s"
        f"{bound} ORDER BY s.segment{{id}} LIMIT 1) {is_due}"
    )
    of_lane = due.format(by=it.db.by("workpool_start_next"), priority="", id="")
    of_priority = due.format(by=it.db.by(INDEX), priority=" AND s.priority = priority.value", id=", s.id")
    found = it.db.fetch(
        f"SELECT lane.value, priority.value FROM (SELECT value FROM {it.db.numbers(0, 1)} lane WHERE {of_lane}) lane, "
        f"{it.db.numbers(MIN_PRIORITY, MAX_PRIORITY)} priority WHERE {of_priority}",
        [it.pool, since, it.now] * 2,
    )
    pairs = {(int(lane), int(priority)) for lane, priority in found}
    # An empty pool keeps them: what comes next is most likely of the same kind.
    it.memory.active = pairs or it.memory.active if it.depth is Depth.BEHIND else it.memory.active | pairs
    return it.memory.active


def read(it: Iteration, lane: Lane, priority: int, after: Position, limit: int) -> list[Due]:
    """Return the next due rows of a queue, at most ``limit``."""
    behind, position = it.db.after("s.", after)
    rows = it.db.fetch(
        "SELECT s.id, s.segment, s.work_id, w.fn_type, w.func_path, w.name, w.arguments, w.attempts, w.on_complete <> '', w.retry <> '', "
        "w.canceled, w.timeout_ms, w.trace, w.held_since IS NOT NULL, EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.pool = %s) "
        f"FROM {{PendingStart}} s {it.db.by(INDEX)} LEFT JOIN {it.db.each('{Work}', 'w', 'w.id = s.work_id')} "
        "WHERE s.pool = %s AND s.lane = %s AND s.priority = %s "
        f"AND {behind} AND s.segment <= %s ORDER BY s.segment, s.id LIMIT %s",
        [it.pool, it.pool, lane, priority, *position, it.now, limit],
    )
    return [Due._make(row) for row in it.db.with_uuids(rows, 2)]


def waived(it: Iteration, rows: list[Due]) -> set[uuid.UUID]:
    """Return the works that a cancelation, or a cancel_all that covers them, waits for. Callback work is never canceled."""
    if not rows or not rows[0].canceling:
        return set()
    return set(retries.is_over(it, [row.work_id for row in rows]))


def has_due(it: Iteration) -> bool:
    """Return whether any work of the pool is due that has not been chosen: what has been is still there."""
    due = "SELECT 1 FROM {PendingStart} WHERE pool = %s AND lane = 0 AND segment <= %s LIMIT 1 OFFSET %s"
    return bool(it.db.fetch(due, [it.pool, it.now, len(it.chosen[Lane.WORK])]))


def look_ahead(it: Iteration) -> None:
    """Find the next segment at which anything can be started that is not due yet."""
    if it.depth is not Depth.EXACT:
        # What comes in between tells of itself, or is found by the next look back, for which the loop comes back soon.
        due = "SELECT MIN(segment) FROM {PendingStart} WHERE pool = %s AND lane = {lane} AND segment > %s"
        ((work, callback),) = it.db.fetch(
            f"SELECT ({due.replace('{lane}', '0')}), ({due.replace('{lane}', '1')})",
            [it.pool, it.now] * 2,
        )
        it.ahead = work, callback
    work, callback = it.ahead if it.ahead is not None else it.memory.ahead
    # While the pool is full, only callback work has room.
    lanes = (callback,) if it.saturated else (work, callback)
    it.next_segment = min((segment for segment in lanes if segment is not None and segment > it.now), default=None)
