"""What the tests with several databases run. Functions that change a database name it."""

import time
from typing import Any

from django.db.models import F, Model

from django_workpool import OnCompleteArgs, Workpool, action, mutation, on_complete, query

from .models import Counter, Event


class ReadsFromSecond:
    """Sends the pool's reads to a database in which there is nothing: a replica that is so late that it has not even the tables."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        """Return the replica."""
        return "second" if model._meta.app_label == "workpool" else None

    def db_for_write(self, model: type[Model], **hints: Any) -> str:
        """Return the primary."""
        return "default"

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        """Keep the replica free: it gets what the primary has."""
        return db == "default"


def add_to(alias: str, name: str) -> None:
    """Count one more in a database."""
    counters = Counter.objects.using(alias)
    # Two that find no row meet here, and the second one waits for the first.
    counters.get_or_create(name=name)
    counters.filter(name=name).update(value=F("value") + 1)


@mutation
def count_in(alias: str, name: str, fails: bool = False) -> str:
    """Count one more in the database that ends the work, in its transaction."""
    add_to(alias, name)
    if fails:
        raise ValueError("fails after it has counted")
    return alias


@query
def read_in(alias: str, name: str) -> int:
    """Return a count."""
    return Counter.objects.using(alias).get(name=name).value


@action
def read_outside(alias: str, name: str) -> int:
    """Return a count, outside of a transaction."""
    return Counter.objects.using(alias).get(name=name).value


@action
async def acount_in(alias: str, name: str) -> str:
    """Count one more, from the event loop."""
    counters = Counter.objects.using(alias)
    if not await counters.filter(name=name).aupdate(value=F("value") + 1):
        await counters.acreate(name=name, value=1)
    return alias


@action
def bounce(pools: list[str], left: int) -> None:
    """Enqueue the same into the next pool, so often."""
    Event.objects.create(name="bounce", key=pools[0], text=str(left), at=time.time())
    if left:
        Workpool(pools[0]).enqueue(bounce, [*pools[1:], pools[0]], left - 1)


@mutation
def enqueue_into(pool: str, name: str, fails: bool) -> str:
    """Enqueue into another pool, then fail or not."""
    work_id = Workpool(pool).enqueue(count_in, "second", name)
    if fails:
        raise ValueError("fails after it has enqueued")
    return str(work_id)


@on_complete
def counted_in(done: OnCompleteArgs) -> None:
    """Count the end of a work in the database that its context names."""
    alias, name = done.context["alias"], done.context["name"]
    add_to(alias, f"{name}:{done.result.kind.value}")
