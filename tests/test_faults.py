"""Processes that are killed, threads that cannot be started, functions that are gone: nothing is lost, nothing hangs."""

import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection

from django_workpool import RetryBehavior, Workpool, call
from django_workpool.execution import workers
from django_workpool.models import Archive, Lead, PendingStart, RunningWork, Work, Worker
from django_workpool.runner import process as process_module
from django_workpool.runner import service
from django_workpool.runner.process import Options, Process

from .conftest import StartMain
from .live import PATIENCE, failures, left_over, result, results, running, texts, times, wait_for_quiet, wait_until
from .works import apps
from .works.models import Counter, Event
from .works.tasks import die, ended, ended_once, hold, hold_mutation, nap, note, slow_note, spin

#: What the contract promises: from the kill, or from the first process that lives, to the recovery.
RECOVERED_WITHIN = 10
#: What a busy machine adds.
SLACK = 0.5
THREE = RetryBehavior(max_attempts=3, initial_backoff=timedelta(milliseconds=20))
POSTGRESQL = pytest.mark.skipif(connection.vendor != "postgresql", reason="PostgreSQL only")


def test_work_of_a_killed_process(main_process: StartMain, tmp_path: Path) -> None:
    """kill -9 amid 60 actions, three that wait and a mutation before its commit; a new process brings all of them to one end."""
    pool = Workpool()
    plain = pool.enqueue(hold, str(tmp_path), "plain")
    retried = pool.using(retry=THREE).enqueue(hold, str(tmp_path), "retried")
    called = pool.using(on_complete=ended).enqueue(hold, str(tmp_path), "called")
    first = main_process()
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 3)
    many = pool.using(on_complete=ended_once).enqueue_many(slow_note, [call(str(number), 0.05) for number in range(60)])
    wait_until(lambda: Archive.objects.count() > 10)
    mutation = pool.using(on_complete=ended, priority=1).enqueue(hold_mutation, str(tmp_path), "mutation")
    wait_until((tmp_path / "begun-mutation").exists)
    first.kill()
    assert 10 < Archive.objects.count() < 60
    assert Counter.objects.filter(name="mutation").count() == 0
    lost = set(RunningWork.objects.values_list("work_id", flat=True))
    assert {plain, retried, called, mutation} <= lost
    (tmp_path / "go").touch()
    second = main_process()
    assert {one.kind for one in results(many)} == {"success"}
    results([plain, retried, called, mutation])
    wait_for_quiet()

    assert (result(plain).kind, result(plain).attempts) == ("failed", 1)
    (failure,) = failures(plain)
    assert failure.class_path == "django_workpool.WorkerLost"
    assert failure.text.startswith("worker lost: ") and failure.text == result(plain).error
    alive = Worker.objects.get().started
    assert (failure.ended - alive).total_seconds() < RECOVERED_WITHIN
    assert (result(retried).kind, result(retried).attempts) == ("success", 2)
    assert [one.class_path for one in failures(retried)] == ["django_workpool.WorkerLost"]
    assert (result(called).kind, texts("ended", called)) == ("failed", ["failed:None"])
    # The mutation's first run left nothing, and was not its fault.
    assert (result(mutation).kind, result(mutation).attempts, texts("ended", mutation)) == ("success", 1, ["success:None"])
    assert Counter.objects.get(name="mutation").value == 1
    assert {one.name: one.value for one in Counter.objects.exclude(name="mutation")} == {f"{one}:success": 1 for one in many}
    assert len(times("begun", "plain")) == 1 and len(times("begun", "retried")) == 2
    assert set(Worker.objects.values_list("pid", flat=True)) == {second.process.pid}


