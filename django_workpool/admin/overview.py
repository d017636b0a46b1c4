"""What the dashboard shows, as plain values: of all pools of a database or of one, and why works of a pool wait."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from .. import health, tallies
from ..database import database
from ..health import PoolHealth
from ..models import PendingStart, Work
from ..segments import segment_ms
from ..tallies import COUNTS, Point, Totals
from ..types import Lane
from .looks import NOW_FOR, WINDOWS, Fresh, History, Now, fresh, history, now, totals

__all__ = ["WINDOWS", "NoPool", "data", "waiting"]

T = TypeVar("T")

#: Rows of each table that are sent: the gravest, or those that do most.
ROWS_MAX = 100
#: Pools that have a line of their own among the backlogs.
LINES_MAX = 6
#: Functions named of those that a worker runs.
RUNS_MAX = 3
#: Waiting works that are shown with their reason.
WAITING_MAX = 20


class NoPool(Exception):
    """A pool that there is not."""


def data(using: str, window: str, pool: str | None) -> dict[str, Any]:
    """Return what the page shows, of one pool or of all.

    Args:
        using: The database.
        window: One of ``WINDOWS``.
        pool: A pool's name; None for all.

    Raises:
        NoPool: there is no such pool.
        Unasked: the database cannot be asked.
    """
    moment = now(using)
    past, ever = history(using, window, moment.now_ms), totals(using)
    _check(moment, pool)
    pools = [one for one in moment.health.pools if pool in (None, one.pool)]
    of_pool: defaultdict[str, list[Point]] = defaultdict(list)
    for point in past.points:
        if pool in (None, point.pool):
            of_pool[point.pool].append(point)
    shown = _few(pools, lambda one: (not one.reason.is_fault, -one.waiting, -one.running))
    workers = _few(moment.health.workers, lambda one: (one.alive, -one.running, one.id))
    return {
        "now_ms": round(moment.now_ms),
        "well": not moment.health.problems,
        "sure": moment.sure,
        "problems": moment.health.summary,
        "count_max": moment.health.count_max,
        "names": [one.pool for one in moment.health.pools],
        "leader": asdict(moment.health.leader),
        "summary": _summary(moment, pools),
        "pools": [_pool(moment, one, of_pool[one.pool], ever.get(one.pool)) for one in sorted(shown, key=lambda one: one.pool)],
        "pools_left": len(pools) - len(shown),
        "workers": [{**asdict(one), "runs": _shown_runs(moment, one.id)} for one in sorted(workers, key=lambda one: one.id)],
        "workers_left": len(moment.health.workers) - len(workers),
        "history": _steps(moment, past, pools, of_pool),
    }


def _check(moment: Now, pool: str | None) -> None:
    if pool is not None and all(one.pool != pool for one in moment.health.pools):
        raise NoPool(f"There is no pool {pool!r}.")


def _few(all_: Iterable[T], gravity: Callable[[T], Any]) -> list[T]:
    return sorted(all_, key=gravity)[:ROWS_MAX]


def _summary(moment: Now, pools: Sequence[PoolHealth]) -> dict[str, int]:
    workers = moment.health.workers
    alive = [one for one in workers if one.alive]
    return {
        "waiting": sum(one.waiting for one in pools),
        "due": sum(one.due for one in pools),
        "running": sum(moment.running[one.pool, Lane.WORK] for one in pools),
        "callbacks": sum(moment.running[one.pool, Lane.CALLBACK] for one in pools),
        "limit": sum(one.max_parallelism for one in pools),
        "workers": len(workers),
        "alive": len(alive),
        "capacity": sum(one.capacity for one in alive if one.accepting),
    }


def _pool(moment: Now, one: PoolHealth, points: Sequence[Point], ever: Totals | None) -> dict[str, Any]:
    lags = [sum(counts) for counts in zip(*(point.lags for point in points), strict=True)]
    return {
        **one.to_json(),
        "is_fault": one.reason.is_fault,
        "running": moment.running[one.pool, Lane.WORK],
        "callbacks": moment.running[one.pool, Lane.CALLBACK],
        "window": {name: sum(getattr(point, name) for point in points) for name in COUNTS},
        "lag_p50_ms": tallies.percentile_ms(lags, 0.5),
        "lag_p95_ms": tallies.percentile_ms(lags, 0.95),
        "total": {name: getattr(ever, name) if ever else 0 for name in COUNTS},
    }


def _shown_runs(moment: Now, worker: int) -> list[dict[str, Any]]:
    runs = [one for one in moment.runs if one.worker == worker]
    shown: list[dict[str, Any]] = []
    for one in runs[:RUNS_MAX]:
        began = moment.began_ms.get(one.first)
        for_s = None if began is None else round(max(0.0, moment.now_ms - began) / 1000, 1)
        shown.append({"function": one.function, "pool": one.pool, "number": one.number, "longest_s": for_s})
    if left := sum(one.number for one in runs[RUNS_MAX:]):
        shown.append({"function": None, "pool": None, "number": left, "longest_s": None})
    return shown


def _steps(moment: Now, past: History, pools: Sequence[PoolHealth], of_pool: dict[str, list[Point]]) -> dict[str, Any]:
    """Return the charts' columns, one value for each step; of pools that are not there any more, too."""
    steps = len(past.minutes)
    counts = {name: [0] * steps for name in COUNTS}
    lags: list[list[tuple[int, ...]]] = [[] for _ in range(steps)]
    for point in (point for points in of_pool.values() for point in points):
        at = (point.minute - past.minutes.start) // past.step
        for name in COUNTS:
            counts[name][at] += getattr(point, name)
        lags[at].append(point.lags)
    sums = [[sum(column) for column in zip(*one, strict=True)] for one in lags]
    # The last step has only begun.
    last = past.now_ms / 60_000 - past.minutes[-1]
    counted = {point.minute for point in past.points}
    names = list({one.pool: None for one in pools} | dict.fromkeys(of_pool))
    running = {name: _held(past, {one.minute: one.running for one in of_pool.get(name, ())}, counted) for name in names}
    waiting = {name: _held(past, {one.minute: one.waiting for one in of_pool.get(name, ())}, counted) for name in names}
    for one in pools:
        # As the rows count: callbacks are among them.
        running[one.pool][-1] = max(running[one.pool][-1] or 0, sum(moment.running[one.pool, lane] for lane in Lane))
        waiting[one.pool][-1] = max(waiting[one.pool][-1] or 0, one.waiting)
    return {
        "step": past.step,
        "minutes": list(past.minutes),
        "spans": [past.step] * (steps - 1) + [round(min(past.step, last), 3)],
        **counts,
        "lag_p50_ms": [tallies.percentile_ms(one, 0.5) for one in sums],
        "lag_p95_ms": [tallies.percentile_ms(one, 0.95) for one in sums],
        "running": _sum(list(running.values())),
        "waiting": _backlogs(waiting),
    }


