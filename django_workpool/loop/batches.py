"""Batches that are over: none of their works is left. Their callbacks are enqueued once, by the transaction that marks them as ended.

The leader's poll tells which pools have such a batch. Where it has told that a pool has open ones at all, iterations that end
works look, too, so that the callback need not wait for the next poll.
"""

from django.db.models import Count

from .. import batches
from ..database import Answers, Part
from ..database.rows import PROBE
from ..exceptions import StaleRun
from ..models import Batch, BatchFailure
from .context import Iteration
from .memory import OpenBatches

#: Batches that one iteration ends.
PAGE = 64
#: An iteration looks through so many open batches at most without having been told that one is over.
FEW = 64

_LEFT = f"EXISTS (SELECT 1 FROM {{Work}} w WHERE w.batch_id = b.id {PROBE})"
#: A condition on a batch ``b``. Its works are inserted by the transaction that inserts its row: who sees it has seen them.
OVER = f"b.ended IS NULL AND NOT {_LEFT}"
#: For each pool with open batches how many there are, and whether one of them is over. A look into an empty index if there are none.
OPEN = Part(
    "batches",
    f"SELECT b.pool AS batched, COUNT(*) AS open_count, MAX(CASE WHEN {_LEFT} THEN 0 ELSE 1 END) AS is_over FROM {{Batch}} b "
    "WHERE b.ended IS NULL AND EXISTS (SELECT 1 FROM {InternalState} i WHERE i.pool = b.pool) GROUP BY b.pool",
)


def opened(answers: Answers) -> dict[str, OpenBatches]:
    """Return what a look has found, by pool."""
    return {pool: OpenBatches(int(count), bool(over)) for pool, count, over in answers["batches"]}


def end(it: Iteration) -> None:
    """End the batches that are over: enqueue their callbacks.

    Raises:
        StaleRun: somebody else has ended one of them.
    """
    known = it.memory.batches
    if known is None or not (known.over or _may_end(it, known)):
        return
    rows = it.db.fetch(f"SELECT b.id FROM {{Batch}} b WHERE b.pool = %s AND {OVER} LIMIT {PAGE}", [it.pool])
    ids = [it.db.read_uuid(batch_id) for (batch_id,) in rows]
    it.again |= len(ids) == PAGE
    it.batches = OpenBatches(max(0, known.open - len(ids)), len(ids) == PAGE)
    if not ids:
        return
    using = it.db.using
    changed = Batch.objects.using(using).filter(id__in=ids, ended__isnull=True).update(ended=it.db.moment(it.now_ms))
    if changed != len(ids):
        raise StaleRun("a batch was ended by somebody else")
    ends: dict[object, dict[str, int]] = {}
    counts = BatchFailure.objects.using(using).filter(batch_id__in=ids).values_list("batch_id", "kind").annotate(Count("id"))
    for batch_id, kind, count in counts.order_by():
        ends.setdefault(batch_id, {})[kind] = count
    for batch in Batch.objects.using(using).filter(id__in=ids).order_by("id"):
        batches.call_back(it.db, batch, ends.get(batch.id, {}))


def _may_end(it: Iteration, known: OpenBatches) -> bool:
    """Return whether this iteration has ended works, one of which may have been the last of a batch."""
    return bool(it.ended or it.canceling) and not it.again and known.open <= FEW
