"""The loop's statements are planned once a session, whatever waits beside what they find."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection

from django_workpool import Workpool, call
from django_workpool.database import database
from django_workpool.loop.memory import Depth

from .states.driver import SUCCESS, Loop, complete
from .states.functions import act
from .states.rows import USING

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the others keep no plans"),
]

#: Works due later: enough that a plan made for its parameters seems cheaper to the planner than one for all.
LATER = 20_000


def on_a_thread(function: Callable[[], None]) -> None:
    """Call it where the connection can become one of the pool's own."""

    def body() -> None:
        try:
            function()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(body).result()


def test_beside_many_works_that_are_due_later_nothing_is_planned_again() -> None:
    Workpool().using(delay=timedelta(days=30)).enqueue_many(act, [call(number) for number in range(LATER)])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) workpool_pendingstart, workpool_work")
    plans: list[tuple[str, int, int]] = []

    def iterate() -> None:
        database(USING).private_connection("loop")
        loop = Loop(limit=100)
        for number in range(30):
            Workpool().using(priority=number % 3).enqueue_many(act, [call(one) for one in range(10)])
            it = loop.iterate(tuple(Depth)[number % 3])
            for runs in it.runs.values():
                for run in runs:
                    complete(run, SUCCESS)
        with connection.cursor() as cursor:
            cursor.execute("SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements")
            plans.extend(cursor.fetchall())

    on_a_thread(iterate)

    queues = [generic for statement, generic, _ in plans if "LEFT JOIN LATERAL" in statement and "priority" in statement]
    assert queues
    assert min(queues) >= 20
    assert [(statement, custom) for statement, _, custom in plans if custom] == []
