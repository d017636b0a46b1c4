"""Phase (a): take the attempts that have ended, free their slots, and send back what is to run again."""

import uuid

from ..exceptions import StaleRun
from ..settle import LockedWork, lock_works, settle_attempts, succeed
from ..types import Follow, Lane
from . import retries
from .context import Ended, Iteration

#: Completions of one iteration.
BATCH = 500


def end_successes(it: Iteration) -> None:
    """Send the end of works whose runs have succeeded in this process: nothing need be read for it.

    A result counts only as long as its run owns the work; the others are left to the writer.
    """
    mine, running = it.succeeded, it.memory.running
    it.again |= len(it.results) == BATCH
    for one in it.results:
        owner = running.get(one.run.work_id)
        if owner is None or owner.token != one.run.token or owner.token in it.ended:
            it.passed_over.append(one)
        elif one.ends:
            it.end(owner)
            mine.append(one)
        else:
            it.others.append(one)
    if mine:
        it.deleted = succeed(it.db, it.pool, mine)
        _free(it, list(it.ended))
        it.counts[Lane.WORK].succeeded += len(mine)


def verify(it: Iteration) -> None:
    """Make sure that what was sent has ended as many works.

    Raises:
        StaleRun: somebody else has completed one of them.
    """
    if it.deleted is not None and it.deleted.changed != len(it.succeeded):
        raise StaleRun("a work was completed by somebody else")


def retire(it: Iteration) -> None:
    """Delete pending completions and their running rows; queue retries and returns; count the rest.

    The results of this process's own runs come without a pending completion: their works are settled here.
    """
    waiting = _read(it)
    ended = waiting + _settle_others(it)
    if not ended:
        return
    stay = retries.send_back(it, [one for one in ended if one.follow != Follow.END])
    done = [one for one in ended if one.work_id not in stay]
    _delete(it, done)
    for one in done:
        _count(it, one)
    if waiting and not stay:
        it.advances.append((it.memory.completions, (waiting[-1].segment, waiting[-1].id)))


def _read(it: Iteration) -> list[Ended]:
    if not it.completing:
        return []
    behind, position = it.db.after("", it.memory.completions.start(it.depth))
    rows = it.db.fetch(
        f"SELECT work_id, kind, follow, segment, id FROM {{PendingCompletion}} WHERE pool = %s AND {behind} "
        f"ORDER BY segment, id LIMIT {BATCH}",
        [it.pool, *position],
    )
    it.again |= len(rows) == BATCH
    return [Ended(it.db.read_uuid(row[0]), *row[1:]) for row in rows]


def _settle_others(it: Iteration) -> list[Ended]:
    """Settle the works of this process's other results, as far as they can be locked; leave the rest to the writer."""
    works = _lock_uncompleted(it, [one.run.work_id for one in it.others])
    # One at a time: the same run may have come twice.
    last = {one.run.work_id: one for one in it.others if one.run.work_id in works}
    it.passed_over += [one for one in it.others if last.get(one.run.work_id) is not one]
    it.settled = settle_attempts(it.db, list(last.values()), works, it.now_ms)
    return [Ended(one.run.work_id, verdict.kind, verdict.follow) for one, verdict in it.settled]


def _lock_uncompleted(it: Iteration, ids: list[uuid.UUID]) -> dict[uuid.UUID, LockedWork]:
    if not ids:
        return {}
    works = lock_works(it.db.using, ids, skip_locked=True)
    among, param = it.db.among("work_id", ids)
    completed = {it.db.read_uuid(row[0]) for row in it.db.fetch(f"SELECT work_id FROM {{PendingCompletion}} WHERE {among}", [param])}
    return {work_id: work for work_id, work in works.items() if work_id not in completed}


def _delete(it: Iteration, done: list[Ended]) -> None:
    rows = [one.id for one in done if one.id]
    if rows:
        among, param = it.db.among("id", rows)
        it.db.execute(f"DELETE FROM {{PendingCompletion}} WHERE {among}", [param])
    gone = [it.memory.running[one.work_id] for one in done if it.is_running(one.work_id)]
    for one in gone:
        it.end(one)
    _free(it, [one.token for one in gone])


def _free(it: Iteration, tokens: list[int]) -> None:
    if tokens:
        among, param = it.db.among("id", tokens)
        it.db.execute(f"DELETE FROM {{RunningWork}} WHERE {among}", [param])


def _count(it: Iteration, one: Ended) -> None:
    """Count an attempt that has ended; where it is sent back, it is counted what becomes of its work."""
    running = it.memory.running.get(one.work_id)
    it.counts[running.lane if running is not None else Lane.WORK].end(one.kind, one.follow)