@pytest.mark.slow
def test_work_that_kills_its_process_is_started_three_times(main_process: StartMain) -> None:
    """Three works end their process together, one of them is canceled after the first crash; beside them, 5 that may be retried."""
    pool = Workpool()
    pool.configure(max_parallelism=4)
    signaled, exiting, canceled = (pool.using(on_complete=ended, priority=1).enqueue(die, how) for how in ("signal", "exit", "canceled"))
    patient = RetryBehavior(max_attempts=9, initial_backoff=timedelta(0))
    good = pool.using(retry=patient).enqueue_many(slow_note, [call(f"good{number}", 0.01) for number in range(5)])
    starts = 0
    while Archive.objects.filter(id__in=[signaled, exiting, *good]).count() < 7:
        # What a shell loop or an init system does.
        main = main_process(env={apps.QUICK_VARIABLE: "1"})
        starts += 1
        assert starts <= 5, main.output()
        wait_until(lambda: main.process.poll() is not None or not left_over(), 60)  # noqa: B023
        assert starts > 1 or pool.cancel(canceled)
    assert {one.kind for one in results(good)} == {"success"}
    for work_id, how in ((signaled, "signal"), (exiting, "exit")):
        assert (result(work_id).kind, result(work_id).attempts, len(times("die", how))) == ("failed", 3, 3)
        assert [one.class_path for one in failures(work_id)] == ["django_workpool.WorkerLost"] * 3
        assert texts("ended", work_id) == ["failed:None"]
    assert (result(canceled).kind, len(times("die", "canceled")), texts("ended", canceled)) == ("canceled", 1, ["canceled:None"])
    wait_for_quiet()


