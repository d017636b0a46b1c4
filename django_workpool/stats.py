"""Figures: the report's rates, and what a pool holds now. Reads only."""

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
