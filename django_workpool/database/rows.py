"""Rows on their way into the tables, and the columns that more than one statement names."""

import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

#: The end of an EXISTS that is to be a look into an index for each row: a planner cannot turn it into a join.
PROBE = "LIMIT 1 OFFSET 0"
#: A condition on a work ``w``: it has not ended, and nobody has asked for its cancelation.
STANDS = (
    "NOT w.canceled AND w.callback_of IS NULL "
    "AND NOT EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.work_id = w.id) AND NOT EXISTS "
    "(SELECT 1 FROM {PendingCancelation} c WHERE c.pool = w.pool AND c.created_up_to IS NOT NULL AND c.created_up_to >= w.created)"
)
#: The columns that the archive takes over from Work.
KEPT_COLUMNS = (
    "id",
    "pool",
    "fn_type",
    "func_path",
    "name",
    "arguments",
    "priority",
    "created",
    "on_complete",
    "on_complete_context",
    "callback_of",
    "batch_id",
    "retry",
    "timeout_ms",
)
#: The columns of Work that an enqueue fills.
WORK_COLUMNS = (
    "id, pool, fn_type, func_path, name, arguments, priority, attempts, returns, "
    "on_complete, on_complete_context, retry, canceled, callback_of, timeout_ms, batch_id, trace, created"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWork:
    """What the works of one batch have in common."""

    pool: str
    lane: int
    fn_type: str
    func_path: str
    name: str
    priority: int = 0
    on_complete: str = ""
    on_complete_context: str = "null"
    retry: str = ""
    callback_of: uuid.UUID | None = None
    timeout_ms: int | None = None
    batch_id: uuid.UUID | None = None
    trace: str = ""


class Sent:
    """A statement that has been sent, and whose answer is there by now."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows."""
        with self._cursor:
            rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows

    @property
    def changed(self) -> int:
        """How many rows it has changed."""
        return int(self._cursor.rowcount)


class Start(NamedTuple):
    """A pending start that is to become a running row."""

    id: int
    work_id: uuid.UUID
    segment: int
    #: The worker that it is assigned to.
    worker_id: int


@dataclass(frozen=True, slots=True)
class Due:
    """When a batch is due: at once, after a delay, at a moment, or at a segment (whichever is later than now)."""

    segment: int = 0
    delay_ms: float | None = None
    #: Milliseconds since 1970. What has come by the database's time is due at once, and not only with the next segment.
    moment_ms: float | None = None


#: A query that finds a row or none, with tables as ``{Model}``, and its parameters.
Condition = tuple[str, list[Any]]
