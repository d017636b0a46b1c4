"""When there is nothing left to do: for ``--drain``, and for the end of a process. Reads only."""

from ..database import database
from ..loop.batches import OVER
from ..models import PendingCompletion

#: Seconds between two looks.
EVERY = 0.1
#: Waiting works looked at, the soonest due first, in search of retries.
LOOK_MAX = 1_000
#: Tables whose rows are all something to wait for.
BUSY = ("RunningWork", "PendingCompletion", "PendingCancelation")


def is_drained(using: str, pools: tuple[str, ...] | None) -> bool:
    """Return whether nothing is due, running, completing or canceling, and nothing waits for a retry.

    What is due later for another reason, held for want of its function, or of a paused pool is left.
    """
    # One statement, one snapshot: between two of them a work could move from where the second looks to where the first did.
    busy = " UNION ALL ".join(f"SELECT pool, 0, 0, 1, 1, 0 FROM {{{table}}} GROUP BY pool" for table in BUSY)
    # Their callbacks are still to be enqueued.
    busy += f" UNION ALL SELECT b.pool, 0, 0, 1, 1, 0 FROM {{Batch}} b WHERE {OVER} GROUP BY b.pool"
    db = database(using)
    rows = db.fetch(
        f"{busy} UNION ALL "
        "SELECT s.pool, s.lane, s.segment, w.attempts + w.returns, g.max_parallelism, CASE WHEN w.held_since IS NULL THEN 0 ELSE 1 END "
        f"FROM (SELECT * FROM {{PendingStart}} ORDER BY segment LIMIT {LOOK_MAX}) AS s JOIN {{Work}} w ON w.id = s.work_id "
        "JOIN {Globals} g ON g.pool = s.pool"
    )
    now = db.segment()
    for pool, lane, segment, tries, limit, held in rows:
        if (pools is None or pool in pools) and (limit > 0 or lane == 1) and not held and (segment <= now or tries > 0):
            return False
    return True


def has_completions(using: str) -> bool:
    """Return whether completions wait for the loop."""
    return PendingCompletion.objects.using(using).exists()
