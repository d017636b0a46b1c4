"""Measures, in a few seconds and in a database of its own, those constants that need no other host."""

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django.db import connection, connections
from django.test import override_settings

from django_workpool import Workpool, call, enqueue
from django_workpool.complete import complete_many
from django_workpool.configuration import create_rows
from django_workpool.database import database
from django_workpool.execution import workers
from django_workpool.loop.fleet import Fleet, Room, WorkerInfo
from django_workpool.loop.iteration import run_iteration
from django_workpool.loop.memory import PoolMemory
from django_workpool.models import InternalState, RunStatus
from django_workpool.runner.lead import Leadership
from django_workpool.types import Attempted, LoopState, Outcome, Run
from testproject.bench import place, tasks

from .crowd import crowd_costs, placement_costs
from .meter import Meter, line

USING, POOL = "default", "default"
#: The leader's own worker, and one elsewhere: not those whose pulse is measured.
OWN, OTHER = 1_000_001, 1_000_002
#: Works of a small and of a full batch, and how many batches of each.
FEW, MANY = 16, 256
REPEATS = {FEW: 100, MANY: 16}
#: Turns that come before, not counted: statements are prepared, and planned once and for all, after some.
WARM_UP = 10
SINGLES = 200
COMMITS = 100


class Loop:
    """The leader's loop without its threads, so that each part of it can be counted by itself."""

    def __init__(self) -> None:
        create_rows(USING)
        self.db = database(USING)
        self.owner = uuid.uuid4()
        if not Leadership(USING, self.owner).take(set()):
            raise RuntimeError("the lead of a new database is not free")
        RunStatus.objects.update(state=LoopState.RUNNING.value)
        generation = InternalState.objects.values_list("generation", flat=True).get(pool=POOL)
        self.memory = PoolMemory(pool=POOL, generation=generation)

    def iterate(self, fleet: Fleet, results: list[Attempted]) -> list[Run]:
        """Iterate once; return what was started."""
        it = run_iteration(USING, self.memory, fleet, self.owner, results=results)
        return [run for runs in it.runs.values() for run in runs]


def one_worker(worker_id: int, own: int) -> Fleet:
    """Return a fleet with one worker that takes anything."""
    info = worker_info(worker_id)
    return Fleet(own=own, workers={worker_id: info}, refreshed=time.monotonic())


def worker_info(worker_id: int, capacity: int = 10_000) -> WorkerInfo:
    """Return a worker that knows the bench's functions."""
    return WorkerInfo(
        id=worker_id,
        name=f"host:{worker_id}",
        process=uuid.uuid4(),
        capacity={Room.THREAD: capacity, Room.COROUTINE: 0, Room.CALLBACK: 4},
        pools=None,
        functions={f"{tasks.__name__}.noop": "action"},
        accepting=True,
    )


def succeeded(runs: list[Run]) -> list[Attempted]:
    """Return the outcomes of runs that have all succeeded."""
    return [Attempted(run=run, outcome=Outcome(kind="success"), worker="host:1") for run in runs]


def measure() -> dict[str, float]:
    """Return the constants that could be measured, by name.

    Raises:
        NoPlace: the database of its own cannot be made.
        NotHere: the server is elsewhere.
    """
    # Nothing is kept: what an archive costs is a constant of its own.
    without_archive = override_settings(WORKPOOLS={POOL: {"RETENTION": timedelta(0)}})
    with without_archive, tempfile.TemporaryDirectory() as folder, place.temporary_database(Path(folder)):
        create_rows(USING)
        found = _enqueue_costs()
        with _as_the_loop() as loop:
            found |= _commit_costs()
            found |= _own_costs(loop)
            found |= _other_costs(loop)
            found |= _reload_costs(loop)
            found |= crowd_costs()
    return found | placement_costs(worker_info)


@contextmanager
def _as_the_loop() -> Iterator[Loop]:
    kept = connections[USING]
    database(USING).private_connection("loop")
    try:
        yield Loop()
    finally:
        connections[USING].close()
        connections[USING] = kept


