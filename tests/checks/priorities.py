"""Higher priority first: one behind 10,000 others starts next, and half a million works of any priority that are due later cost nothing."""

import argparse
import statistics
import time
from datetime import timedelta

from .base import Check, run

#: Iterations measured before and after, and works that each of them starts or ends.
ITERATIONS, BATCH = 200, 100
#: What an iteration may take beside works that are due later, against what it takes without them.
RATIO = 1.2


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=10_000, help="of low priority")
    parser.add_argument("--later", type=int, default=500_000, help="works due in a month")


def check(check: Check) -> None:
    """Let one overtake; then measure iterations with and without works that are due later."""
    _one_overtakes(check)
    _later_ones_cost_nothing(check)


def _one_overtakes(check: Check) -> None:
    from django_workpool import Workpool, call
    from django_workpool.models import Archive

    from ..works.tasks import nap, note

    pool = Workpool()
    pool.configure(max_parallelism=1)
    pool.using(priority=-50).enqueue_many(nap, [call(0.02)] * check.options.works)
    main = check.start("--threads", "1")
    check.wait(lambda: Archive.objects.count() >= 50, 60, "fifty have ended")
    high = pool.using(priority=50).enqueue(note, "high")
    check.wait(lambda: Archive.objects.filter(id=high).exists(), 60, "the one of high priority has ended")
    ended = Archive.objects.get(id=high)
    before = Archive.objects.filter(priority=-50, started__gt=ended.created, started__lt=ended.started).count()
    check.expect(before <= 2, f"{before} of low priority were started before it")
    check.expect(Archive.objects.count() < check.options.works, "it came after all of them")
    check.figures["started_before_it"] = before
    main.terminate()
    main.wait(30)


def _later_ones_cost_nothing(check: Check) -> None:
    from django.db import connection

    from django_workpool.database import database
    from django_workpool.models import Globals, PendingStart, RunningWork, Work, Worker

    from ..states.driver import Loop

    for model in (PendingStart, RunningWork, Work, Worker):
        model._default_manager.all().delete()
    database("default").private_connection("loop")
    Globals.objects.update(max_parallelism=10 * BATCH)
    loop = Loop(limit=10 * BATCH, threads=10 * BATCH)
    without = _iterations(loop)
    _insert_later(check.options.later)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    beside = _iterations(loop)
    ratio = _quick(beside) / _quick(without)
    check.expect(ratio <= RATIO, f"an iteration takes {ratio:.2f} times as long")
    check.expect(PendingStart.objects.count() == check.options.later, "not all that is due later waits")
    check.figures.update(
        later=check.options.later,
        iteration_ms=f"{_quick(without) * 1000:.2f}",
        beside_ms=f"{_quick(beside) * 1000:.2f}",
        ratio=f"{ratio:.2f}",
    )


def _quick(seconds: list[float]) -> float:
    """Return the lower quartile: what else the machine does makes some of them longer, and none shorter."""
    return statistics.quantiles(seconds, n=4)[0]


def _iterations(loop: object) -> list[float]:
    """Return the seconds of iterations that look as far as the loop does: each ends what the last one has started, and starts as much."""
    from django_workpool import Workpool, call
    from django_workpool.loop.iteration import run_iteration
    from django_workpool.types import Attempted

    from ..states.driver import SUCCESS, Loop
    from ..states.rows import USING
    from ..works.tasks import note

    assert isinstance(loop, Loop)
    took, started = [], 0
    for number in range(-10, ITERATIONS):
        Workpool().using(priority=number % 5).enqueue_many(note, [call(str(one)) for one in range(BATCH)])
        began = time.perf_counter()
        it = run_iteration(USING, loop.memory, loop.fleet, loop.owner, results=loop.results)
        if number >= 0:
            took.append(time.perf_counter() - began)
        loop.results = [Attempted(run, SUCCESS, "here") for runs in it.runs.values() for run in runs]
        # What was enqueued with a priority that lately had nothing due is found by the next look back.
        started += len(loop.results)
    while started < BATCH * (ITERATIONS + 10):
        it = loop.iterate()
        loop.results = [Attempted(run, SUCCESS, "here") for runs in it.runs.values() for run in runs]
        started += len(loop.results)
    loop.iterate()
    return took


def _insert_later(number: int) -> None:
    """Insert works that are due in a month, of all priorities."""
    from django.db import connection

    from django_workpool import Workpool
    from django_workpool.models import PendingStart, Work

    from ..works.tasks import note

    Workpool().using(delay=timedelta(days=30)).enqueue(note, "later")
    work, start = Work._meta.db_table, PendingStart._meta.db_table
    others = ", ".join(field.column for field in Work._meta.concrete_fields if field.column not in ("id", "priority"))
    new_id = {"postgresql": "gen_random_uuid()", "sqlite": "lower(hex(randomblob(16)))"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {work} (id, priority, {others}) WITH RECURSIVE numbers(number) AS "
            f"(SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {number - 1}) "
            f"SELECT {new_id}, numbers.number %% 201 - 100, {others} FROM {work}, numbers",
            [],
        )
        cursor.execute(
            f"INSERT INTO {start} (work_id, pool, lane, priority, segment) SELECT w.id, w.pool, s.lane, w.priority, s.segment "
            f"FROM {work} w, {start} s WHERE w.id <> s.work_id"
        )


if __name__ == "__main__":
    run("priorities", check, add_options=options)