@pytest.fixture
def in_process(transactional_db: None) -> Iterator[Callable[[], Process]]:
    """Return a function that runs a ``workpool_main`` on a thread of the test's process; it is stopped at the end."""
    begun: list[tuple[Process, threading.Thread]] = []

    def begin() -> Process:
        process = Process("default", Options(threads=4, pools=None, drain=False, grace=5))
        thread = threading.Thread(target=process.run)
        thread.start()
        begun.append((process, thread))
        return process

    yield begin
    for process, thread in begun:
        process.signal()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_signal_while_the_worker_is_registered_leaves_no_row(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody beats such a row: it would look like a worker that has died."""
    process = Process("default", Options(threads=1, pools=None, drain=False, grace=0))
    register, registered = workers.register, []

    def late(*args: Any, **kwargs: Any) -> Worker:
        process.signal()
        wait_until(lambda: process.clerk.silent)
        registered.append(register(*args, **kwargs))
        return registered[0]

    monkeypatch.setattr(workers, "register", late)
    monkeypatch.setattr(process_module, "HURRY", PATIENCE)
    assert process.run() == 0
    wait_until(lambda: registered)
    assert not Worker.objects.exists()


def test_threads_that_cannot_be_started_lose_no_work(
    in_process: Callable[[], Process], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The hand-over fails five times, after the works were marked as running: all end, and no slot stays taken."""
    Workpool().configure(max_parallelism=2)
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(service, "WAIT_FIRST", 0.05)
    failed = apps.fail_thread_starts(5)
    ids = Workpool().enqueue_many(note, [call(str(number)) for number in range(10)])
    with caplog.at_level(logging.ERROR):
        in_process()
        assert {one.kind for one in results(ids)} == {"success"}
    assert len(failed) == 5
    told = [record.getMessage() for record in caplog.records if "handing over" in record.getMessage()]
    assert told and any(str(one) in told[0] for one in ids)
    assert Event.objects.filter(name="note").count() == 10
    wait_for_quiet()
    Workpool().enqueue_many(nap, [call(0.3)] * 2)
    wait_until(lambda: running() == 2)
    wait_for_quiet()


GONE = {
    "function": "from django_workpool import action\n",
    "module": None,
    "syntax": "def broken(:\n",
    "exit": "import sys\nsys.exit(3)\n",
    "class": "class old:\n    pass\n",
}
OLD = "from django_workpool import action\n\n@action\ndef old() -> None:\n    pass\n"


@pytest.mark.slow
def test_function_that_is_gone_is_held_then_fails(
    main_process: StartMain, settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed, moved, broken since the enqueue: held for the time that is set (4 s here), then failed, and nothing else waits for it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests", "gone_works"], "HOLD": timedelta(seconds=4)}, "imports": {}}
    package = tmp_path / "gone_works"
    package.mkdir()
    (package / "__init__.py").touch()
    gone: dict[str, uuid.UUID] = {}
    good: list[uuid.UUID] = []
    for name in (*GONE, "canceled"):
        (package / f"{name}_.py").write_text(OLD)
        gone[name] = Workpool().using(on_complete=ended).enqueue(f"gone_works.{name}_.old")
        good += Workpool().enqueue_many(note, [call(name)] * 5)
    for name, text in GONE.items():
        (package / f"{name}_.py").unlink()
        if text is not None:
            (package / f"{name}_.py").write_text(text)
    (package / "canceled_.py").unlink()
    environment = {"PYTHONPATH": str(tmp_path), "DJANGO_SETTINGS_MODULE": "tests.works.settings_held", "PYTHONDONTWRITEBYTECODE": "1"}
    main = main_process(env=environment)
    waiting = Work.objects.filter(id__in=gone.values(), held_since__isnull=False)
    held: dict[uuid.UUID, Any] = {}
    # On a machine that has no time the last is held when the first is not any more.
    wait_until(lambda: held.update(waiting.values_list("id", "held_since")) or len(held) == 6)
    canceled = gone.pop("canceled")
    assert Workpool().cancel(canceled)
    assert result(canceled).kind == "canceled"
    for name, ended_work in zip(gone, results(gone.values()), strict=True):
        assert (ended_work.kind, ended_work.attempts) == ("failed", 1)
        assert f"gone_works.{name}_.old" in ended_work.error
        since = held[ended_work.id]
        assert since is not None and 4 <= (ended_work.finished - since).total_seconds() < 8
        assert all(one.finished < ended_work.finished for one in results(good)), "good works ended while these were held"
    wait_for_quiet()
    assert [texts("ended", one) for one in gone.values()] == [["failed:None"]] * 5
    assert main.process.poll() is None
    for name in ("function", "syntax", "exit", "class"):
        sys.modules.pop(f"gone_works.{name}_", None)


def test_sigterm_ends_an_idle_process_at_once(main_process: StartMain) -> None:
    """Exit code 0 within 2 s, whether it leads or not; then one of those that stand by leads within 2 s. Three times."""
    mains = {main.process.pid: main for main in [main_process() for _ in range(4)]}
    for main in mains.values():
        main.wait_for("process_started", PATIENCE)
    for _ in range(3):
        wait_until(lambda: Lead.objects.get().owner is not None)
        leader = Worker.objects.get(process=Lead.objects.get().owner)
        asked = time.monotonic()
        mains[leader.pid].terminate()
        wait_until(lambda leader=leader: Lead.objects.get().owner not in (None, leader.process), poll=0.01)
        assert time.monotonic() - asked < 2 + SLACK
        assert mains[leader.pid].wait(PATIENCE) == 0
        assert time.monotonic() - asked < 2 + SLACK
    # Rows of those that have left are the leader's to delete.
    wait_until(lambda: Worker.objects.count() == 1)


def test_sigterm_while_functions_run(main_process: StartMain) -> None:
    """Grace 1 s: what ends in time succeeds; what cannot be repeated fails as interrupted; the rest goes back uncounted."""
    main = main_process("--grace", "1")
    short, asleep, computing = Workpool().enqueue(nap, 0.5), Workpool().enqueue(nap, 600), Workpool().enqueue(spin)
    wait_until(lambda: running() == 3 and RunningWork.objects.count() == 3)
    main.wait_for("process_started", PATIENCE)
    main.terminate()
    assert main.wait(3 + 1) == 0
    assert result(short).kind == "success"
    assert (result(asleep).kind, result(asleep).error) == ("failed", "interrupted: the worker was stopped")
    work = Work.objects.get()
    assert (work.id, work.attempts, work.returns) == (computing, 0, 1)
    assert PendingStart.objects.get().work_id == computing
    assert left_over() == {"Work": 1, "PendingStart": 1}
    assert Worker.objects.count() == 0


@POSTGRESQL
def test_process_whose_ear_is_cut_off(main_process: StartMain) -> None:
    """The session that listens is terminated: works still start within the poll interval, and it listens again."""
    main = main_process()
    main.wait_for("lead_taken", PATIENCE)
    wait_until(lambda: listener() is not None)
    cut = listener()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [cut])
    ids = Workpool().enqueue_many(note, [call(str(number)) for number in range(10)])
    ended_works = results(ids)
    assert max((one.started - one.created).total_seconds() for one in ended_works if one.started) < 2
    wait_until(lambda: listener() not in (None, cut))
    assert "watch: the database is away" in main.output()
    # Its own worker was never given up.
    assert "worker_lost" not in main.output() and "worker_given_up" not in main.output()


def listener() -> int | None:
    """Return the process id of the session that listens."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'workpool watch' AND datname = current_database()")
        row = cursor.fetchone()
    return int(row[0]) if row else None
