"""What the works of these tests name. Most are never called: their outcomes are given by the test."""

import time
from collections import Counter
from datetime import timedelta
from typing import Any

from django.db import connection

from django_workpool import OnCompleteArgs, RetryBehavior, Workpool, action, mutation, on_complete, query
from tests.works.models import Child, Event

#: The default wait before the first retry is 250 ms; with this the n-th is 2^(n − 1) seconds.
RETRY = RetryBehavior(max_attempts=3, initial_backoff=timedelta(seconds=1))

#: Calls of each callback in this process, by the id of the ended work; what is rolled back stays counted here.
calls: Counter[tuple[str, str]] = Counter()


@action(retry=False)
def act(value: Any = None) -> Any:
    """Return the argument."""
    return value


@action(retry=RETRY)
def act_retried(value: Any = None) -> Any:
    """Return the argument; a failure is retried."""
    return value


@action(retry=False)
async def act_async(value: Any = None) -> Any:
    """Return the argument, as a coroutine."""
    return value


@mutation
def mutate(value: Any = None) -> Any:
    """Return the argument, in a transaction."""
    return value


@mutation
def forget_statements() -> None:
    """Deallocate what the session has prepared, where the driver does not see it."""
    with connection.cursor() as cursor:
        cursor.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")


@query
def ask(value: Any = None) -> Any:
    """Return the argument, in a transaction that only reads."""
    return value


@on_complete
def told(done: OnCompleteArgs) -> None:
    """Write down how the work ended, and what its status is meanwhile."""
    calls["told", str(done.work_id)] += 1
    status = Workpool().status(done.work_id)
    seen = status.result.kind.value if status.result else None
    text = f"{done.result.kind.value} {done.result.value!r} {done.result.error!r} {done.context!r} {status.state.value} {seen}"
    Event.objects.create(name="told", key=str(done.work_id), text=text, at=time.time())


@on_complete
def told_at_second(done: OnCompleteArgs) -> None:
    """Write it down and fail; the second time it stands."""
    calls["told_at_second", str(done.work_id)] += 1
    Event.objects.create(name="told", key=str(done.work_id), text=done.result.kind.value, at=time.time())
    if calls["told_at_second", str(done.work_id)] < 2:
        raise ValueError("the callback fails at first")


@on_complete
def told_never(done: OnCompleteArgs) -> None:
    """Write it down and fail, always."""
    calls["told_never", str(done.work_id)] += 1
    Event.objects.create(name="told", key=str(done.work_id), text=done.result.kind.value, at=time.time())
    raise ValueError("the callback fails always")


@on_complete
def told_dangling(done: OnCompleteArgs) -> None:
    """Write it down, and leave a reference to nothing, which the database finds at the end of the transaction."""
    calls["told_dangling", str(done.work_id)] += 1
    Event.objects.create(name="told", key=str(done.work_id), text=done.result.kind.value, at=time.time())
    Child.objects.create(parent_id=987_654_321)


def effects(work_id: object) -> list[str]:
    """Return what callbacks of a work have committed."""
    return list(Event.objects.filter(name="told", key=str(work_id)).order_by("id").values_list("text", flat=True))
