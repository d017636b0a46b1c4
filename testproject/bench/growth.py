"""What a backlog costs beside much else, as a ratio to the same backlog in empty tables, measured just before."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from django.db import connection, connections

from django_workpool import Workpool
from django_workpool.models import Archive, PendingStart, Work

from . import place, tasks
from .cases import drain_of, run_all
from .course import Course, case
from .measure import Figures, ratio

DONE = 1_000_000
FUTURE = 500_000
MONTH = timedelta(days=30)
#: The figures that a ratio is told of.
COMPARED = ("per_s_ended", "cpu_us_per_work", "server_us_per_work")


def _ratio(
    course: Course,
    n: int,
    *,
    prepare: Callable[[], int] = lambda: 0,
    beside: Callable[[], AbstractContextManager[object]] = nullcontext,
    **setup: Any,
) -> Figures:
    """Drain twice: in empty tables, and after ``prepare`` (which returns how many rows of unfinished work stay), with ``beside`` open."""
    plain = drain_of(course, n, tasks.noop, **setup)
    course.begin()
    left = prepare()
    course.forget_stamps()
    full = drain_of(course, n, tasks.noop, beside=beside, left=left, **setup)
    figures: Figures = {}
    for name in COMPARED:
        beside_much, alone = full[name], plain[name]
        figures |= {name: beside_much, f"{name}_empty": alone, f"{name}_ratio": ratio(beside_much, alone)}
    return figures


@case(n=20_000)
def growth_done(course: Course, n: int) -> Figures:
    """A backlog beside a million finished works that are kept."""

    def prepare() -> int:
        course.fill(tasks.noop, 1)
        run_all(course, 1, retention_day=True)
        _multiply(Archive, DONE - 1)
        return 0

    return _ratio(course, n, prepare=prepare, retention_day=True)


@case(n=20_000)
def growth_future(course: Course, n: int) -> Figures:
    """A backlog beside 500,000 works that are due in a month."""

    def prepare() -> int:
        Workpool().using(delay=MONTH).enqueue(tasks.noop, 0)
        _multiply(Work, FUTURE - 1)
        work, start = Work._meta.db_table, PendingStart._meta.db_table
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {start} (work_id, pool, lane, priority, segment) SELECT w.id, w.pool, s.lane, w.priority, s.segment "
                f"FROM {work} w, {start} s WHERE w.id <> s.work_id"
            )
        return place.left()

    return _ratio(course, n, prepare=prepare)


@case(n=100_000)
def old_snapshot(course: Course, n: int) -> Figures:
    """A backlog beside a transaction that has read the tables and stays open."""
    return _ratio(course, n, beside=_open_snapshot)


@contextmanager
def _open_snapshot() -> Iterator[None]:
    with closing(connections.create_connection("default")) as other, other.cursor() as cursor:
        if place.is_mysql():
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ" if place.is_postgresql() else "BEGIN")
        for model in place.QUEUES:
            cursor.execute(f"SELECT count(*) FROM {model._meta.db_table}")
            cursor.fetchone()
        yield
        cursor.execute("ROLLBACK")


def _multiply(model: Any, times: int) -> None:
    """Insert the only row of a table again and again, each time with an id of its own."""
    others = ", ".join(field.column for field in model._meta.concrete_fields if field.column != "id")
    new_id = {"postgresql": "gen_random_uuid()", "mysql": "REPLACE(UUID(), '-', '')"}.get(connection.vendor, "lower(hex(randomblob(16)))")
    table = model._meta.db_table
    # MariaDB ends a recursion after 1,000 rows.
    unbounded = f"SET STATEMENT max_recursive_iterations = {times} FOR " if place.is_mysql() else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"{unbounded}INSERT INTO {table} (id, {others}) WITH RECURSIVE numbers(number) AS "
            f"(SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {times}) SELECT {new_id}, {others} FROM {table}, numbers"
        )
