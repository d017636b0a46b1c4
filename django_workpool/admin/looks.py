"""What the dashboard reads: what the pools of a database hold now, and what they have done. Read once a second for all who look."""

import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .. import health, stats, tallies
from ..database import Database, database
from ..health import Health
from ..models import RunningWork
from ..tallies import Point, Totals

T = TypeVar("T")

#: Seconds for which what was read serves everybody who asks.
NOW_FOR, TOTALS_FOR = 1.0, 5.0
#: The same for the news that it could not be read.
FAILURE_FOR = 1.0
#: Seconds for which a look is remembered, to be compared with later ones.
REMEMBERED = 30.0
#: Keys of what is shared: pools may come and go.
KEYS_MAX = 500
#: Groups of running works that are asked since when they run.
GROUPS_MAX = 300


@dataclass(frozen=True, slots=True)
class Window:
    """What the charts reach back, and the width of their steps, both in minutes."""

    minutes: int
    step: int


WINDOWS = {"hour": Window(60, 1), "day": Window(24 * 60, 15), "week": Window(7 * 24 * 60, 120)}


class Fresh(Generic[T]):
    """What was read, until it is too old. Whoever comes while it is read waits for that, and is told the same, also of a failure."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = -math.inf
        self._value: T
        self._failure: Exception | None = None

    def get(self, seconds: float, read: Callable[[], T]) -> T:
        """Return what ``read`` returned within the last ``seconds``, or raise what it raised within the last one."""
        with self._lock:
            if time.monotonic() >= self._until:
                seconds = self._read(seconds, read)
                self._until = time.monotonic() + seconds
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            return self._value

    def _read(self, seconds: float, read: Callable[[], T]) -> float:
        try:
            self._value, self._failure = read(), None
        except Exception as error:
            self._failure = error
            return FAILURE_FOR
        return seconds


_fresh: defaultdict[tuple[str, ...], Fresh[Any]] = defaultdict(Fresh)
_looks: defaultdict[str, list[tuple[float, Health]]] = defaultdict(list)


def forget() -> None:
    """Forget all that was read: the next who ask read it anew."""
    _fresh.clear()
    _looks.clear()


def fresh(*key: str) -> "Fresh[Any]":
    """Return what everybody shares under a key."""
    if len(_fresh) > KEYS_MAX:
        _fresh.clear()
    return _fresh[key]


# Now ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What a worker runs of one function in a lane of a pool."""

    worker: int
    pool: str
    lane: int
    function: str
    number: int
    #: The id of the running row that began first.
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What there is at one moment."""

    now_ms: float
    health: Health
    #: Whether an earlier look has seen the same faults. A fault of one look may be a moment between two leaders, or two workers.
    sure: bool
    runs: tuple[Runs, ...]
    #: How many run, by pool and lane.
    running: Counter[tuple[str, int]]
    #: When the first of each group of ``runs`` began, in milliseconds since 1970.
    began_ms: dict[int, float]


def now(using: str) -> Now:
    """Return what a database holds now, at most a second old.

    Raises:
        Unasked: the database cannot be asked.
    """
    shared: Fresh[Now] = fresh("now", using)
    return shared.get(NOW_FOR, lambda: _now(using))


def _now(using: str) -> Now:
    db = database(using)
    found, sure = _confirmed(using, health.look(using))
    runs = _runs(db)
    running: Counter[tuple[str, int]] = Counter()
    for one in runs:
        running[one.pool, one.lane] += one.number
    began = RunningWork.objects.using(using).filter(id__in=[one.first for one in runs[:GROUPS_MAX]])
    return Now(
        now_ms=db.clock_ms(),
        health=found,
        sure=sure,
        runs=tuple(runs),
        running=running,
        began_ms={key: started.timestamp() * 1000 for key, started in began.values_list("id", "started")},
    )


def _confirmed(using: str, look: Health) -> tuple[Health, bool]:
    """Return what of a look an earlier one has seen, too, and whether there was one. Nobody waits for the second."""
    at, looks = time.monotonic(), _looks[using]
    looks[:] = [one for one in looks if at - one[0] < REMEMBERED]
    before = [one for moment, one in looks if at - moment >= health.AGAIN_AFTER]
    looks.append((at, look))
    if not look.problems:
        return look, True
    return (health.confirmed(before[-1], look), True) if before else (look, False)


def _runs(db: Database) -> list[Runs]:
    rows = db.fetch(
        "SELECT r.worker_id, r.pool, r.lane, w.func_path, COUNT(*), MIN(r.id) FROM (SELECT id, pool, lane, worker_id, work_id "
        f"FROM {{RunningWork}} LIMIT {stats.COUNT_MAX}) r LEFT JOIN {db.each('{Work}', 'w', 'w.id = r.work_id')} "
        "GROUP BY r.worker_id, r.pool, r.lane, w.func_path ORDER BY 5 DESC, 6"
    )
    names = ("worker", "pool", "lane", "function", "number", "first")
    # A work that has ended keeps its slot for a moment.
    return [Runs(**dict(zip(names, (*row[:3], row[3] or "", *row[4:]), strict=True))) for row in rows]


# What was done ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The steps of a window, and what each pool has done in them."""

    now_ms: float
    step: int
    minutes: range
    points: tuple[Point, ...]


def history(using: str, name: str, now_ms: float) -> History:
    """Return what all pools of a database have done in a window up to now: at most as many seconds old as a step has minutes."""
    window = WINDOWS[name]
    shared: Fresh[History] = fresh("history", using, name)
    return shared.get(window.step, lambda: _history(using, window, now_ms))


def _history(using: str, window: Window, now_ms: float) -> History:
    until = (tallies.minute_of(now_ms) // window.step + 1) * window.step
    since = until - window.minutes
    points = tuple(tallies.series(using, since, until, window.step))
    return History(now_ms=now_ms, step=window.step, minutes=range(since, until, window.step), points=points)


def totals(using: str) -> dict[str, Totals]:
    """Return what the pools of a database have done since they began, at most five seconds old."""
    shared: Fresh[dict[str, Totals]] = fresh("totals", using)
    return shared.get(TOTALS_FOR, lambda: tallies.totals(using))
