"""Periodic works: each tick is enqueued once, in an iteration, together with the change of its row that says so.

The rows say when: ``next_ms`` is the next tick. Iterations read them only when one is due, which the watch's look at all pools tells,
and the last iteration that has enqueued one. A tick that is found late by more than MISSED_MS was missed: nobody led, the machine slept,
or the work was disabled; the row says what becomes of it.
"""

import time
from datetime import UTC, datetime
from typing import NamedTuple

from django.db.models import F, Q

from .. import serialization
from ..database import Answers, Due, NewWork, Part
from ..database.base import lock_rows
from ..exceptions import InvalidWork
from ..failures import first_line
from ..ids import new_work_id
from ..models import Periodic
from ..ticks import Cron, is_available
from ..types import MAX_PRIORITY, MIN_PRIORITY, FnType, Lane, Missed, RetryBehavior
from .context import Iteration

#: Milliseconds after which a tick that nobody has enqueued was missed: longer than it takes another process to lead.
MISSED_MS = 60_000
#: Milliseconds for which missed ticks are made up one by one; of older ones only the last one is, if there is no later one.
KEPT_MS = 7 * 24 * 3_600_000
#: Milliseconds that the clock may have been set back: no tick of that time comes again. One further ahead was a mistake.
SET_BACK_MS = 24 * 3_600_000
#: Rows taken in one iteration, and ticks enqueued of all of them together.
ROWS, TICKS_MAX = 64, 256
#: Seconds after which an iteration leaves the other rows to the next one: works that wait to be started are to have their turn.
BUDGET = 0.05
#: Characters of what the row's column of errors holds.
ERROR_MAX = 500

_ABLE = "p.enabled AND p.error = ''"
#: For each pool with periodic works the first of their ticks, 0 where one is to be worked out, and the last one that was enqueued. A scan:
#: there are few rows.
TICKS = Part(
    "ticks",
    "SELECT p.pool AS pool, MIN(CASE WHEN p.next_ms IS NULL THEN 0 ELSE p.next_ms END) AS tick_ms, MAX(p.last_ms) AS last_ms "
    f"FROM {{Periodic}} p WHERE {_ABLE} AND p.pool IN (SELECT i.pool FROM {{InternalState}} i) GROUP BY p.pool",
)


class Row(NamedTuple):
    """A periodic work that is due."""

    id: int
    name: str
    func_path: str
    fn_type: str
    retry: str
    arguments: str
    priority: int
    cron: str
    time_zone: str
    missed: str
    next_ms: int | None
    last_ms: int | None


class Plan(NamedTuple):
    """What is to be done for one row: the ticks to be enqueued, and what is the next one after them."""

    ticks: list[int]
    next_ms: int
    #: The first of the missed ticks that are given up, and the end of the time in which all are; None if none is.
    dropped: tuple[int, int] | None = None


def first_ticks(answers: Answers, now_ms: float) -> dict[str, float]:
    """Return for each pool with periodic works the database's time of their first tick; 0 for at once."""
    return {pool: 0.0 if (last_ms or 0) > now_ms + SET_BACK_MS else float(tick_ms) for pool, tick_ms, last_ms in answers["ticks"]}


