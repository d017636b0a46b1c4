"""Pools in the admin, while two processes work: a pause, a new limit and the end of a pause are obeyed within a second."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models import Max

from django_workpool import Workpool, call
from django_workpool.models import Archive, Globals, PendingStart, RunningWork, Work

from ..live import Live, database_clock, running, wait_until
from ..works.tasks import hold, nap
from .chrome import Browser

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("transactional_db")]

POOL = "imports"
PAGE = f"/admin/workpool/globals/{POOL}/change/"
#: Seconds in which all processes obey.
EFFECT = 1.0


def last_start() -> float:
    """Return when the last work of the pool began, in seconds since 1970."""
    rows = (model.objects.filter(pool=POOL).aggregate(last=Max("started"))["last"] for model in (RunningWork, Archive))
    return max((last.timestamp() for last in rows if isinstance(last, datetime)), default=0.0)


@pytest.fixture
def pool(live: Live) -> Iterator[Workpool]:
    """Return the pool; in the end nothing of it is left."""
    pool = Workpool(POOL)
    yield pool
    pool.cancel_all()
    pool.configure(max_parallelism=8)
    wait_until(lambda: not Work.objects.filter(pool=POOL).exists())


def logged() -> list[str]:
    """Return what was done with the pool, as the admin's log has it."""
    return [entry.get_change_message() for entry in LogEntry.objects.filter(object_id=POOL).order_by("id")]


def test_a_paused_pool_starts_nothing_more_until_it_goes_on(operator: Browser, pool: Workpool) -> None:
    pool.configure(max_parallelism=4)
    before = len(logged())
    operator.open(PAGE)
    pool.enqueue_many(nap, [call(0.05) for _ in range(3000)])
    wait_until(lambda: Archive.objects.filter(pool=POOL, kind="success").count() >= 20)
    operator.click("Pause")
    paused = database_clock()
    assert "Paused" in operator.text(".messagelist") and "paused" in operator.text("#content")
    assert Globals.objects.get(pool=POOL).max_parallelism == 0
    wait_until(lambda: running(POOL) == 0)
    left = PendingStart.objects.filter(pool=POOL).count()
    # Time in which works would start if anything let them.
    wait_until(lambda: database_clock() > paused + 2 * EFFECT)
    assert last_start() <= paused + EFFECT
    assert PendingStart.objects.filter(pool=POOL).count() == left > 0
    operator.click("Go on")
    resumed = database_clock()
    wait_until(lambda: last_start() > resumed)
    assert Globals.objects.get(pool=POOL).max_parallelism == 4
    assert logged()[before:] == ["Paused", "Goes on"]


@pytest.mark.slow
def test_a_new_limit_is_obeyed_within_a_second(operator: Browser, pool: Workpool, tmp_path: Path) -> None:
    pool.configure(max_parallelism=2)
    pool.enqueue_many(hold, [call(str(tmp_path), str(number)) for number in range(8)])
    wait_until(lambda: running(POOL) == 2)
    operator.open(PAGE)
    operator.click("Change limit or level of events")
    operator.fill("max_parallelism", "5")
    operator.click("Change limit or level of events")
    changed = database_clock()
    assert "Changed (max_parallelism 5)" in operator.text(".messagelist")
    wait_until(lambda: running(POOL) == 5)
    assert last_start() <= changed + EFFECT
    # Not one more.
    wait_until(lambda: database_clock() > changed + 2 * EFFECT)
    assert running(POOL) == 5
    (tmp_path / "go").touch()


def test_a_limit_that_is_none_is_refused_where_it_is_entered(operator: Browser, pool: Workpool) -> None:
    operator.open(PAGE)
    operator.click("Change limit or level of events")
    limit = operator.find("[name='max_parallelism']")
    # The browser itself refuses to send it.
    operator.fill("max_parallelism", "-3")
    assert operator.script("return arguments[0].checkValidity()", limit) is False
    operator.script("arguments[0].form.noValidate = true", limit)
    operator.click("Change limit or level of events")
    assert operator.all(".errorlist") and Globals.objects.get(pool=POOL).max_parallelism == 8
