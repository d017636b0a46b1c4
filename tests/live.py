"""Real processes on the test database, shared by the tests of one module, and what tests ask of the rows."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_workpool import Workpool
from django_workpool.database import database
from django_workpool.models import Archive, Attempt, PendingCancelation, PendingCompletion, PendingStart, RunningWork, Work
from django_workpool.types import Lane

from .conftest import MainProcess, StartMain
from .works.models import Event

#: The machine may be busy: a wait is long, what is promised is held by times that the processes write down.
PATIENCE = 30


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE, poll: float = 0.02) -> None:
    """Wait until ``condition()`` is true; fail if it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not true within {seconds} s: {condition}")
        time.sleep(poll)


def results(ids: Iterable[uuid.UUID], seconds: float = PATIENCE) -> list[Archive]:
    """Wait until all works have ended, and return them in the order of ``ids``."""
    wanted = list(ids)
    deadline = time.monotonic() + seconds
    while (found := Archive.objects.filter(id__in=wanted).count()) < len(wanted):
        if time.monotonic() > deadline:
            pytest.fail(f"{found} of {len(wanted)} works have ended after {seconds} s")
        time.sleep(0.02)
    archived = Archive.objects.in_bulk(wanted)
    return [archived[one] for one in wanted]


def result(work_id: uuid.UUID, seconds: float = PATIENCE) -> Archive:
    """Wait until a work has ended, and return it."""
    return results([work_id], seconds)[0]


def value(work_id: uuid.UUID) -> Any:
    """Wait until a work has succeeded, and return what ``status`` says that it returned."""
    assert result(work_id).kind == "success", result(work_id).error
    told = Workpool().status(work_id).result
    assert told is not None
    return told.value


def left_over() -> dict[str, int]:
    """Return how many rows are in the hot tables, those that are empty left out."""
    hot = (Work, PendingStart, PendingCompletion, PendingCancelation, RunningWork)
    return {model.__name__: number for model in hot if (number := model._default_manager.count())}


def wait_for_quiet(seconds: float = PATIENCE) -> None:
    """Wait until the hot tables are empty."""
    deadline = time.monotonic() + seconds
    while left := left_over():
        if time.monotonic() > deadline:
            pytest.fail(f"rows are left after {seconds} s: {left}")
        time.sleep(0.02)


def running(pool: str = "default") -> int:
    """Return how many works run: what the limit counts."""
    return RunningWork.objects.filter(pool=pool, lane=Lane.WORK).count()


def texts(name: str, key: object) -> list[str]:
    """Return the texts of the events of a name and key, oldest first."""
    return list(Event.objects.filter(name=name, key=str(key)).order_by("id").values_list("text", flat=True))


def times(name: str, key: object) -> list[float]:
    """Return the times of the events of a name and key, oldest first."""
    return list(Event.objects.filter(name=name, key=str(key)).order_by("id").values_list("at", flat=True))


def failures(work_id: uuid.UUID) -> list[Attempt]:
    """Return the failed attempts of a work, in order."""
    return list(Attempt.objects.filter(work_id=work_id).order_by("number"))


def children(pid: int) -> set[int]:
    """Return the children of a process, zombies too."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(int(stat.parent.name))
        except OSError:
            continue
    return found


def lines(path: Path) -> list[int]:
    """Return the numbers that functions have written into a file."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def database_clock() -> float:
    """Return the database's time in seconds since 1970."""
    if connection.vendor == "sqlite":
        return time.time()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ({database('default').clock_ms_sql}) / 1000")
        return float(cursor.fetchone()[0])


@dataclass
class Live:
    """A running ``workpool_main``, and a way to start more."""

    start: StartMain
    main: MainProcess


@contextmanager
def live_main(blocker: Any, url: str, folder: Any, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Live]:
    """Run ``workpool_main`` beside the tests of a module; at the end it must obey SIGTERM, and all tables are emptied.

    The module's tests use the fixture ``transactional_db`` of this module instead of pytest-django's.
    """
    with blocker.unblock():
        assert "test" in str(connection.settings_dict["NAME"]), "only a test database may be emptied"
        start = StartMain(url, folder)
        try:
            main = start(*arguments, env=env)
            main.wait_for("process_started", PATIENCE)
            yield Live(start, main)
            main.terminate()
            assert main.wait(PATIENCE) == 0, main.output()
        finally:
            for started in start.started:
                started.kill()
            call_command("flush", interactive=False, verbosity=0)
            connection.close()


@contextmanager
def live_pair(blocker: Any, url: str, folder: Any, env: dict[str, str]) -> Iterator[Live]:
    """The same with threads for the pool "default", and beside it one with children for the pool "imports": the second that is started."""
    with live_main(blocker, url, folder, "--pool", "default", env=env) as running:
        children = running.start("--pool", "imports", "--processes", "2", env=env)
        children.wait_for("process_started", 60)
        yield running


@pytest.fixture
def transactional_db(live: Live) -> None:
    """Stand in for pytest-django's fixture, by whose name it knows which databases to set up.

    Its own empties all tables after each test, under the feet of the process that runs.
    """
