"""The fence: an iteration begins by locking its pool's row and checking that this process still leads.

``generation`` is a fencing token, what Raft calls a term: each take-over raises it under the same lock. A process that was
paused finds another one and steps down, having written nothing. The row is locked, not rewritten: under an old snapshot each
rewrite would make the next one slower.
"""

import uuid

from django.db.models import FloatField, OuterRef, Subquery
from django.db.models.expressions import RawSQL

from ..database.base import lock_rows
from ..exceptions import StaleGeneration
from ..models import Globals, InternalState, Lead
from .context import Iteration


def enter(it: Iteration, owner: uuid.UUID) -> None:
    """Lock the pool's row, check owner and generation, read the limit and the time; load the running set if it is stale.

    Raises:
        StaleGeneration: another process has taken the lead.
        OperationalError: the row is locked by somebody else.
    """
    limit = Globals.objects.filter(pool=OuterRef("pool")).values("max_parallelism")
    row = (
        lock_rows(InternalState, it.db.using, nowait=True)
        .filter(pool=it.pool)
        .annotate(
            limit=Subquery(limit),
            owner=Subquery(Lead.objects.values("owner")[:1]),
            now_ms=RawSQL(f"({it.db.clock_ms_sql})", [], output_field=FloatField()),  # noqa: S611 - a constant
        )
        .values_list("generation", "owner", "limit", "now_ms")
        .first()
    )
    if row is None or row[0] != it.memory.generation or row[1] != owner:
        raise StaleGeneration(f"pool {it.pool}: generation {it.memory.generation} of {owner} is over")
    it.limit, it.now_ms = row[2] or 0, float(row[3])
    if it.memory.is_stale():
        before = list(it.memory.running.values())
        it.memory.load(it.db)
        # A new leader must not overfill the workers in its first iteration.
        it.fleet.swap(before, it.memory.running.values())
