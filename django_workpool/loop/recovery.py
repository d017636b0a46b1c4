"""Phase (c): running work of workers that are lost was never completed. Recovery never runs a function.

A mutation or query did not commit: it is returned, a bounded number of times. An action may have done anything: its attempt
has failed ("worker lost"), and its own retry behaviour says what follows. The lost attempt counts, so that a work that
kills its worker does not go round for ever.
"""

from .. import tracing
from ..models import PendingCompletion
from ..settle import LockedWork, Settlement, Verdict, judge, lock_works, settle
from ..types import Failure, FnType, Follow, Outcome
from . import retries
from .context import Iteration
from .memory import Running

#: Running rows recovered in one iteration.
BATCH = 64
WORKER_LOST = "django_workpool.WorkerLost"


def recover(it: Iteration) -> None:
    """Recover one batch of the running work whose worker is lost, and drop running rows that belong to nothing."""
    _drop(it, it.memory.orphans)
    if not it.fleet.any_lost:
        return
    lost = [one for one in it.memory.running.values() if it.is_running(one.work_id) and it.fleet.is_lost(one.worker_id)]
    if not lost:
        return
    it.again |= len(lost) > BATCH
    lost = lost[:BATCH]
    ids = [one.work_id for one in lost]
    works = lock_works(it.db.using, ids, skip_locked=True)
    locked = retries.locked(it, [work_id for work_id in ids if work_id not in works])
    # Asked last: a work that somebody was just ending is gone by now, and then its completion is seen.
    completing = set(PendingCompletion.objects.using(it.db.using).filter(work_id__in=ids).values_list("work_id", flat=True))
    _drop(it, [one for one in lost if one.work_id not in works and one.work_id not in locked | completing])
    ready = [one for one in lost if one.work_id in works and one.work_id not in completing]
    over = set(retries.is_over(it, [one.work_id for one in ready]))
    retries.end_canceled(it, [works[one.work_id] for one in ready if one.work_id in over])
    verdicts = [(one, works[one.work_id], _judge(it, works[one.work_id], one)) for one in ready if one.work_id not in over]
    settle(
        it.db,
        [
            Settlement(work=work, verdict=verdict, worker=it.fleet.name(one.worker_id), started_ms=one.started_ms)
            for one, work, verdict in verdicts
        ],
        it.now_ms,
    )
    for one, work, verdict in verdicts:
        _count(it, one, work, verdict)
    # A work that goes back gets its pending start only after its running row is gone.
    _drop(it, ready)
    back = [
        (work._replace(attempts=verdict.attempts), verdict.follow is Follow.RETRY)
        for _, work, verdict in verdicts
        if verdict.follow is not Follow.END
    ]
    retries.queue(it, back)


def _judge(it: Iteration, work: LockedWork, one: Running) -> Verdict:
    if it.fleet.has_left(one.worker_id):
        # Placed with it when it had just ended.
        return judge(work, Outcome(kind="returned"))
    failure = Failure(class_path=WORKER_LOST, text=f"worker lost: {it.fleet.name(one.worker_id)} died while it ran this")
    kind = "failed" if work.fn_type == FnType.ACTION else "returned"
    return judge(work, Outcome(kind=kind, failure=failure))


def _count(it: Iteration, one: Running, work: LockedWork, verdict: Verdict) -> None:
    it.counts[one.lane].end(verdict.kind, verdict.follow)
    worker = it.fleet.name(one.worker_id)
    fields = {"status": verdict.status, "attempts": verdict.attempts, "worker": worker} | tracing.told(work.trace)
    it.emit("recovered", "WARN", work_id=work.id, name=work.name, **fields)
    it.emit_end(work, verdict)
    it.judged.append((work, verdict))


def _drop(it: Iteration, gone: list[Running]) -> None:
    """Delete running rows: under the fence the leader is their only writer."""
    if gone:
        among, param = it.db.among("id", [one.token for one in gone])
        it.db.execute(f"DELETE FROM {{RunningWork}} WHERE {among}", [param])
        for one in gone:
            it.end(one)
