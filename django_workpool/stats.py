"""Figures: the report's rates, and what a pool holds now. Reads only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .database import Database, database
from .models import InternalState, RunningWork, RunStatus

#: Rows counted at most: beyond that a figure only says "at least".
COUNT_MAX = 100_000


def report(counts: dict[str, int], running: int, backlog: int) -> dict[str, Any]:
    """Return the fields of a report event from its counters."""
    completed, retries = counts["completed"], counts["retries"]
    final = completed - retries
    return {
        **counts,
        "running": running,
        "backlog": backlog,
        "failureRate": round((counts["failed"] + retries) / completed, 4) if completed else 0,
        "permanentFailureRate": round(counts["failed"] / final, 4) if final else 0,
    }


def count(db: Database, model: str, pool: str, condition: str = "") -> int:
    """Return how many rows a pool has in a table, at most ``COUNT_MAX``."""
    ((found,),) = db.fetch(
        f"SELECT COUNT(*) FROM (SELECT 1 FROM {{{model}}} WHERE pool = %s {condition} LIMIT {COUNT_MAX}) AS counted", [pool]
    )
    return int(found)


def backlog(db: Database, pool: str) -> int:
    """Return how many works wait, due or not, at most ``COUNT_MAX``."""
    return count(db, "PendingStart", pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """A pool now; counts end at ``COUNT_MAX``."""

    waiting: int
    running: int
    completing: int
    canceling: int
    max_parallelism: int
    spare_capacity: int
    run_status: str
    saturated: bool
    generation: int


def diagnostics(using: str, pool: str) -> Diagnostics:
    """Return what a pool holds now."""
    db = database(using)
    rows = db.fetch("SELECT max_parallelism FROM {Globals} WHERE pool = %s", [pool])
    limit = int(rows[0][0]) if rows else 0
    works = RunningWork.objects.using(using).filter(pool=pool, lane=0).count()
    status = RunStatus.objects.using(using).filter(pool=pool).first()
    state = InternalState.objects.using(using).filter(pool=pool).first()
    return Diagnostics(
        waiting=backlog(db, pool),
        running=RunningWork.objects.using(using).filter(pool=pool).count(),
        completing=count(db, "PendingCompletion", pool),
        canceling=count(db, "PendingCancelation", pool),
        max_parallelism=limit,
        spare_capacity=max(0, limit - works),
        run_status=status.state if status else "",
        saturated=bool(status and status.saturated),
        generation=state.generation if state else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One of all pools now; counts end at the bound that ``figures`` was given."""

    pool: str
    max_parallelism: int
    #: The segment at which the loop last wrote down that it had changed something.
    progress: int
    waiting: int
    #: How many are due; held and canceled ones are among them.
    due: int
    completing: int
    canceling: int
    #: The segment of the oldest pending completion; None if there is none.
    oldest_completion: int | None
    #: For each lane the pending start that is due longest, of a work that is neither held nor canceled; None if none is.
    oldest: tuple[int | None, int | None]


#: Due rows of a lane among which the oldest one is looked for that is neither held nor canceled.
OLDEST_AMONG = 1_000
#: Pools that one statement counts for, where it has to name them.
POOLS_AT_ONCE = 100

_COUNT = "(SELECT COUNT(*) FROM (SELECT 1 FROM {%s} q WHERE q.pool = g.pool %s LIMIT %d) counted)"
_OLDEST = (
    "(SELECT o.id FROM (SELECT s.id, s.segment, s.work_id FROM {PendingStart} s WHERE s.pool = g.pool AND s.lane = %d "
    "AND s.segment <= %d ORDER BY s.segment LIMIT %d) o JOIN {Work} w ON w.id = o.work_id "
    "WHERE NOT w.canceled AND w.held_since IS NULL AND (w.callback_of IS NOT NULL OR NOT ("
    "EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.work_id = w.id) OR EXISTS (SELECT 1 FROM {PendingCancelation} c "
    "WHERE c.pool = g.pool AND c.created_up_to IS NOT NULL AND c.created_up_to >= w.created))) ORDER BY o.segment LIMIT 1)"
)


def figures(db: Database, now: int, most: int, pools: Sequence[str] | None = None) -> list[Figures]:
    """Return what all pools hold, by one statement.

    Args:
        db: The database.
        now: The segment that is now.
        most: Each figure counts so many rows at most.
        pools: Only these; None for all.
    """
    due = " + ".join(_COUNT % ("PendingStart", f"AND q.lane = {lane} AND q.segment <= {now}", most) for lane in (0, 1))
    columns = [
        "g.pool, g.max_parallelism, COALESCE(i.last_recovery, 0)",
        _COUNT % ("PendingStart", "", most),
        due,
        _COUNT % ("PendingCompletion", "", most),
        _COUNT % ("PendingCancelation", "", most),
        "(SELECT MIN(c.segment) FROM {PendingCompletion} c WHERE c.pool = g.pool)",
        *(_OLDEST % (lane, now, OLDEST_AMONG) for lane in (0, 1)),
    ]
    if not db.correlates:
        return [_figures(row) for row in _one_by_one(db, columns, pools)]
    only = "" if pools is None else f"WHERE g.pool IN ({', '.join(['%s'] * len(pools)) or 'NULL'})"
    rows = db.fetch(
        f"SELECT {', '.join(columns)} FROM {{Globals}} g LEFT JOIN {{InternalState}} i ON i.pool = g.pool {only} ORDER BY g.pool",
        pools or (),
    )
    return [_figures(row) for row in rows]


def _one_by_one(db: Database, columns: Sequence[str], pools: Sequence[str] | None) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``figures``, where the counts must be told the name of each pool."""
    if pools is None:
        pools = [pool for (pool,) in db.fetch("SELECT pool FROM {Globals} ORDER BY pool")]
    own, *counts = columns
    one = f"SELECT {own}, {', '.join(counts).replace('g.pool', '%s')} FROM {{Globals}} g LEFT JOIN {{InternalState}} i ON i.pool = g.pool"
    one = f"{one} WHERE g.pool = %s"
    for start in range(0, len(pools), POOLS_AT_ONCE):
        few = sorted(pools[start : start + POOLS_AT_ONCE])
        yield from sorted(db.fetch(" UNION ALL ".join([one] * len(few)), [pool for pool in few for _ in range(one.count("%s"))]))


def _figures(row: Sequence[Any]) -> Figures:
    names = ("pool", "max_parallelism", "progress", "waiting", "due", "completing", "canceling", "oldest_completion")
    return Figures(**dict(zip(names, row[:-2], strict=True)), oldest=(row[-2], row[-1]))