def _enqueue_costs() -> dict[str, float]:
    total = 2 * sum(size * (repeats + WARM_UP) for size, repeats in REPEATS.items()) + 4 * MANY
    many, single = Meter(wal=True), Meter()
    pool = Workpool()
    enqueue(tasks.noop, 0)
    with many:
        for first in range(0, total, 1000):
            pool.enqueue_many(tasks.noop, [call(number) for number in range(first, min(first + 1000, total))])
    RunStatus.objects.update(state=LoopState.RUNNING.value)
    with single:
        for number in range(SINGLES):
            enqueue(tasks.noop, number)
    each = many.each(total)
    # A thousand works a statement: what is fixed of it does not count.
    alone = single.each(SINGLES)
    return {
        "enqueue_work_us": each.server,
        "enqueue_fixed_us": max(0.0, alone.server - each.server),
        "enqueue_wal": each.wal,
    }


def _commit_costs() -> dict[str, float]:
    passed = []
    for level in ("on", "off"):
        with connection.cursor() as cursor:
            cursor.execute(f"SET synchronous_commit = {level}")
        with (meter := Meter()):
            for _ in range(COMMITS):
                RunStatus.objects.filter(pool=POOL).update(state=LoopState.RUNNING.value)
        passed.append(meter.each(COMMITS).passed)
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
    return {"flush_us": max(0.0, passed[0] - passed[1])}


def _fits(costs: dict[int, Meter], python: str, server: str, fixed: str) -> dict[str, float]:
    few, many = costs[FEW].typical(), costs[MANY].typical()
    found: dict[str, float] = {}
    for name, one, other in ((python, few.python, many.python), (server, few.server, many.server)):
        at_all, each = line(FEW, one, MANY, other)
        found |= {f"{name}{fixed}": at_all, f"{name}_work_us": each}
    return found


def _own_costs(loop: Loop) -> dict[str, float]:
    """Count iterations that end works of this process and start others."""
    fleet = one_worker(OWN, OWN)
    costs = {size: Meter(wal=size == MANY) for size in REPEATS}
    runs: list[Run] = []
    for size, repeats in REPEATS.items():
        Workpool().configure(max_parallelism=size)
        for number in range(repeats + WARM_UP):
            if number < WARM_UP:
                runs = loop.iterate(fleet, succeeded(runs))
                continue
            with costs[size]:
                runs = loop.iterate(fleet, succeeded(runs))
    Workpool().configure(max_parallelism=0)
    loop.iterate(fleet, succeeded(runs))
    found = _fits(costs, "leader_own", "server_own", "_iteration_us")
    return {**found, "run_own_wal": costs[MANY].each(REPEATS[MANY] * MANY).wal}


def _other_costs(loop: Loop) -> dict[str, float]:
    """Count iterations for a worker elsewhere, its fetches and its completions."""
    fleet = one_worker(OTHER, OWN)
    parts = ("leader", "fetch", "complete")
    costs = {part: {size: Meter(wal=size == MANY and part != "fetch") for size in REPEATS} for part in parts}
    token = 0
    for size, repeats in REPEATS.items():
        Workpool().configure(max_parallelism=size)
        for number in range(repeats + WARM_UP):
            meters = {part: Meter() if number < WARM_UP else costs[part][size] for part in parts}
            with meters["leader"]:
                loop.iterate(fleet, [])
            with meters["fetch"]:
                runs = workers.assigned(USING, OTHER, token)
            token = runs[-1].token if runs else token
            ended = succeeded(runs)
            with meters["complete"]:
                complete_many(USING, ended)
    Workpool().configure(max_parallelism=0)
    loop.iterate(fleet, [])
    found = _fits(costs["leader"], "leader_other", "server_other", "_iteration_us")
    found |= _fits(costs["fetch"], "fetch_python", "fetch_server", "_fixed_us")
    found |= _fits(costs["complete"], "complete_python", "complete_server", "_fixed_us")
    wal = sum(costs[part][MANY].each(REPEATS[MANY] * MANY).wal for part in ("leader", "complete"))
    return {**found, "run_other_wal": wal}


def _reload_costs(loop: Loop) -> dict[str, float]:
    """Count the look at all running rows that the loop takes every ten seconds."""
    Workpool().configure(max_parallelism=MANY)
    loop.iterate(one_worker(OWN, OWN), [])
    with (meter := Meter()):
        for _ in range(5):
            loop.memory.load(loop.db)
    return {"reload_row_us": meter.each(5 * max(1, len(loop.memory.running))).passed}