def tick(it: Iteration) -> None:
    """Enqueue what is due, and find out when the next tick comes."""
    memory = it.memory
    if memory.tick_ms is None or memory.tick_ms > it.now_ms:
        return
    rows = _due(it)
    if rows and not is_available():
        # Asked no more: this leader cannot do it, and has told so.
        it.ticks, it.cannot_tick = (None,), True
        it.emit("periodic_failed", "ERROR", error="the library cronsim is not installed: pip install 'django_workpool[cron]'")
        return
    most = max(1, TICKS_MAX // max(1, len(rows)))
    left, until = [], time.monotonic() + BUDGET
    for row in rows:
        left.append(_work_off(it, row, most))
        if time.monotonic() >= until:
            break
    # What is due and locked by somebody is found by the watch's next look.
    ahead = f"SELECT MIN(p.next_ms) FROM {{Periodic}} p WHERE p.pool = %s AND {_ABLE} AND p.next_ms > %s"
    ((first,),) = it.db.fetch(ahead, [it.pool, it.now_ms])
    more = any(left) or len(left) < len(rows) or len(rows) == ROWS
    it.again |= more
    it.ticks = (it.now_ms if more else first,)


def remember(it: Iteration) -> None:
    """Take over what has been committed."""
    if it.ticks is not None:
        (it.memory.tick_ms,), it.memory.read_ticks = it.ticks, time.monotonic()
        it.memory.cannot_tick |= it.cannot_tick


def _due(it: Iteration) -> list[Row]:
    """Lock and return due rows, the latest first: what waits already can wait. Those that somebody changes now are passed over."""
    rows = lock_rows(Periodic, it.db.using, skip_locked=True).filter(pool=it.pool, enabled=True, error="")
    rows = rows.filter(Q(next_ms=None) | Q(next_ms__lte=it.now_ms) | Q(last_ms__gt=it.now_ms + SET_BACK_MS)).order_by(
        F("next_ms").desc(nulls_first=True), "id"
    )
    return [Row(*row) for row in rows.values_list(*Row._fields)[:ROWS]]


def _work_off(it: Iteration, row: Row, most: int) -> bool:
    """Enqueue at most so many ticks of a row; return whether more of them are due."""
    rows = Periodic.objects.using(it.db.using)
    try:
        _check(row)
        plan = _plan(row, it.now_ms, most)
    # Whatever the row holds and the library makes of it: the pool and the other rows go on.
    except Exception as error:
        text = first_line(error)[:ERROR_MAX] or type(error).__name__
        rows.filter(id=row.id, next_ms=row.next_ms).update(error=text)
        it.emit("periodic_failed", "ERROR", name=row.name, error=text)
        return False
    last_ms = plan.ticks[-1] if plan.ticks else None if _is_ahead(row, it.now_ms) else row.last_ms
    # Zero rows: somebody has changed it, and the next look finds what it says now.
    if not rows.filter(id=row.id, next_ms=row.next_ms, enabled=True).update(next_ms=plan.next_ms, last_ms=last_ms):
        return False
    for one in plan.ticks:
        _enqueue(it, row, one)
    if plan.dropped is not None:
        first, until = plan.dropped
        # Where each was wanted, it is a loss.
        level = "WARN" if row.missed == Missed.ALL else "REPORT"
        it.emit("ticks_dropped", level, name=row.name, since=_told(first), until=_told(until), missed=row.missed)
    return plan.next_ms <= it.now_ms


def _check(row: Row) -> None:
    """Refuse what would be a work that nobody could run."""
    if row.fn_type not in (FnType.ACTION, FnType.MUTATION, FnType.QUERY):
        raise InvalidWork(f"{row.fn_type!r} is no type of function")
    if not MIN_PRIORITY <= row.priority <= MAX_PRIORITY:
        raise InvalidWork(f"the priority {row.priority} is not one from {MIN_PRIORITY} to {MAX_PRIORITY}")
    if row.missed not in list(Missed):
        raise InvalidWork(f"{row.missed!r} does not say what becomes of missed ticks")
    if row.retry:
        RetryBehavior.from_json(serialization.decode(row.retry))


def _plan(row: Row, now_ms: float, most: int) -> Plan:
    """Work out which ticks are to be enqueued, at most ``most``."""
    cron = Cron(row.cron, row.time_zone)
    # Before 1970: no clock has said that.
    if row.next_ms is None or row.next_ms < 0 or _is_ahead(row, now_ms):
        return Plan([], cron.after(now_ms if _is_ahead(row, now_ms) else max(now_ms, row.last_ms or 0)))
    tick, dropped = _first(row, cron, now_ms)
    ticks: list[int] = []
    while tick <= now_ms and len(ticks) < most:
        ticks.append(tick)
        tick = cron.after(tick)
    return Plan(ticks, tick, dropped)


def _is_ahead(row: Row, now_ms: float) -> bool:
    """Return whether the clock was too far ahead when the last tick was enqueued: neither that nor the next one means anything."""
    return row.last_ms is not None and row.last_ms > now_ms + SET_BACK_MS


def _first(row: Row, cron: Cron, now_ms: float) -> tuple[int, tuple[int, int] | None]:
    """Return the tick from which on all are enqueued, and what is given up before it."""
    tick = row.next_ms or 0
    if tick >= now_ms - MISSED_MS:
        return tick, None
    in_time = cron.after(now_ms - MISSED_MS - 1)
    if row.missed == Missed.ALL:
        kept = cron.after(now_ms - KEPT_MS - 1)
        begin = max(tick, kept if kept <= now_ms else cron.last(tick, now_ms))
    elif row.missed == Missed.SKIP or in_time <= now_ms:
        # One that is enqueued in time stands for those before it, too.
        begin = in_time
    else:
        begin = cron.last(tick, now_ms)
    return begin, (tick, begin - 1) if begin > tick else None


def _enqueue(it: Iteration, row: Row, one: int) -> None:
    new = NewWork(
        pool=it.pool,
        lane=Lane.WORK,
        fn_type=row.fn_type,
        func_path=row.func_path,
        name=f"{row.name} @ {_told(one)}",
        priority=row.priority,
        retry=row.retry,
    )
    work_id = new_work_id()
    # At once, not at the tick: that may lie behind the cursor.
    it.db.insert_work(new, [work_id], [row.arguments], Due(segment=it.now))
    it.memory.active.add((Lane.WORK.value, row.priority))
    if it.tells("INFO"):
        it.emit("ticked", "INFO", work_id=work_id, name=new.name, late_ms=round(it.now_ms - one))


def _told(ms: float) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).isoformat()
