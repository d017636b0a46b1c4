"""Due work that must not, or cannot, be started: canceled work ends; work that no live worker knows is held, and fails in the end."""

import uuid
from collections import Counter
from collections.abc import Sequence

from .. import conf
from ..callbacks import lane_of
from ..models import PendingStart, Work
from ..plain import WORDS
from ..segments import SECOND
from ..settle import Settlement, Verdict, canceled, lock_works, settle
from ..types import Failure, FnType, Follow, ResultKind
from .context import Iteration
from .due import Due

#: Wait of work that no live worker knows: short at first, as a worker may just not have imported its module yet.
HOLD_FIRST, HOLD = SECOND // 2, 5 * SECOND
#: Of many at once it is longer, by one HOLD for each so many and up to so many: to look at all of them must not take all the time.
CROWD, CROWD_MAX = 100, 6


def end_canceled(it: Iteration, rows: Sequence[Due]) -> set[int]:
    """End canceled work that was found waiting; return the rows of locked work."""
    return _end(it, rows, {row.work_id: None for row in rows})


def _end(it: Iteration, rows: Sequence[Due], failures: dict[uuid.UUID, Failure | None]) -> set[int]:
    if not rows:
        return set()
    works = lock_works(it.db.using, failures, skip_locked=True)
    settlements = []
    for work_id, work in works.items():
        failure = failures[work_id]
        verdict = (
            canceled(work)
            if failure is None
            else Verdict(follow=Follow.END, kind=ResultKind.FAILED, attempts=work.attempts + 1, returns=work.returns, failure=failure)
        )
        settlements.append(Settlement(work=work, verdict=verdict))
        it.counts[lane_of(work.fn_type)].end(verdict.kind, verdict.follow, attempt=failure is not None)
        it.emit_end(work, verdict)
    settle(it.db, settlements, it.now_ms)
    it.judged += [(one.work, one.verdict) for one in settlements]
    # Their callbacks have become work of a lane that this iteration has been through.
    it.again |= any(work.on_complete for work in works.values())
    delete_starts(it, [row for row in rows if row.work_id in works])
    return {row.id for row in rows if row.work_id not in works}


def hold(it: Iteration, rows: Sequence[Due]) -> set[int]:
    """Put work back that no live worker knows; end what has been held too long. Return the rows of locked work."""
    if not rows:
        return set()
    using = it.db.using
    stored = Work.objects.using(using).filter(id__in=[row.work_id for row in rows]).values_list("id", "held_since")
    since = {work_id: held.timestamp() * 1000 for work_id, held in stored if held is not None}
    settings = conf.pools().get(it.pool)
    hold_ms = (settings.hold if settings else conf.DEFAULT_HOLD).total_seconds() * 1000
    first = [row for row in rows if row.work_id not in since]
    expired = [row for row in rows if row.work_id in since and it.now_ms - since[row.work_id] >= hold_ms]
    again = [row for row in rows if row.work_id in since and row not in expired]
    if first:
        Work.objects.using(using).filter(id__in=[row.work_id for row in first]).update(held_since=it.db.moment(it.now_ms))
        for path, count in Counter(row.func_path for row in first).items():
            it.emit("held", "WARN", path=path, works=count, work_id=next(row.work_id for row in first if row.func_path == path))
    _put_back(it, first, min(HOLD_FIRST, int(hold_ms // 100) + 1))
    _put_back(it, again, min(HOLD * min(1 + len(again) // CROWD, CROWD_MAX), int(hold_ms // 100) + 1))
    failures: dict[uuid.UUID, Failure | None] = {row.work_id: _unknown(row) for row in expired}
    return _end(it, expired, failures)


def _unknown(row: Due) -> Failure:
    kind = WORDS[FnType(row.fn_type or "")]
    text = (
        f"no live worker knows the function {row.func_path} as {kind}: "
        "it was renamed, removed or made another kind, or its module cannot be imported"
    )
    return Failure(class_path="django_workpool.exceptions.UnregisteredFunction", text=text)


def delete_starts(it: Iteration, rows: Sequence[Due]) -> None:
    """Delete the pending starts."""
    if rows:
        among, param = it.db.among("id", [row.id for row in rows])
        it.db.execute(f"DELETE FROM {{PendingStart}} WHERE {among}", [param])


def _put_back(it: Iteration, rows: Sequence[Due], segments: int) -> None:
    PendingStart.objects.using(it.db.using).filter(id__in=[row.id for row in rows]).update(segment=it.now + segments)
