"""Phase (b): work off the wishes to cancel, a page of works an iteration.

Work that waits ends as canceled. Work that runs is marked: it is never started, retried or returned again, and its worker is told after
the commit, so that it may stop.
"""

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import F

from ..models import PendingCancelation, Work
from ..settle import LockedWork, lock_works
from ..types import Lane
from . import retries
from .context import Iteration
from .memory import BEGINNING

#: Works canceled in one iteration, so that starts and completions go on beside a cancelation of many.
PAGE = 64


class Wish(NamedTuple):
    """A pending cancelation: of one work, or (``work_id`` None) of all up to a time."""

    id: int
    segment: int
    work_id: uuid.UUID | None


def cancel(it: Iteration) -> None:
    """Work off one page of pending cancelations."""
    if not it.canceling:
        return
    cursor = it.memory.cancelations
    behind, position = it.db.after("", cursor.start(it.depth))
    rows = it.db.fetch(
        f"SELECT id, segment, work_id FROM {{PendingCancelation}} WHERE pool = %s AND {behind} ORDER BY segment, id LIMIT {PAGE}",
        [it.pool, *position],
    )
    if not rows:
        return
    wishes = [Wish(row[0], row[1], it.db.read_uuid(row[2]) if row[2] is not None else None) for row in rows]
    single = [wish for wish in wishes if wish.work_id is not None]
    done = _cancel_single(it, single)
    it.again |= len(wishes) == PAGE and bool(done)
    of_all = [wish for wish in wishes if wish.work_id is None]
    if of_all:
        worked_off = _cancel_page(it, of_all[0], PAGE - len(single))
        done += worked_off
        it.again |= bool(worked_off) and len(of_all) > 1
    if done:
        among, param = it.db.among("id", [wish.id for wish in done])
        it.db.execute(f"DELETE FROM {{PendingCancelation}} WHERE {among}", [param])
    if len(done) == len(wishes):
        it.advances.append((cursor, (wishes[-1].segment, wishes[-1].id)))


def _cancel_single(it: Iteration, wishes: Sequence[Wish]) -> list[Wish]:
    """Cancel works by id; return the wishes that are worked off (a locked work waits for the next iteration)."""
    if not wishes:
        return []
    ids = {wish.work_id for wish in wishes if wish.work_id is not None}
    works = lock_works(it.db.using, ids, skip_locked=True)
    stay = retries.locked(it, [work_id for work_id in ids if work_id not in works])
    end_or_mark(it, list(works.values()))
    return [wish for wish in wishes if wish.work_id not in stay]


def end_or_mark(it: Iteration, works: Sequence[LockedWork]) -> None:
    """End the works that do not run as canceled, mark the others. Callback work is never canceled."""
    works = [work for work in works if work.callback_of is None]
    if not works:
        return
    runs = [work for work in works if it.is_running(work.id)]
    waits = [work for work in works if not it.is_running(work.id)]
    among, param = it.db.among("work_id", [work.id for work in works])
    it.db.execute(f"DELETE FROM {{PendingStart}} WHERE {among}", [param])
    retries.end_canceled(it, waits)
    for work in runs:
        if not work.canceled:
            one = it.memory.running[work.id]
            it.stops.setdefault(one.worker_id, []).append(one.token)
    if runs:
        Work.objects.using(it.db.using).filter(id__in=[work.id for work in runs]).update(canceled=True)


def _cancel_page(it: Iteration, wish: Wish, room: int) -> list[Wish]:
    """Cancel at most ``room`` of the works that a cancel_all covers; return the wish if nothing is left of it.

    The page moves through the pending starts from the beginning; what the end finds passed over (locked) starts it again.
    """
    position, passed = it.memory.pages.get(wish.id, (BEGINNING, False))
    covers = PendingCancelation.objects.using(it.db.using).filter(id=wish.id).values("created_up_to")
    up_to = covers[0]["created_up_to"]
    behind, params = it.db.after("s.", position)
    rows = it.db.fetch(
        f"SELECT s.segment, s.id, s.work_id FROM {{PendingStart}} s WHERE s.pool = %s AND s.lane = %s AND {behind} "
        f"ORDER BY s.segment, s.id LIMIT {room}",
        [it.pool, Lane.WORK, *params],
    )
    covered = set(
        Work.objects.using(it.db.using)
        .filter(id__in=[it.db.read_uuid(row[2]) for row in rows], created__lte=up_to, callback_of=None)
        .values_list("id", flat=True)
    )
    runs = [one.work_id for one in it.memory.running.values() if one.lane == Lane.WORK and it.is_running(one.work_id)]
    marked = Work.objects.using(it.db.using).filter(id__in=runs, canceled=False, created__lte=up_to).order_by(F("id"))
    wanted = covered | set(marked.values_list("id", flat=True)[: room - len(covered)])
    works = lock_works(it.db.using, wanted, skip_locked=True)
    end_or_mark(it, list(works.values()))
    passed = passed or len(works) < len(wanted)
    if len(rows) == room:
        it.again = True
        it.pages[wish.id] = ((rows[-1][0], rows[-1][1]), passed)
        return []
    if passed or len(wanted) == room:
        it.again = it.again or not passed
        it.pages[wish.id] = (BEGINNING, False)
        return []
    it.pages[wish.id] = None
    return [wish]
