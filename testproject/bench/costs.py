"""What processes cost that have nothing to do, and what a killed one costs."""

import time
from pathlib import Path

from django_workpool import enqueue
from django_workpool.models import RunningWork, Worker

from . import measure, tasks
from .course import POLL, STALL_SECONDS, Course, Stalled, case
from .measure import Figures, ratio
from .worker import Workers

POOLS = 500
#: Processes look more often for some seconds after a work: until they no longer do.
QUIET_SECONDS = 10.0
#: What is counted, and what a count of one a second is told as.
COUNTED = {"cpu_percent": 100, "server_cpu_percent": 100, "transactions_per_s": 1, "statements_per_s": 1}
#: Figures that a ratio is told of.
COMPARED = ("cpu_percent", "server_cpu_percent", "statements_per_s")


@case(n=30, unit="seconds")
def idle(course: Course, n: int) -> Figures:
    """What an idle process costs: processor, transactions, statements, memory."""
    return _idle(course, n, 1)


@case(n=30, unit="seconds")
def pools500(course: Course, n: int) -> Figures:
    """What an idle process costs with 500 pools, as a ratio to one with a single pool, measured just before."""
    one = _idle(course, n, 1)
    course.begin()
    many = _idle(course, n, POOLS)
    figures: Figures = {}
    for name in COMPARED:
        figures |= {name: many[name], f"{name}_of_one": one[name], f"{name}_ratio": ratio(many[name], one[name])}
    return figures


def _idle(course: Course, seconds: int, pools: int) -> Figures:
    workers = course.workers(pools=pools)
    counted = workers.count_statements()
    with workers:
        course.warm_up(workers, QUIET_SECONDS)
        before, started = _counters(workers, counted), time.monotonic()
        time.sleep(seconds)
        after, lasted = _counters(workers, counted), time.monotonic() - started
        workers.check()
        memory = measure.resident_mb(workers.sessions)
    course.verify(0)
    figures: Figures = {"resident_mb": memory}
    for name, factor in COUNTED.items():
        begin, end = before[name], after[name]
        figures[name] = None if begin is None or end is None else round((end - begin) * factor / lasted, 2)
    return figures


def _counters(workers: Workers, counted: Path) -> dict[str, float | None]:
    values = measure.cpu_seconds(workers.sessions), measure.server_cpu_seconds(), measure.transactions(), counted.stat().st_size
    return dict(zip(COUNTED, values, strict=True))


@case(n=1)
def crash(course: Course, n: int) -> Figures:
    """The process that runs a work is killed: until another one runs it."""
    seconds = []
    with course.workers(processes=2) as workers:
        course.warm_up(workers)
        for number in range(n):
            enqueue(tasks.killed, number)
            course.wait_for_runs(2 * number + 1, workers)
            workers.kill(_runner())
            at = time.time()
            course.wait_for_runs(2 * number + 2, workers)
            seconds.append(course.stamps()[-1].began - at)
            course.wait_for_ends()
            workers.start()
    course.verify(n, runs=2)
    return {"seconds": round(sum(seconds) / len(seconds), 2), "longest_s": round(max(seconds), 2)}


def _runner() -> int:
    """Return the process that runs the only running work."""
    deadline = time.monotonic() + STALL_SECONDS
    while time.monotonic() < deadline:
        row = RunningWork.objects.first()
        if row is not None:
            return Worker.objects.get(id=row.worker_id).pid
        time.sleep(POLL)
    raise Stalled("no work runs that a process could be killed for")
