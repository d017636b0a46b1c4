"""Measures what each further process costs the others: hints that all hear, pulses that look at all, rows that the loop places among."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connection

from django_workpool.database import Hint, Watch, database
from django_workpool.database.postgresql import CHANNEL
from django_workpool.execution import workers
from django_workpool.loop.fleet import Fleet, Placement, WorkerInfo
from django_workpool.models import Worker
from django_workpool.runner.intake import Intake
from django_workpool.runner.leader import Leader
from django_workpool.runner.process import Options
from django_workpool.runner.watcher import Watcher
from django_workpool.types import Lane
from testproject.bench import tasks

from .meter import Meter, line, server_ns

USING = "default"
#: Sessions that listen, and hints sent.
LISTENERS, HINTS = 12, 60
#: Rows of workers at the first and at the second count of pulses, and pulses of each.
FEW_ROWS, MANY_ROWS, PULSES = 20, 1_000, 20
#: Workers among which one iteration's works are placed.
FEW_WORKERS, MANY_WORKERS, PLACED = 100, 1_000, 256
BATCHES = 5


def crowd_costs() -> dict[str, float]:
    """Return what hints and pulses cost."""
    return _hint_costs() | _pulse_costs()


def _listen(n: int) -> list["psycopg.Connection[Any]"]:
    parameters = connection.get_connection_params()
    named = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if parameters.get(name)}
    listeners = [psycopg.connect(**named, autocommit=True) for _ in range(n)]
    for one in listeners:
        one.execute(f"LISTEN {CHANNEL}")
    return listeners


def _send_cost() -> Meter:
    db = database(USING)
    with (meter := Meter()):
        for number in range(HINTS):
            db.notify([Hint("worker", str(number))])
    return meter


def _hint_costs() -> dict[str, float]:
    alone = _send_cost().each(HINTS)
    listeners = _listen(LISTENERS)
    try:
        pids = [one.info.backend_pid for one in listeners]
        heard, sent, db = 0.0, Meter(), database(USING)
        before = server_ns(pids)
        for number in range(HINTS):
            with sent:
                db.notify([Hint("worker", str(number))])
            began = time.thread_time()
            for one in listeners:
                for _ in one.notifies(timeout=5, stop_after=1):
                    pass
            heard += time.thread_time() - began
        woken = (server_ns(pids) - before) / 1000
    finally:
        for one in listeners:
            one.close()
    each = sent.each(HINTS)
    return {
        "notify_us": alone.server,
        "notify_python_us": alone.python,
        "signal_us": max(0.0, each.server - alone.server) / LISTENERS,
        "wake_server_us": woken / (HINTS * LISTENERS),
        "wake_python_us": heard * 1e6 / (HINTS * LISTENERS),
    }


class _Process:
    """A process's watch, without its threads."""

    def __init__(self, watch: Watch) -> None:
        self.watch, owner = watch, uuid.uuid4()
        options = Options(threads=1, pools=None, drain=False, grace=1.0)
        self.leader = Leader(USING, owner, Intake(USING, "host:1", options, lambda: False))
        self.leader.fleet.own = workers.register(USING, process=owner, threads=64, coroutines=0, pools=None).id
        self.watcher = Watcher(
            USING, self.leader, lambda runs: None, lambda: None, lambda: self.leader.fleet.own or 0, self.leader.fleet.own
        )

    def pulse(self) -> None:
        """Do what comes each second."""
        self.leader.watchdog.turned = time.monotonic()
        self.watcher.beaten = float("-inf")
        self.watcher._pulse(self.watch)


def _rows(n: int) -> list[Worker]:
    now = database(USING).moment(database(USING).clock_ms())
    rows = [
        Worker(process=uuid.uuid4(), host="host", pid=number, capacity=64, async_capacity=0, started=now, beat=now) for number in range(n)
    ]
    return Worker.objects.bulk_create(rows)


def _pulse_costs() -> dict[str, float]:
    [holder] = _listen(1)
    watch = database(USING).watch()
    costs = []
    try:
        table = Worker._meta.db_table
        process = _Process(watch)
        there = 1
        for n in (FEW_ROWS, MANY_ROWS):
            others = _rows(n - there)
            there = n
            holder.execute(
                "SELECT pg_advisory_lock((SELECT c.oid::bigint::bit(32)::int FROM pg_class c WHERE c.oid = %s::regclass), id) "
                "FROM unnest(%s::int[]) AS held(id)",
                [table, [one.id for one in others]],
            )
            for _ in range(PULSES):
                process.pulse()
            meter = Meter()
            for _ in range(PULSES):
                with meter:
                    process.pulse()
            costs.append(meter.typical())
    finally:
        watch.close()
        holder.close()
    server, server_row = line(FEW_ROWS, costs[0].server, MANY_ROWS, costs[1].server)
    python, python_row = line(FEW_ROWS, costs[0].python, MANY_ROWS, costs[1].python)
    return {"pulse_us": server, "pulse_row_us": server_row, "pulse_python_us": python, "pulse_python_row_us": python_row}


def _place(fleet: Fleet, path: str) -> float:
    began = time.thread_time()
    for _ in range(BATCHES):
        placement = Placement(fleet, "default")
        placement.has_room(Lane.CALLBACK)
        placement.has_room(Lane.WORK)
        placement.free_threads(Lane.WORK)
        for _ in range(PLACED):
            placement.known(path, "action")
            placement.take(path, "action")
        placement.has_room(Lane.WORK)
    return (time.thread_time() - began) * 1e6 / BATCHES


def placement_costs(info: Callable[[int], WorkerInfo]) -> dict[str, float]:
    """Return what each worker costs the loop in each iteration, whatever is placed with it."""
    path = f"{tasks.__name__}.noop"
    passed = [_place(Fleet(workers={number: info(number) for number in range(n)}), path) for n in (FEW_WORKERS, MANY_WORKERS)]
    return {"leader_worker_us": line(FEW_WORKERS, passed[0], MANY_WORKERS, passed[1])[1]}
