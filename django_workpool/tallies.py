"""The figures of pools over time: what the rows of Tally sum up to, and how they are kept few.

The loop inserts a row an iteration. ``series`` and ``totals`` add them up; ``Sweep`` makes one row of those of a minute that is over,
and one for all time (minute 0) of those that are older than KEPT. It only inserts sums and deletes what they are the sums of, in one
transaction, so ``totals`` never changes by it, whenever it is read and whoever dies meanwhile.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from django.db import transaction
from django.db.models import Q

from .database import Database, database
from .database.base import lock_rows
from .exceptions import InvalidWork
from .models import Tally
from .types import Lane

#: Columns that are counts, and the histogram of lags: starts by how late they were, in milliseconds, the bounds included.
COUNTS = ("started", "succeeded", "failed", "canceled", "failed_attempts", "retried", "returned", "requeued")
LAG_BOUNDS_MS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000)
LAGS = ("lag_100ms", "lag_200ms", "lag_500ms", "lag_1s", "lag_2s", "lag_5s", "lag_10s", "lag_1min", "lag_10min", "lag_longer")
#: All that an insert names.
COLUMNS = ("pool", "lane", "minute", *COUNTS, *LAGS, "waiting", "running")

#: Minutes for which each minute has a row.
KEPT = 8 * 24 * 60
#: Rows that one transaction makes fewer, and groups of rows that it takes at most: a few milliseconds, so that nobody waits for it.
CHUNK, GROUPS = 2_000, 100
#: Minutes that one look goes through, and of those before it that the next one goes through again: an iteration may commit late.
WINDOW, AGAIN = 8 * 60, 5

_SUMS = ", ".join(f"SUM({name})" for name in (*COUNTS, *LAGS))
_HELD = "MAX(waiting), MAX(running)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What has happened in a pool: see the columns of Tally."""

    pool: str
    #: Works that were started, a work again each time.
    started: int
    #: Works that have ended, by their result.
    succeeded: int
    failed: int
    canceled: int
    #: Attempts that have ended otherwise than as a success, and of these those after which the work went back for another one.
    failed_attempts: int
    retried: int
    #: Runs that were given back uncounted.
    returned: int
    #: Finished works that an operator has let run again.
    requeued: int
    #: Starts by their lag: so many at most as late as the bound of LAG_BOUNDS_MS at this place, and later than the one before; the last
    #: are later than all.
    lags: tuple[int, ...]

    @property
    def lag_p50_ms(self) -> float | None:
        """Half of the starts were not later than this, in milliseconds; None without starts. See ``percentile_ms``."""
        return percentile_ms(self.lags, 0.5)

    @property
    def lag_p95_ms(self) -> float | None:
        """The same for 95 of 100 starts."""
        return percentile_ms(self.lags, 0.95)

    @classmethod
    def of(cls, pool: str, sums: Sequence[Any], **more: Any) -> Self:
        """Return it from the sums of COUNTS and LAGS, which databases return as whole numbers of any type."""
        numbers = [int(one) for one in sums]
        return cls(pool=pool, **dict(zip(COUNTS, numbers, strict=False)), lags=tuple(numbers[len(COUNTS) :]), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Totals):
    """What has happened in a pool in one step of time, and what it held meanwhile."""

    #: The start of the step, in minutes since 1970.
    minute: int
    #: How many works and callbacks waited and ran, when that was looked at: once a minute while it has any. The largest of the step.
    waiting: int | None
    running: int | None


def percentile_ms(lags: Sequence[int], share: float) -> float | None:
    """Return how late the given share of starts was at most, in milliseconds.

    The starts of a histogram's interval are taken to be spread evenly over it. What lies in the last one, which has no end, counts as
    its beginning: ten minutes.

    Args:
        lags: Starts by their lag, as ``Totals.lags``.
        share: From 0 to 1: 0.5 for the median.

    Returns:
        Milliseconds; None without starts.
    """
    rank, seen, low = share * sum(lags), 0, 0
    if not sum(lags):
        return None
    for number, high in zip(lags, LAG_BOUNDS_MS, strict=False):
        if number and seen + number >= rank:
            return low + (high - low) * max(0.0, rank - seen) / number
        seen, low = seen + number, high
    return float(low)


