"""How long iterations take on one database: a process for each of the databases that are compared, which measures when it is told to.

``python -m tests.checks.pace`` reads its orders, a word and a number, from its standard input, and answers each with one line:
``later N`` inserts works that are due in a month, ``settle 0`` makes the server clean up what the rest would pay for, ``pace N``
measures iterations and tells their seconds, ``waiting 0`` tells how many works are due later.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

#: Works that each iteration starts or ends.
BATCH = 100
#: Priorities of the works that come: as many as callers use.
PRIORITIES = 5


class Pace:
    """The process that measures on a database.

    Args:
        url: The database's DATABASE_URL; its tables are there.
    """

    def __init__(self, url: str) -> None:
        environment = {**os.environ, "DATABASE_URL": url}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-m", __name__], env=environment, stdin=pipe, stdout=pipe, text=True)

    def ask(self, order: str, number: int = 0) -> list[float]:
        """Give an order, and wait for its answer.

        Raises:
            RuntimeError: the process has ended; it has said why.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        print(order, number, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            raise RuntimeError(f"no answer to {order!r}")
        return [float(one) for one in answer.split()]

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def pace(url: str) -> Iterator[Pace]:
    """Yield a process that measures on a database; it is ended afterwards."""
    one = Pace(url)
    try:
        yield one
    finally:
        one.end()


class Measure:
    """What is measured: iterations that look as far as the loop does. Each ends what the last one has started, and starts as much."""

    def __init__(self) -> None:
        from django_workpool.database import database
        from django_workpool.models import Globals

        # The worker that the loop registers knows the functions that are known by then.
        from ..states.driver import Loop
        from ..works import tasks

        self._note = tasks.note
        database("default").private_connection("loop")
        Globals.objects.update(max_parallelism=10 * BATCH)
        self._loop: Any = Loop(limit=10 * BATCH, threads=10 * BATCH)
        self._number = 0

    def pace(self, iterations: int) -> list[float]:
        """Return the seconds of iterations, and end what they have started."""
        from django_workpool import Workpool, call

        took, started = [], 0
        for _ in range(iterations):
            self._number += 1
            Workpool().using(priority=self._number % PRIORITIES).enqueue_many(self._note, [call(str(one)) for one in range(BATCH)])
            seconds, runs = self._iterate()
            took.append(seconds)
            started += runs
        while started < BATCH * iterations:
            # What was enqueued with a priority that lately had nothing due is found by the next look back.
            started += self._iterate()[1]
        self._iterate()
        return took

    def _iterate(self) -> tuple[float, int]:
        from django_workpool.loop.iteration import run_iteration
        from django_workpool.types import Attempted

        from ..states.driver import SUCCESS
        from ..states.rows import USING

        loop = self._loop
        began = time.perf_counter()
        it = run_iteration(USING, loop.memory, loop.fleet, loop.owner, results=loop.results)
        took = time.perf_counter() - began
        loop.results = [Attempted(run, SUCCESS, "here") for runs in it.runs.values() for run in runs]
        return took, len(loop.results)


def insert_later(number: int) -> None:
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


def settle() -> None:
    """Let the server do now what it would do sometime: count, clean up, and write out what was inserted."""
    from django.db import connection

    with connection.cursor() as cursor:
        for statement in {"postgresql": ("VACUUM (ANALYZE)", "CHECKPOINT"), "sqlite": ("ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)")}[
            connection.vendor
        ]:
            cursor.execute(statement)


def aside(function: Callable[..., None], *args: Any) -> None:
    """Call something that may take long on a thread, whose connection is not the impatient one of the loop."""
    from django.db import connection

    def body() -> None:
        try:
            function(*args)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(body).result()


def main() -> None:
    """Follow orders until there are no more."""
    import django

    django.setup()
    from django_workpool.models import PendingStart

    measure = Measure()
    for line in sys.stdin:
        order, number = line.split()
        answer: list[float] = []
        if order == "later":
            aside(insert_later, int(number))
        elif order == "settle":
            aside(settle)
        elif order == "pace":
            answer = measure.pace(int(number))
        elif order == "waiting":
            answer = [PendingStart.objects.count()]
        else:
            raise SystemExit(f"unknown: {order}")
        print(*answer, flush=True)


if __name__ == "__main__":
    main()
