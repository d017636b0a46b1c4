"""Progress of real runs: on threads, as coroutines, in child processes, of workers that are killed."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_workpool import Workpool
from django_workpool.database import database
from django_workpool.execution.progress import prune
from django_workpool.models import Progress

from .live import Live, live_pair, result, transactional_db, wait_for_quiet, wait_until
from .works import progress as works
from .works.apps import QUICK_VARIABLE
from .works.models import Counter

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

#: "default" has threads, "imports" has children.
POOLS = ["default", "imports"]
on_sqlite = connection.vendor == "sqlite"


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run a process with threads and one with children for the tests of this module."""
    with live_pair(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), {QUICK_VARIABLE: "1"}) as running:
        yield running


def said(work_id: uuid.UUID, pool: str = "default") -> tuple[float, float] | None:
    """Return what ``status`` tells of a running work's progress."""
    told = Workpool(pool).status(work_id).progress
    return None if told is None else (told.done, told.total)


FUNCTIONS = [works.come_far, works.read_so_far, works.await_so_far, works.say_from_a_thread, works.change_so_far]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_what_a_function_says_is_seen_while_it_runs(function: Any, pool: str, tmp_path: Path) -> None:
    work_id = Workpool(pool).enqueue(function, str(tmp_path), "a", 3, 4)
    if function is works.change_so_far and on_sqlite:
        # Nobody can write while a mutation runs there: it says so in vain, and that is all.
        wait_until(lambda: (tmp_path / "begun-a").exists())
    else:
        wait_until(lambda: said(work_id, pool) == (3, 4))
        # A mutation's own change is not seen yet.
        assert not Counter.objects.filter(name="a").exists()
    (tmp_path / "go").touch()
    assert result(work_id).kind == "success"
    assert Counter.objects.filter(name="a").count() == (function is works.change_so_far)
    Counter.objects.all().delete()
    wait_for_quiet()
    assert said(work_id, pool) is None
    prune("default")
    assert Progress.objects.count() == 0


@pytest.mark.parametrize("pool", POOLS)
def test_the_newest_of_many_steps_is_seen(pool: str, tmp_path: Path) -> None:
    work_id = Workpool(pool).enqueue(works.say_in_steps, str(tmp_path), "a", 1000)
    wait_until(lambda: said(work_id, pool) == (1000, 1000))
    (tmp_path / "go").touch()
    assert result(work_id).kind == "success"
    wait_for_quiet()


@pytest.mark.parametrize("pool", POOLS)
def test_a_copy_of_a_functions_process_says_it_in_vain(pool: str) -> None:
    ended = result(Workpool(pool).enqueue(works.say_in_a_copy))
    assert (ended.kind, ended.value) == ("success", "0")
    wait_for_quiet()


def test_works_of_both_processes_share_the_table(tmp_path: Path) -> None:
    ids = {pool: [Workpool(pool).enqueue(works.come_far, str(tmp_path), f"{pool}{n}", n, 9) for n in range(2)] for pool in POOLS}
    for pool, some in ids.items():
        wait_until(lambda pool=pool, some=some: [said(one, pool) for one in some] == [(0, 9), (1, 9)])  # type: ignore[misc]
    (tmp_path / "go").touch()
    for work_id in [one for some in ids.values() for one in some]:
        assert result(work_id).kind == "success"
    wait_for_quiet()


def boards_connected() -> int:
    """Return how many connections of boards there are."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'workpool progress'"
    return int(database("default").fetch(sessions)[0][0])


@pytest.mark.slow
def test_children_have_no_connection_of_their_own_for_it(tmp_path: Path) -> None:
    """Only the processes' own boards are connected, while something is said."""
    if connection.vendor != "postgresql":
        pytest.skip("sessions have names")
    work_id = Workpool("imports").enqueue(works.come_far, str(tmp_path), "a", 1, 2)
    wait_until(lambda: said(work_id, "imports") == (1, 2))
    assert 1 <= boards_connected() <= 2
    (tmp_path / "go").touch()
    assert result(work_id).kind == "success"
    # They are closed when nobody says anything any more.
    wait_until(lambda: boards_connected() == 0)
    wait_for_quiet()