def _held(past: History, said: dict[int, int | None], counted: Collection[int]) -> list[int | None]:
    """Return what a pool held in each step; None where that is not known.

    It is said about once a minute, and only of pools that hold something. So where it is not, and somebody has counted anything, the pool
    held nothing; where nobody has, either nobody led, or there was nothing to count: the latter if the pool held nothing before.
    """
    known = {minute: value for minute, value in said.items() if value is not None}
    held: list[int | None] = []
    before: int | None = 0
    for minute in past.minutes:
        if minute in known:
            before = known[minute]
        elif past.step == 1 and minute - 1 in known:
            # Not more often than once a minute: so now and then one is left out, and that of the last one may still come.
            pass
        elif minute in counted:
            before = 0
        elif before:
            before = None
        held.append(before)
    return held


def _sum(lines: Sequence[Sequence[int | None]]) -> list[int | None]:
    """Return the sums of what is known, step by step."""
    return [None if all(value is None for value in column) else sum(value or 0 for value in column) for column in zip(*lines, strict=True)]


def _backlogs(lines: dict[str, list[int | None]]) -> list[dict[str, Any]]:
    """Return how many have waited, in a line for each of the pools that have held most, and one for all others."""
    names = sorted(lines, key=lambda name: (-max(value or 0 for value in lines[name]), name))
    few = len(names) if len(names) <= LINES_MAX else LINES_MAX - 1
    shown: list[dict[str, Any]] = [{"pool": name, "values": lines[name]} for name in sorted(names[:few])]
    if others := [lines[name] for name in names[few:]]:
        shown.append({"pool": None, "pools": len(others), "values": _sum(others)})
    return shown


# Why it waits -------------------------------------------------------------------------------------------------------


def waiting(using: str, pool: str) -> list[dict[str, Any]]:
    """Return the oldest works of a pool that wait, at most ``WAITING_MAX``, each with its reason; at most a second old.

    Raises:
        NoPool: there is no such pool.
        Unasked: the database cannot be asked.
    """
    _check(now(using), pool)
    shared: Fresh[list[dict[str, Any]]] = fresh("waiting", using, pool)
    return shared.get(NOW_FOR, lambda: _waiting(using, pool))


def _waiting(using: str, pool: str) -> list[dict[str, Any]]:
    rows: list[tuple[int, Any]] = []
    for lane in Lane:
        starts = PendingStart.objects.using(using).filter(pool=pool, lane=lane).order_by("segment")
        rows += starts.values_list("segment", "work_id")[:WAITING_MAX]
    due = {work_id: segment for segment, work_id in sorted(rows)[:WAITING_MAX]}
    why = health.why(using, list(due))
    columns = ("id", "name", "func_path", "attempts", "priority")
    works = {row["id"]: row for row in Work.objects.using(using).filter(id__in=list(due)).values(*columns)}
    now_ms = database(using).clock_ms()
    return [
        {
            "id": str(work_id),
            "name": works[work_id]["name"],
            "function": works[work_id]["func_path"],
            "attempts": works[work_id]["attempts"],
            "priority": works[work_id]["priority"],
            # Negative until it is due.
            "due_for_s": round((now_ms - segment_ms(segment)) / 1000, 1),
            "code": str(why[work_id].code),
            "why": why[work_id].text,
        }
        for work_id, segment in due.items()
        if work_id in works and work_id in why
    ]
