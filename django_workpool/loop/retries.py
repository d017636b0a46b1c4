"""What goes back to the queue: retries after their backoff, returns at once; canceled work ends instead."""

import random
import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta

from ..callbacks import lane_of
from ..models import PendingStart
from ..retry_texts import failed_since
from ..segments import ceil_segment
from ..settle import LockedWork, Settlement, canceled, lock_works, retry_behavior, settle
from ..types import Follow, RetryBehavior
from .context import Ended, Iteration

_MS = timedelta(milliseconds=1)


def backoff_ms(behavior: RetryBehavior, attempts: int, jitter: float | None = None) -> float:
    """Return the wait after ``attempts`` failed attempts, in milliseconds: exponential, jittered, then capped.

    Args:
        behavior: The work's retry behaviour.
        attempts: How many have failed, 1 or more.
        jitter: A factor in [0.5, 1.5); drawn if left out.
    """
    cap, first = behavior.max_backoff / _MS, behavior.initial_backoff / _MS
    factor = random.uniform(0.5, 1.5) if jitter is None else jitter
    try:
        wait = first * float(behavior.base) ** (attempts - 1)
    except OverflowError:
        wait = cap if first else 0.0
    return max(0.0, min(wait * factor, cap))


def send_back(it: Iteration, ended: Sequence[Ended]) -> set[uuid.UUID]:
    """Queue the works of completions that go back.

    Returns:
        Those whose work is locked by somebody: their completions wait for the next iteration.
    """
    if not ended:
        return set()
    ids = [one.work_id for one in ended]
    works = lock_works(it.db.using, ids, skip_locked=True)
    over = is_over(it, works)
    end_canceled(it, [works[work_id] for work_id in over])
    back = [(works[one.work_id], one.follow == Follow.RETRY) for one in ended if one.work_id in works and one.work_id not in over]
    queue(it, back)
    return locked(it, [work_id for work_id in ids if work_id not in works])


def locked(it: Iteration, missing: list[uuid.UUID]) -> set[uuid.UUID]:
    """Return which of the works that could not be locked are there: the others are gone."""
    if not missing:
        return set()
    among, param = it.db.among("id", missing)
    return {it.db.read_uuid(work_id) for (work_id,) in it.db.fetch(f"SELECT id FROM {{Work}} WHERE {among}", [param])}


def is_over(it: Iteration, works: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Return the works that must not run again: canceled, or a cancelation (or a cancel_all that covers them) waits."""
    ids = list(works)
    if not ids:
        return []
    among, param = it.db.among("w.id", ids)
    rows = it.db.fetch(
        f"SELECT w.id FROM {{Work}} w WHERE {among} AND w.callback_of IS NULL AND "
        "(w.canceled OR EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.work_id = w.id) OR "
        # The latest is the first entry of its index, however many others there are.
        "w.created <= (SELECT c.created_up_to FROM {PendingCancelation} c "
        "WHERE c.pool = %s AND c.created_up_to IS NOT NULL ORDER BY c.created_up_to DESC LIMIT 1))",
        [param, it.pool],
    )
    return [it.db.read_uuid(work_id) for (work_id,) in rows]


def end_canceled(it: Iteration, works: Sequence[LockedWork]) -> None:
    """End works as canceled: they never run again, and their on_complete becomes callback work."""
    if not works:
        return
    settlements = [Settlement(work=work, verdict=canceled(work)) for work in works]
    settle(it.db, settlements, it.now_ms)
    it.judged += [(one.work, one.verdict) for one in settlements]
    for one in settlements:
        it.counts[lane_of(one.work.fn_type)].end(one.verdict.kind, one.verdict.follow, attempt=False)
        it.emit_end(one.work, one.verdict)


def queue(it: Iteration, works: Sequence[tuple[LockedWork, bool]]) -> None:
    """Insert pending starts: after the backoff where it is a retry, now otherwise."""
    rows = []
    for work, is_retry in works:
        behavior = (retry_behavior(work) or RetryBehavior()) if is_retry else None
        segment = ceil_segment(it.now_ms + backoff_ms(behavior, failed_since(work.retry, work.attempts))) if behavior else it.now
        rows.append(PendingStart(work_id=work.id, pool=work.pool, lane=lane_of(work.fn_type), priority=work.priority, segment=segment))
        it.counts[lane_of(work.fn_type)].retried += is_retry
    # A row that is there already is the wish that this one would be.
    PendingStart.objects.using(it.db.using).bulk_create(rows, ignore_conflicts=True)
