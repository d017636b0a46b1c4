"""Timeouts and cancelations together with what else the pool can do: tasks of a framework, signals, unique keys, busy connections.

Threads and coroutines are those of the pool default, children those of the pool imports.
"""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

pytest.importorskip("tests.background.tasks", reason="no task framework: neither Django 6.0 nor django-tasks", exc_type=ImportError)

from django_workpool import Workpool, call
from django_workpool.models import Archive, PendingCancelation, RunningWork, Work
from tests.background import tasks as background
from tests.background.apps import SIGNALS_VARIABLE as TASK_SIGNALS_VARIABLE

from .conftest import MainProcess
from .live import Live, failures, live_pair, result, results, running, texts, transactional_db, wait_for_quiet, wait_until
from .works.apps import STOP_VARIABLE
from .works.models import Counter
from .works.receivers import SIGNALS_VARIABLE
from .works.stops import TWICE, busy, change_and_be_busy, look_busily, raise_canceled, shield_itself, stop_when_told
from .works.tasks import ended, note

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

SHORT = timedelta(milliseconds=150)
CANCELED, TIMEOUT = "django_workpool.exceptions.WorkCanceled", "django_workpool.exceptions.WorkTimeout"
THREADS, CHILDREN = Workpool("default"), Workpool("imports")
#: How drivers say that their connection is in the middle of something.
REFUSALS = (
    "utils.ProgrammingError",
    "utils.OperationalError",
    "utils.InterfaceError",
    "utils.InternalError",
    "utils.DatabaseError",
    "transaction.TransactionManagementError",
)
POOLS = {"threads": THREADS, "children": CHILDREN}
both = pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` with threads and one with children."""
    env = {STOP_VARIABLE: "1", TASK_SIGNALS_VARIABLE: "1", SIGNALS_VARIABLE: "holds"}
    with live_pair(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), env) as running:
        yield running


@pytest.fixture
def children(live: Live) -> MainProcess:
    return live.start.started[1]


def count(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def begun(folder: Path, number: int = 1) -> None:
    """Wait until so many functions have begun."""
    wait_until(lambda: count(folder / "begun") >= number)


def heard(work_id: object, number: int) -> list[dict[str, Any]]:
    """Wait until so many signals of a task have come, and return them."""
    wait_until(lambda: len(texts("signal", work_id)) >= number)
    return [json.loads(text) for text in texts("signal", work_id)]


def read(task: Any, work_id: object) -> Any:
    """Return the result of a task."""
    return task.get_result(str(work_id))


# Tasks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both
def test_a_task_that_takes_too_long_fails_and_is_retried_as_often_as_asked(live: Live, tmp_path: Path, pool: Workpool) -> None:
    tasks = {background.compute_task: 60.0, background.wait_task: 60.0}
    for task, seconds in tasks.items():
        work = task.using(queue_name=pool.name, timeout=SHORT, retry=TWICE, on_complete=ended).enqueue(str(tmp_path), seconds)  # type: ignore[attr-defined]
        archived = result(uuid.UUID(work.id))
        assert (archived.kind, archived.attempts, archived.error) == ("failed", 2, "it took longer than 0.15 s")
        found = read(task, work.id)
        assert (found.status, found.attempts) == ("FAILED", 2)
        assert [error.exception_class_path for error in found.errors] == [TIMEOUT, TIMEOUT]
        told = heard(work.id, 3)
        assert [one["signal"] for one in told] == ["task_started", "task_started", "task_finished"]
        assert told[-1]["raised"] == "WorkTimeout: it took longer than 0.15 s"
        assert texts("ended", work.id) == ["failed:None"]
    assert count(tmp_path / "begun") == 4
    wait_for_quiet()


@both
def test_a_task_that_is_canceled_ends_as_that_with_one_signal(live: Live, tmp_path: Path, pool: Workpool) -> None:
    stop = background.stop_task.using(queue_name=pool.name, max_attempts=5, on_complete=ended).enqueue(str(tmp_path))  # type: ignore[attr-defined]
    wait = background.wait_task.using(queue_name=pool.name, max_attempts=5).enqueue(str(tmp_path), 60)  # type: ignore[attr-defined]
    begun(tmp_path, 2)
    for task, one, path in ((background.stop_task, stop, CANCELED), (background.wait_task, wait, "asyncio.exceptions.CancelledError")):
        assert pool.cancel(uuid.UUID(one.id))
        archived = result(uuid.UUID(one.id))
        assert (archived.kind, archived.attempts, archived.error) == ("canceled", 1, "canceled")
        found = read(task, one.id)
        assert found.status == "FAILED" and found.errors[-1].exception_class_path == CANCELED
        assert [error.exception_class_path for error in found.errors] == list(dict.fromkeys([path, CANCELED]))
        told = heard(one.id, 2)
        assert [(item["signal"], item["status"]) for item in told] == [("task_started", "RUNNING"), ("task_finished", "FAILED")]
        assert told[-1]["errors"] == [error.exception_class_path for error in found.errors]
    assert texts("ended", stop.id) == ["canceled:None"]
    wait_for_quiet()


def test_a_task_in_a_child_that_does_not_obey_is_killed_and_its_end_is_told(live: Live, children: MainProcess, tmp_path: Path) -> None:
    late = background.deaf_task.using(queue_name="imports", timeout=SHORT).enqueue(str(tmp_path))  # type: ignore[attr-defined]
    canceled = background.deaf_task.using(queue_name="imports").enqueue(str(tmp_path))
    wait_until(lambda: len(texts("signal", canceled.id)) == 1)
    assert CHILDREN.cancel(uuid.UUID(canceled.id))
    assert [(one.kind, one.attempts) for one in results([uuid.UUID(late.id), uuid.UUID(canceled.id)])] == [("failed", 1), ("canceled", 1)]
    for one, path in ((late, TIMEOUT), (canceled, CANCELED)):
        assert [error.exception_class_path for error in read(background.deaf_task, one.id).errors] == [path]
        told = heard(one.id, 2)
        assert [item["signal"] for item in told] == ["task_started", "task_finished"]
        assert (told[-1]["errors"], told[-1]["raised"], told[-1]["pid"]) == ([path], None, children.process.pid)
    wait_for_quiet()


# Signals and keys -----------------------------------------------------------------------------------------------------


@both
def test_a_work_that_is_canceled_before_its_function_has_begun_knows_it(live: Live, tmp_path: Path, pool: Workpool) -> None:
    """A receiver of ``work_started`` takes long: the word of the cancelation comes meanwhile, to a child once and no more."""
    folder = tmp_path / pool.name
    folder.mkdir()
    work = pool.using(name=str(folder), on_complete=ended).enqueue(stop_when_told, str(folder))
    wait_until((folder / "held").exists)
    assert pool.cancel(work)
    wait_until(lambda: Work.objects.get(id=work).canceled)
    # Until the worker has been told, by a hint or by its own look.
    time.sleep(1.5)
    (folder / "go").touch()
    assert (result(work).kind, result(work).attempts) == ("canceled", 1)
    assert texts("ended", work) == ["canceled:None"]
    wait_for_quiet()


@both
def test_a_key_is_taken_from_a_work_that_runs(live: Live, tmp_path: Path, pool: Workpool) -> None:
    """Replaced five times: each is told, ends as canceled, once; the last one goes on."""
    replacing = pool.using(unique="stops", if_taken="replace", on_complete=ended)
    ids = []
    for number in range(6):
        ids.append(replacing.enqueue(stop_when_told, str(tmp_path)))
        begun(tmp_path, number + 1)
    assert [one.kind for one in results(ids[:-1])] == ["canceled"] * 5
    assert pool.status(ids[-1]).state == "running"
    assert pool.cancel(ids[-1]) and result(ids[-1]).kind == "canceled"
    assert [texts("ended", one) for one in ids] == [["canceled:None"]] * 6
    wait_for_quiet()


@both
def test_who_says_that_it_was_canceled_though_it_was_not_fails(live: Live, tmp_path: Path, pool: Workpool) -> None:
    work = pool.using(retry=TWICE, on_complete=ended).enqueue(raise_canceled, str(tmp_path))
    assert (result(work).kind, result(work).attempts, texts("ended", work)) == ("failed", 2, ["failed:None"])
    assert [one.class_path for one in failures(work)] == [CANCELED] * 2


# Many -----------------------------------------------------------------------------------------------------------------


@both
def test_the_exception_comes_anywhere_in_the_drivers_code_and_harms_nobody_else(live: Live, tmp_path: Path, pool: Workpool) -> None:
    """Opening, closing, committing, rolling back, logging, in a finally: one outcome each, and the threads go on as before."""
    pool.configure(max_parallelism=6)
    name = f"busy {pool.name}"
    Counter.objects.create(name=name, value=0)
    timed = [pool.using(timeout=timedelta(milliseconds=ms), on_complete=ended) for ms in range(3, 40, 2)]
    try:
        actions = [timed[number % len(timed)].enqueue(busy, 60) for number in range(24)]
        queries = [timed[number % len(timed)].enqueue(look_busily, 60) for number in range(10)]
        late = [timed[number % len(timed)].enqueue(change_and_be_busy, name, 60) for number in range(10)]
        in_time = [pool.using(timeout=timedelta(minutes=5)).enqueue(change_and_be_busy, name, 0.01) for _ in range(20)]
        beside = pool.using(on_complete=ended).enqueue_many(note, [call(f"{name} {number}") for number in range(40)])
        done = results([*actions, *queries, *late], 120)
        assert {(one.kind, one.attempts) for one in results([*in_time, *beside], 60)} == {("success", 1)}
    finally:
        pool.configure(max_parallelism=10)
    assert {(one.kind, one.attempts) for one in done} == {("failed", 1)}, {one.error for one in done if one.kind != "failed"}
    # What the function asks the database in its own finally, the driver may refuse: the exception has come in the middle of a query.
    raised = [failure.class_path for one in done for failure in failures(one.id)]
    assert len(raised) == len(done)
    assert TIMEOUT in raised and {path for path in raised if path != TIMEOUT} <= {f"django.db.{name}" for name in REFUSALS}
    assert [texts("ended", one.id) for one in done] == [["failed:None"]] * len(done)
    assert Counter.objects.get(name=name).value == 20
    for output in (main.output() for main in live.start.started):
        assert "disturbed" not in output and "could not be restored" not in output and "broke off" not in output
    wait_for_quiet()


@pytest.mark.slow
def test_thousands_of_coroutines_are_canceled_whatever_they_do(live: Live, tmp_path: Path) -> None:
    many = 1500
    THREADS.configure(max_parallelism=many)
    try:
        hows = ["plain"] * 8 + ["shield", "deaf"]
        ids = THREADS.using(retry=TWICE).enqueue_many(shield_itself, [call(str(tmp_path), hows[n % 10]) for n in range(many)])
        wait_until(lambda: running() == many, 60)
        THREADS.cancel_all()
        done = results(ids, 60)
    finally:
        THREADS.configure(max_parallelism=10)
    kinds = {how: {(one.kind, one.attempts) for number, one in enumerate(done) if hows[number % 10] == how} for how in set(hows)}
    assert kinds == {"plain": {("canceled", 1)}, "shield": {("canceled", 1)}, "deaf": {("success", 1)}}
    wait_for_quiet()
    assert not PendingCancelation.objects.exists() and not RunningWork.objects.exists()
    assert Archive.objects.filter(id__in=ids).count() == many


@pytest.mark.slow
def test_a_worker_ends_in_time_in_the_midst_of_timeouts(live: Live, tmp_path: Path) -> None:
    """SIGTERM while the exceptions fly: each work ends, or goes on elsewhere, and nothing is doubled."""
    # SQLite's mutations wait for each other in it.
    lasts = timedelta(milliseconds=400 if connection.vendor == "sqlite" else 150)
    other = live.start("--pool", "default", "--grace", "0.3", "--threads", "8", env={STOP_VARIABLE: "1"})
    other.wait_for("process_started", 60)
    THREADS.configure(max_parallelism=16)
    Counter.objects.create(name="midst", value=0)
    try:
        timed = THREADS.using(timeout=lasts, on_complete=ended)
        actions = timed.using(retry=TWICE).enqueue_many(busy, [call(60)] * 30)
        mutations = timed.enqueue_many(change_and_be_busy, [call("midst", 0.02)] * 20)
        wait_until(lambda: Archive.objects.filter(id__in=actions).exists(), 60)
        other.terminate()
        assert other.wait(30) == 0, other.output()
        assert {(one.kind, one.attempts) for one in results(actions, 120)} == {("failed", 2)}
        done = results(mutations, 120)
    finally:
        THREADS.configure(max_parallelism=10)
    assert Counter.objects.get(name="midst").value == sum(one.kind == "success" for one in done)
    assert [texts("ended", one) for one in actions] == [["failed:None"]] * 30
    assert [len(texts("ended", one)) for one in mutations] == [1] * 20
    wait_for_quiet()
