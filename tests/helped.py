"""What the tests of the testing helpers enqueue."""

import asyncio
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, connection, connections, transaction

from django_workpool import (
    NonRetryableError,
    OnCompleteArgs,
    RetryBehavior,
    Workpool,
    action,
    current,
    enqueue,
    mutation,
    on_complete,
    query,
)

from .works.models import Counter, Event

#: Waits that nobody would wait for.
SLOW = RetryBehavior(max_attempts=3, initial_backoff=timedelta(hours=1), max_backoff=timedelta(days=2))


def note(name: str, key: object = "") -> None:
    Event.objects.create(name=name, key=str(key), at=0)


def noted(name: str) -> list[str]:
    return list(Event.objects.filter(name=name).order_by("id").values_list("key", flat=True))


@action
def add(first: Any, second: Any = 1) -> Any:
    note("add", first)
    return first + second


@action
async def aadd(first: int, second: int = 1) -> int:
    await asyncio.sleep(0)
    await Event.objects.acreate(name="aadd", key=str(first), at=0)
    return first + second


@action
async def afail() -> None:
    raise LookupError("async, too")


@mutation
def count_up(name: str) -> int:
    Counter.objects.update_or_create(name=name)
    return Counter.objects.count()


@mutation
def count_and_fail(name: str) -> None:
    Counter.objects.create(name=name)
    raise ValueError("after a change")


@query
def look() -> int:
    return Counter.objects.count()


@query
def write_in_a_query() -> None:
    Counter.objects.create(name="query")


@action
def write_and_fail(name: str) -> None:
    Counter.objects.create(name=name)
    raise ValueError("after a change")


@action
def break_the_database(name: str) -> None:
    Counter.objects.create(name=name)
    Counter.objects.create(name=name)


@action
def swallow(name: str) -> str:
    try:
        Counter.objects.create(name=name)
        Counter.objects.create(name=name)
    except IntegrityError:
        return "swallowed"
    return "no error"


@mutation
def swallow_in_a_mutation(name: str) -> str:
    return swallow(name)


@mutation
def leave_a_block_open() -> None:
    transaction.atomic().__enter__()
    Counter.objects.create(name="open")


@action
def leave_a_block_open_in_an_action() -> None:
    transaction.atomic().__enter__()
    Counter.objects.create(name="open")


@action
def close_connections(how: str) -> int:
    connections.close_all() if how == "all" else connection.close()
    return Counter.objects.count()


@action(retry=SLOW)
def fail_until(times: int) -> str:
    note("attempt")
    if len(noted("attempt")) <= times:
        raise ValueError(f"attempt {len(noted('attempt'))}")
    return "at last"


@action(retry=SLOW)
def give_up() -> None:
    raise NonRetryableError("for good")


@action
def return_a_set() -> Any:
    return {1}


@action
def interrupt() -> None:
    raise KeyboardInterrupt


@action
def exit_quietly() -> None:
    raise SystemExit(0)


@action
def go_on_for_ever(number: int) -> None:
    enqueue(go_on_for_ever, number + 1)


@action
def order_more(priorities: list[int]) -> None:
    note("ran", "order")
    for priority in priorities:
        Workpool().using(priority=priority).enqueue(mark, priority)


@action
def order_late() -> None:
    Workpool().enqueue("tests.helped_late.late", "enqueued by a work")


@action
def mark(key: object) -> None:
    note("ran", key)


@action
def run_inside() -> None:
    from django_workpool.testing import run_work

    run_work()


@mutation
def hook_and_enqueue(fails: bool) -> None:
    transaction.on_commit(lambda: enqueue(mark, "hook") and None)
    if fails:
        raise ValueError("no hook")


@action
def hook_that_raises() -> None:
    transaction.on_commit(lambda: 1 / 0)  # type: ignore[func-returns-value]


@action
def hook_in_a_hook() -> None:
    def outer() -> None:
        note("hook", "outer")
        transaction.on_commit(lambda: note("hook", "inner"))

    transaction.on_commit(outer)
    transaction.on_commit(lambda: note("hook", "next"))
    transaction.on_commit(connection.close)


@action
async def wait_for_ever() -> None:
    assert current().attempt == 1
    await asyncio.Event().wait()


@action
def takes_pool(pool: str, priority: int = 0) -> str:
    return pool


@on_complete
def ended(done: OnCompleteArgs) -> None:
    note("ended", f"{done.context}:{done.result.kind.value}:{done.result.value}:{done.result.error}")


@on_complete
def ended_badly(done: OnCompleteArgs) -> None:
    note("ended badly")
    raise RuntimeError("the callback fails")
