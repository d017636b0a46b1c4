"""The fence: an iteration begins by locking its pool's row and checking that this process still leads.

``generation`` is a fencing token, what Raft calls a term: each take-over raises it under the same lock. A process that was
paused finds another one and steps down, having written nothing. The row is locked, not rewritten: under an old snapshot each
rewrite would make the next one slower.
"""

import time
import uuid

from ..database import Sent
from ..exceptions import StaleGeneration
from .context import Iteration


def enter(it: Iteration) -> Sent:
    """Ask to lock the pool's row; ``check`` reads the answer. What is sent in between counts only if it lets us pass."""
    memory = it.memory
    completions, ended = it.db.after("c.", memory.completions.start(it.depth))
    cancelations, canceled = it.db.after("c.", memory.cancelations.start(it.depth))
    return it.db.send(
        "SELECT i.generation, (SELECT owner FROM {Lead} LIMIT 1), (SELECT g.max_parallelism FROM {Globals} g WHERE g.pool = i.pool), "
        f"{it.db.clock_ms_sql}, "
        f"EXISTS (SELECT 1 FROM {{PendingCompletion}} c WHERE c.pool = i.pool AND {completions}), "
        f"EXISTS (SELECT 1 FROM {{PendingCancelation}} c WHERE c.pool = i.pool AND {cancelations}) "
        f"FROM {{InternalState}} i WHERE i.pool = %s {it.db.for_update(nowait=True)}",
        [*ended, *canceled, it.pool],
    )


def check(it: Iteration, asked: Sent, owner: uuid.UUID) -> None:
    """Check owner and generation; take note of the limit, the time, and which queues hold something.

    Loads the running set if it is stale.

    Raises:
        StaleGeneration: another process has taken the lead.
        OperationalError: the row is locked by somebody else.
    """
    memory, rows = it.memory, asked.rows()
    generation, leader, limit, now_ms, it.completing, it.canceling = rows[0] if rows else (None, None, 0, 0.0, False, False)
    if generation != memory.generation or leader is None or it.db.read_uuid(leader) != owner:
        raise StaleGeneration(f"pool {it.pool}: generation {memory.generation} of {owner} is over")
    it.limit, it.has_limit, it.now_ms, it.at = limit or 0, limit is not None, float(now_ms), time.monotonic()
    if memory.is_stale():
        before = list(memory.running.values())
        memory.load(it.db)
        # A new leader must not overfill the workers in its first iteration.
        it.fleet.swap(before, memory.running.values())
        # What has been ended before is not among what was read.
        it.forget_ended()
