"""How many works a second: enqueued, and run from a backlog."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django_workpool import Workpool, enqueue
from django_workpool.models import PendingStart, RunningWork, Work
from django_workpool.types import Lane

from . import measure, place, tasks
from .course import Course, Function, case, last_began
from .measure import Figures, per_second

#: Characters of a big argument: nearly as much as a message of many brokers may have at all.
BIG = 800_000
LIMIT = 10


def run_all(course: Course, n: int, *, rows: bool = False, left: int = 0, look: Callable[[], None] | None = None, **setup: Any) -> Figures:
    """Run a backlog of works 0 to ``n`` - 1 to its end, and tell how fast that was.

    ``per_s_from_start`` counts from the start of the worker process, ``per_s_from_first`` from the first function's first line, both
    till that of the last one; ``per_s_ended`` from the first one till all has ended in the tables, too. Processor time is that of the
    worker processes, and of their sessions in the server.
    """
    before = measure.transactions()
    started = time.time()
    with course.workers(**setup) as workers:
        course.wait_for_runs(n, workers, look)
        ended = course.wait_for_ends()
        cpu, server = measure.cpu_seconds(workers.sessions), measure.server_cpu_seconds()
    course.verify(n, rows=rows, left=left)
    stamps = course.stamps()
    first, last = min(stamp.began for stamp in stamps), last_began(stamps)
    after = measure.transactions()
    return {
        "per_s_from_start": per_second(n, last - started),
        "per_s_from_first": per_second(n, last - first),
        "per_s_ended": per_second(n, ended - first),
        "startup_s": round(first - started, 2),
        "cpu_us_per_work": None if cpu is None else round(cpu / n * 1e6),
        "server_us_per_work": None if server is None else round(server / n * 1e6),
        "transactions_per_work": None if before is None or after is None else round((after - before) / n, 3),
    }


def drain_of(
    course: Course,
    n: int,
    function: Function,
    *,
    beside: Callable[[], AbstractContextManager[object]] = nullcontext,
    **how: Any,
) -> Figures:
    """Enqueue works, run them, and tell how fast they ran. ``beside`` makes what is open meanwhile; ``how`` goes to ``run_all``."""
    course.fill(function, n)
    place.analyze()
    with beside():
        return run_all(course, n, **how)


def _enqueued(course: Course, n: int, enqueue_all: Callable[[], object]) -> Figures:
    started = time.perf_counter()
    enqueue_all()
    seconds = time.perf_counter() - started
    stored = Work.objects.count(), PendingStart.objects.count()
    if stored != (n, n):
        course.problems.append(f"{stored[0]} works and {stored[1]} starts were stored instead of {n}")
    run_all(course, n)
    return {"per_s": per_second(n, seconds), "ms_each": round(seconds / n * 1000, 3)}


@case(n=2_000, name="enqueue")
def enqueue_one_by_one(course: Course, n: int) -> Figures:
    """Works enqueued one by one, each in a transaction of its own."""

    def one_by_one() -> None:
        for number in range(n):
            enqueue(tasks.noop, number)

    return _enqueued(course, n, one_by_one)


@case(n=20_000)
def enqueue_bulk(course: Course, n: int) -> Figures:
    """Works enqueued by enqueue_many, a thousand in each transaction."""
    return _enqueued(course, n, lambda: course.fill(tasks.noop, n))


@case(n=20_000)
def drain(course: Course, n: int) -> Figures:
    """A backlog of actions that do nothing."""
    return drain_of(course, n, tasks.noop)


@case(n=20_000)
def drain_async(course: Course, n: int) -> Figures:
    """A backlog of coroutines that do nothing."""
    return drain_of(course, n, tasks.anoop)


@case(n=10_000)
def drain_insert(course: Course, n: int) -> Figures:
    """A backlog of mutations that insert a row each."""
    return drain_of(course, n, tasks.insert, rows=True)


@case(n=10_000)
def drain_callback(course: Course, n: int) -> Figures:
    """A backlog of actions, each with an on_complete that inserts a row."""
    for number in range(n):
        Workpool().using(on_complete=tasks.inserted, on_complete_context=number).enqueue(tasks.noop, number)
    place.analyze()
    return run_all(course, n, rows=True)


@case(n=5_000)
def limit10(course: Course, n: int) -> Figures:
    """A backlog in a pool of limit 10, with two worker processes: never more than 10 running rows."""
    counts: list[int] = []

    def look() -> None:
        counts.append(RunningWork.objects.filter(lane=Lane.WORK).count())

    figures = drain_of(course, n, tasks.noop, look=look, limit=LIMIT, processes=max(course.setup.processes, 2))
    highest = max(counts, default=0)
    if highest > LIMIT:
        course.problems.append(f"{highest} works ran at once instead of {LIMIT}")
    return {**figures, "samples": len(counts), "most_running": highest}


@case(n=200)
def big_args(course: Course, n: int) -> Figures:
    """Works with arguments of 800 kB each."""
    ballast = "x" * BIG
    started = time.perf_counter()
    for number in range(n):
        enqueue(tasks.noop, number, ballast)
    seconds = time.perf_counter() - started
    return {"enqueue_per_s": per_second(n, seconds), **run_all(course, n)}


@case(n=2_000, postgresql_only=True)
def wal(course: Course, n: int) -> Figures:
    """Bytes of write-ahead log for each work: to enqueue it (alone, in bulk) and to run it."""
    marks = [measure.wal_bytes()]
    for number in range(n):
        enqueue(tasks.noop, number)
    marks.append(measure.wal_bytes())
    run_all(course, n)
    course.begin()
    marks.append(measure.wal_bytes())
    course.fill(tasks.noop, n)
    marks.append(measure.wal_bytes())
    place.analyze()
    marks.append(measure.wal_bytes())
    figures = run_all(course, n)
    marks.append(measure.wal_bytes())
    each = [round((after - before) / n) for before, after in zip(marks, marks[1:], strict=False)]
    return {
        "enqueue_bytes": each[0],
        "enqueue_bulk_bytes": each[2],
        "run_bytes": each[4],
        "transactions_per_work": figures["transactions_per_work"],
    }
