"""One look at the queues of all pools, in one statement: what no hint has told is found here. Reads only."""

from ..database import Answers, Database, Part
from . import batches

#: Pools that a table's index names, each found by one probe: what pools without anything in their queues cost is nothing.
_NAMED = (
    "{name}(pool) AS (SELECT MIN(pool) FROM {{{table}}} UNION ALL "
    "SELECT (SELECT MIN(t.pool) FROM {{{table}}} t WHERE t.pool > n.pool) FROM {name} n WHERE n.pool IS NOT NULL)"
)
_FIRST = "(SELECT MIN(s.segment) FROM {PendingStart} s WHERE s.pool = i.pool AND s.lane = %d)"
_ENDS = " UNION ".join(f"SELECT pool FROM {name}" for name in ("completing", "canceling"))
_TABLES = {"waiting": "PendingStart", "completing": "PendingCompletion", "canceling": "PendingCancelation"}

#: For each pool whose queues hold something: whether there is something to work off at once, and the first segment of each lane.
QUEUES = Part(
    "queues",
    f"WITH RECURSIVE {', '.join(_NAMED.format(name=name, table=table) for name, table in _TABLES.items())} "
    f"SELECT i.pool, CASE WHEN i.pool IN ({_ENDS}) THEN 1 ELSE 0 END AS now, {_FIRST % 0} AS work, {_FIRST % 1} AS callback "
    f"FROM {{InternalState}} i WHERE i.pool IN (SELECT pool FROM waiting UNION {_ENDS})",
)

_IS_ANY = "EXISTS (SELECT 1 FROM {%s} c WHERE c.pool = i.pool LIMIT 1 OFFSET 0)"
_EARLIEST = "(SELECT s.segment FROM {PendingStart} s WHERE s.pool = i.pool AND s.lane = %d ORDER BY s.segment LIMIT 1)"
#: The same, where an index finds only what is equal: a few probes for each pool there is.
QUEUES_BY_POOL = Part(
    "queues",
    f"SELECT i.pool, CASE WHEN {_IS_ANY % 'PendingCompletion'} OR {_IS_ANY % 'PendingCancelation'} THEN 1 ELSE 0 END AS now, "
    f"{_EARLIEST % 0} AS work, {_EARLIEST % 1} AS callback FROM {{InternalState}} i",
)


#: What the leader asks in each look.
PARTS = (QUEUES, batches.OPEN)


def parts(db: Database) -> tuple[Part, ...]:
    """Return the same, as this database answers it quickly."""
    return PARTS if db.correlates else (QUEUES_BY_POOL, batches.OPEN)


def due_segments(answers: Answers) -> dict[str, int]:
    """Return for each pool the segment at which its queues want an iteration: 0 for at once. Pools with empty queues are left out.

    What is due later counts, too: where there are no kicks, nothing else tells of it.
    """
    over = {pool for pool, one in batches.opened(answers).items() if one.over}
    due: dict[str, int | None] = {
        pool: 0 if now else min((one for one in segments if one is not None), default=None) for pool, now, *segments in answers["queues"]
    }
    return {pool: segment for pool, segment in due.items() if segment is not None} | dict.fromkeys(over, 0)


def look(db: Database) -> Answers:
    """Return the answers to all parts from statements of their own."""
    return {part.name: db.fetch(part.template) for part in parts(db)}
