"""One look at the queues of all pools, in one statement: what no hint has told is found here. Reads only."""

from ..database import Database


def due_segments(db: Database) -> dict[str, int | None]:
    """Return for each pool the segment at which its queues want an iteration: 0 for at once, None for not at all.

    What is due later counts, too: where there are no kicks, nothing else tells of it.
    """
    rows = db.fetch(
        "SELECT i.pool, EXISTS (SELECT 1 FROM {PendingCompletion} c WHERE c.pool = i.pool) OR "
        "EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.pool = i.pool), "
        "(SELECT MIN(s.segment) FROM {PendingStart} s WHERE s.pool = i.pool AND s.lane = 0), "
        "(SELECT MIN(s.segment) FROM {PendingStart} s WHERE s.pool = i.pool AND s.lane = 1) FROM {InternalState} i"
    )
    return {pool: 0 if waits else min([one for one in segments if one is not None], default=None) for pool, waits, *segments in rows}