def bucket(lag_ms: float) -> int:
    """Return the place of a lag in the histogram."""
    return bisect_left(LAG_BOUNDS_MS, lag_ms)


def minute_of(ms: float) -> int:
    """Return the minute of a time, both since 1970."""
    return int(ms // 60_000)


def series(using: str, since: int, until: int, step: int, pools: Sequence[str] | None = None, lane: Lane = Lane.WORK) -> list[Point]:
    """Return what pools have done over a time, step by step.

    Args:
        using: The database.
        since: The minute at which the first step begins, since 1970.
        until: The minute before which the last step ends.
        step: The length of a step, in minutes.
        pools: Only these; None for all.
        lane: Works, or the calls of their on_complete functions that became works of their own.

    Returns:
        A point for each pool and step in which anything happened, in the order of pools and time. The last minutes may still grow.

    Raises:
        InvalidWork: an argument is not a whole number, or a step not at least a minute.
    """
    for name, value in {"since": since, "until": until, "step": step}.items():
        if type(value) is not int:
            raise InvalidWork(f"{name} must be a whole number of minutes, not {value!r}.")
    if step < 1:
        raise InvalidWork(f"step must be at least one minute, not {step}.")
    only, params = _only(pools)
    db = database(using)
    # Minute 0 is all time. Numbers stand in the text, so that both places of an expression are the same to each database.
    rows = db.fetch(
        f"SELECT s.pool, s.start, {_SUMS}, {_HELD} FROM (SELECT t.*, t.minute - (t.minute - {since}) %% {step} AS start FROM {{Tally}} t "
        f"WHERE t.minute >= {max(1, since)} AND t.minute < {until} AND t.lane = {int(lane)} {only}) s "
        "GROUP BY s.pool, s.start ORDER BY s.pool, s.start",
        params,
    )
    return [Point.of(pool, sums, minute=int(start), waiting=waiting, running=running) for pool, start, *sums, waiting, running in rows]


def totals(using: str, pools: Sequence[str] | None = None, lane: Lane = Lane.WORK) -> dict[str, Totals]:
    """Return what pools have done in all their time.

    Args:
        using: The database.
        pools: Only these; None for all.
        lane: Works, or the calls of their on_complete functions that became works of their own.
    """
    return {pool: one for (pool, of), one in totals_by_lane(using, pools).items() if of is lane}


def totals_by_lane(using: str, pools: Sequence[str] | None = None) -> dict[tuple[str, Lane], Totals]:
    """Return the same for each pool and lane, by one statement."""
    only, params = _only(pools)
    rows = database(using).fetch(
        f"SELECT t.pool, t.lane, {_SUMS} FROM {{Tally}} t WHERE t.minute >= 0 {only} GROUP BY t.pool, t.lane", params
    )
    return {(pool, Lane(lane)): Totals.of(pool, sums) for pool, lane, *sums in rows}


def _only(pools: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return a condition on a tally ``t``, and its parameters."""
    if pools is None:
        return "", []
    return f"AND t.pool IN ({', '.join(['%s'] * len(pools)) or 'NULL'})", list(pools)


def count_requeued(using: str, pool: str, number: int = 1, lane: Lane = Lane.WORK) -> None:
    """Count finished works of a pool that run again, in the caller's transaction."""
    db = database(using)
    Tally.objects.using(using).create(pool=pool, lane=lane.value, minute=minute_of(db.clock_ms()), requeued=number)


class _Group(NamedTuple):
    """Rows that are to become one: those of a pool and lane in a time."""

    since: int
    until: int
    pool: str
    lane: int
    number: int


class Sweep:
    """Makes rows fewer, a chunk at a time, from those that are older than KEPT to those of the last minute that is over.

    Args:
        using: The database.
    """

    def __init__(self, using: str) -> None:
        self.db = database(using)
        #: The minute from which on rows have not been looked at; None: none have.
        self._next: int | None = None
        #: How many rows fewer there are by it.
        self.gone = 0

    def prune(self) -> bool:
        """Take the next chunk of rows; return whether there is more to do."""
        now = minute_of(self.db.clock_ms())
        # A minute is over for whoever has begun in it a minute ago.
        old, over = now - KEPT, now - 1
        if self._merge(self._old(old), old):
            return True
        since = self._first(max(old, self._next or 0), over)
        until = min(since + WINDOW, over)
        if self._merge(self._within(since, until), old):
            return True
        self._next = until if until < over else until - AGAIN
        return until < over

    def _first(self, since: int, over: int) -> int:
        """Return the first minute from ``since`` on that has rows, ``over`` if none is over."""
        ((first,),) = self.db.fetch(f"SELECT MIN(minute) FROM {{Tally}} WHERE minute >= {since}")
        return over if first is None else min(int(first), over)

    def _old(self, old: int) -> list[_Group]:
        """Return pools and lanes with rows that are older than what is kept minute by minute, that for all time among them."""
        rows = self.db.fetch(
            f"SELECT 0, {old}, pool, lane, COUNT(*) FROM {{Tally}} WHERE minute < {old} GROUP BY pool, lane "
            f"HAVING COUNT(*) > 1 OR MAX(minute) > 0 LIMIT {GROUPS}"
        )
        return [_Group(*row) for row in rows]

    def _within(self, since: int, until: int) -> list[_Group]:
        """Return minutes of a time in which a pool and lane has several rows."""
        rows = self.db.fetch(
            f"SELECT minute, minute + 1, pool, lane, COUNT(*) FROM {{Tally}} WHERE minute >= {since} AND minute < {until} "
            f"GROUP BY minute, pool, lane HAVING COUNT(*) > 1 LIMIT {GROUPS}"
        )
        return [_Group(*row) for row in rows]

    def _merge(self, groups: Sequence[_Group], old: int) -> bool:
        """Merge the rows of a chunk of groups; return whether there were any."""
        if not groups:
            return False
        using, wanted, number = self.db.using, Q(), 0
        # One range of the index, whatever the planner thinks of the parts.
        span = Q(minute__gte=min(one.since for one in groups), minute__lt=max(one.until for one in groups))
        for one in groups:
            if number >= CHUNK:
                break
            number += one.number
            wanted |= Q(minute__gte=one.since, minute__lt=one.until, pool=one.pool, lane=one.lane)
        with transaction.atomic(using=using):
            # What somebody else is merging is left to them.
            rows: Any = lock_rows(Tally, using, skip_locked=True).filter(span & wanted).order_by("minute", "pool", "id")
            ids = list(rows.values_list("id", flat=True)[:CHUNK])
            if not ids:
                return False
            inserted = _insert_sums(self.db, ids, old)
            among, param = self.db.among("id", ids)
            if self.db.execute(f"DELETE FROM {{Tally}} WHERE {among}", [param]) != len(ids):
                # Somebody has been quicker, on a database that locks no rows: the sums are theirs.
                transaction.set_rollback(True, using=using)
                return False
        self.gone += len(ids) - inserted
        return True


def _insert_sums(db: Database, ids: Sequence[int], old: int) -> int:
    """Insert the sums of rows for each pool, lane and minute, of those that are older than ``old`` for all time; return how many."""
    among, param = db.among("id", ids)
    minute = f"CASE WHEN minute < {old} THEN 0 ELSE minute END"
    return db.execute(
        f"INSERT INTO {{Tally}} ({', '.join(COLUMNS)}) SELECT pool, lane, {minute}, {_SUMS}, {_HELD} FROM {{Tally}} WHERE {among} "
        f"GROUP BY pool, lane, {minute}",
        [param],
    )


def compact(using: str) -> int:
    """Merge all rows that can be; return how many fewer there are. The leader does it by itself, a chunk at a time."""
    sweep = Sweep(using)
    while sweep.prune():
        pass
    return sweep.gone
