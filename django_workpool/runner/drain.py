"""When there is nothing left to do: for ``--drain``, and for the end of a process. Reads only."""

import uuid

from django.db.models import Q

from ..database import database
from ..models import PendingCancelation, PendingCompletion, RunningWork, Worker

#: Seconds between two looks.
EVERY = 0.1
#: Waiting works looked at, the soonest due first, in search of retries.
LOOK_MAX = 1_000


def is_drained(using: str, pools: tuple[str, ...] | None) -> bool:
    """Return whether nothing is due, running, completing or canceling, and nothing waits for a retry.

    What is due later for another reason, held for want of its function, or of a paused pool is left.
    """
    mine = Q() if pools is None else Q(pool__in=pools)
    for model in (RunningWork, PendingCompletion, PendingCancelation):
        if model._default_manager.using(using).filter(mine).exists():
            return False
    db = database(using)
    rows = db.fetch(
        "SELECT s.pool, s.lane, s.segment, w.attempts + w.returns, g.max_parallelism, w.held_since IS NOT NULL FROM "
        f"(SELECT * FROM {{PendingStart}} ORDER BY segment LIMIT {LOOK_MAX}) AS s JOIN {{Work}} w ON w.id = s.work_id "
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


def others(using: str, process: uuid.UUID) -> list[int]:
    """Return the workers of other processes that take work."""
    return list(Worker.objects.using(using).filter(accepting=True).exclude(process=process).values_list("id", flat=True))
