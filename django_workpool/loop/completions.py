"""Phase (a): take the attempts that have ended, free their slots, and send back what is to run again."""

from ..types import Follow, Lane, ResultKind
from . import retries
from .context import Ended, Iteration

#: Completions of one iteration.
BATCH = 500


def retire(it: Iteration) -> None:
    """Delete pending completions and their running rows; queue retries and returns; count the rest."""
    cursor = it.memory.completions
    rows = it.db.fetch(
        "SELECT id, work_id, segment, kind, follow FROM {PendingCompletion} WHERE pool = %s AND (segment, id) > (%s, %s) "
        f"ORDER BY segment, id LIMIT {BATCH}",
        [it.pool, *cursor.start(it.depth)],
    )
    ended = [Ended(row[0], it.db.read_uuid(row[1]), *row[2:]) for row in rows]
    if not ended:
        return
    it.again |= len(ended) == BATCH
    stay = retries.send_back(it, [one for one in ended if one.follow != Follow.END])
    done = [one for one in ended if one.work_id not in stay]
    _delete(it, done)
    for one in done:
        _count(it, one)
    passed = [one for one in ended if one.work_id in stay]
    last = max(((one.segment, one.id) for one in done), default=None)
    if last is not None and not passed:
        it.advances.append((cursor, last))


def _delete(it: Iteration, done: list[Ended]) -> None:
    if not done:
        return
    among, param = it.db.among("id", [one.id for one in done])
    it.db.execute(f"DELETE FROM {{PendingCompletion}} WHERE {among}", [param])
    among, param = it.db.among("work_id", [one.work_id for one in done])
    it.db.execute(f"DELETE FROM {{RunningWork}} WHERE {among}", [param])
    for one in done:
        if one.work_id in it.memory.running:
            it.ended[one.work_id] = it.memory.running[one.work_id]


def _count(it: Iteration, one: Ended) -> None:
    """Count an attempt that has ended; what goes back is counted where it is sent back."""
    running = it.memory.running.get(one.work_id)
    if one.follow != Follow.END or (running is not None and running.lane == Lane.CALLBACK):
        return
    it.report.completed += 1
    if one.kind == ResultKind.SUCCESS:
        it.report.succeeded += 1
    else:
        it.report.failed += 1
