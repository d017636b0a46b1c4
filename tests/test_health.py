"""Whether it is well, by the rows; and the command in its surroundings."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_workpool import Workpool, call, health, stats
from django_workpool.database import database
from django_workpool.health.reading import Look
from django_workpool.health.watchdog import Watchdog
from django_workpool.loop.fleet import Fleet
from django_workpool.models import Globals, InternalState, Lead, PendingCompletion, PendingStart, Work, Worker
from django_workpool.types import Lane

from .conftest import MANAGE, ROOT
from .live import PATIENCE, wait_until
from .states.driver import Loop
from .states.rows import POOL, S1, S3, S7, USING, given
from .works import tasks

pytestmark = pytest.mark.django_db(transaction=True)

SQLITE = connection.vendor == "sqlite"


# The command's surroundings ---------------------------------------------------------------------------------------------


def run(url: str, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run ``workpool_status`` with its two streams apart."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": url, **options.pop("env", {})}
    command = [sys.executable, str(MANAGE), "workpool_status", *arguments]
    return subprocess.run(command, env=env, cwd=ROOT, text=True, timeout=PATIENCE, check=False, **{"capture_output": True, **options})


@pytest.mark.parametrize("away", ["sqlite:////nowhere/at/all.sqlite3", "postgres://user@127.0.0.1:1/nothing"])
def test_a_database_that_is_away_is_told_in_a_line(away: str) -> None:
    ended = run(away)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("CommandError: The database 'default' cannot be asked: ")
    assert ended.stderr.count("\n") == 1


def test_missing_tables_are_told_with_what_to_do(test_database_url: str, tmp_path: Path) -> None:
    without = {"postgresql": "postgres", "mysql": "mysql"}.get(connection.vendor)
    url = f"sqlite:///{tmp_path}/empty.sqlite3" if SQLITE else re.sub(r"/[^/]*$", f"/{without}", test_database_url)
    ended = run(url, "--json")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "Run: manage.py migrate" in ended.stderr


def test_a_pool_that_there_is_not_is_not_well_either(test_database_url: str) -> None:
    ended = run(test_database_url, "--pool", "nowhere", "--pool", "default")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "CommandError: There is no pool 'nowhere'.\n")


@pytest.mark.slow
def test_terminals_and_pipes_do_not_matter(test_database_url: str) -> None:
    Globals.objects.create(pool="na\u00efve \u4e2d", max_parallelism=1)
    shown = run(test_database_url, env={"PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0", "LC_ALL": "C"})
    assert shown.returncode == 0, shown.stderr
    assert r"na\xefve \u4e2d" in shown.stdout
    reader, writer = os.pipe()
    os.close(reader)
    ended = run(test_database_url, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


# The rows ---------------------------------------------------------------------------------------------------------------


def seen(held: set[int] | None = None) -> dict[str, health.PoolHealth]:
    """Return what a look on this connection finds."""
    return {one.pool: one for one in Look(database(USING), held).pools()}


@pytest.fixture
def loop() -> Loop:
    loop = Loop(limit=2)
    lead_for_a_minute(loop)
    return loop


def lead_for_a_minute(loop: Loop) -> None:
    """Let the loop's owner be the leader that it says it is, by lease or by lock."""
    Worker.objects.filter(id=loop.worker.id).update(process=loop.owner)
    Lead.objects.update(expires_ms=int(loop.db.clock_ms() + 60_000))
    if SQLITE:
        assert database(USING).take_lead_lock()


@pytest.fixture(autouse=True)
def no_lock_is_left() -> Iterator[None]:
    yield
    database(USING).release_lead_lock()


def test_the_number_of_statements_does_not_depend_on_the_number_of_pools(loop: Loop) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            seen()
        texts = [one["sql"].upper().lstrip() for one in captured]
        assert all(text.startswith("SELECT") and "ARGUMENTS" not in text and "FOR UPDATE" not in text for text in texts)
        return len(texts)

    Workpool().enqueue(tasks.note)
    few = statements()
    for number in range(50):
        pool = f"pool-{number}"
        Globals.objects.create(pool=pool, max_parallelism=1)
        InternalState.objects.create(pool=pool)
        work_id = given(S1)
        Work.objects.filter(id=work_id).update(pool=pool)
        PendingStart.objects.filter(work_id=work_id).update(pool=pool)
    assert len(seen()) == 52
    assert statements() == few <= 12


def test_many_pools_with_the_same_fault_are_one_line_of_the_summary(loop: Loop) -> None:
    Worker.objects.update(accepting=False)
    for number in range(12):
        pool = f"pool-{number:02}"
        Globals.objects.create(pool=pool, max_parallelism=1)
        PendingStart.objects.filter(work_id=given(S1)).update(pool=pool)
    found = Look(database(USING), None).health()
    assert len(found.problems) == 12
    (line,) = found.summary
    assert line.startswith("pool-00, pool-01, ") and ", pool-09 and 2 more: no_worker: no live worker" in line


def test_the_figures_are_those_of_the_diagnostics(loop: Loop) -> None:
    Workpool().enqueue_many(tasks.note, [call()] * 5)
    loop.iterate()
    given(S3, worker_id=loop.worker.id)
    Workpool().cancel_all()
    told, found = stats.diagnostics(USING, POOL), seen()[POOL]
    assert (told.waiting, told.running, told.completing, told.canceling) == (3, 3, 1, 1)
    assert (found.waiting, found.running, found.completing, found.canceling) == (3, 3, 1, 1)
    assert (found.max_parallelism, found.due) == (2, 3)


def test_canceled_and_held_works_have_no_lag(loop: Loop) -> None:
    given(S7, due_in=-500)
    given(S1, due_in=-300)
    Work.objects.filter(id=given(S1, due_in=-700)).update(canceled=True)
    Work.objects.filter(id=given(S1, due_in=-600)).update(held_since=loop.db.moment(loop.db.clock_ms()))
    assert 30 <= seen()[POOL].lag_s < 60
    Workpool().cancel_all()
    assert (seen()[POOL].lag_s, seen()[POOL].due) == (0, 4)


def progress(loop: Loop, seconds_ago: float) -> None:
    InternalState.objects.update(last_recovery=loop.db.segment() - int(10 * seconds_ago))


def test_a_loop_that_changes_nothing_has_stalled_and_one_that_does_has_not(loop: Loop) -> None:
    given(S1, due_in=-90)
    progress(loop, 1000)
    assert seen()[POOL].reason == "ok"
    PendingStart.objects.update(segment=loop.db.segment() - 110)
    assert seen()[POOL].reason == "stalled"
    progress(loop, 8)
    assert seen()[POOL].reason == "ok"
    progress(loop, 1000)
    Worker.objects.update(capacity=0)
    assert seen()[POOL].reason == "no_room"
    Worker.objects.update(pools='["imports"]')
    assert seen()[POOL].reason == "no_worker"


def test_ends_that_nobody_takes_in_are_a_fault_in_a_full_pool_too(loop: Loop) -> None:
    for _ in range(2):
        given(S3, worker_id=loop.worker.id)
    given(S1)
    progress(loop, 1000)
    assert seen()[POOL].reason == "full"
    PendingCompletion.objects.update(segment=loop.db.segment() - 110)
    assert seen()[POOL].reason == "stalled"


def test_callback_works_of_a_paused_pool_need_a_worker_all_the_same(loop: Loop) -> None:
    loop.configure(0)
    given(S1)
    assert seen()[POOL].reason == "paused"
    PendingStart.objects.filter(work_id=given(S1)).update(lane=Lane.CALLBACK)
    Worker.objects.update(accepting=False)
    assert seen()[POOL].reason == "no_worker"


def test_a_fault_of_a_moment_is_none(loop: Loop) -> None:
    """A worker takes another one's place."""
    Worker.objects.update(accepting=False)
    Workpool().enqueue(tasks.note)
    assert seen()[POOL].reason == "no_worker"

    def come() -> None:
        Worker.objects.update(accepting=True)
        connection.close()

    threading.Timer(1, come).start()
    assert health.examine(USING).problems == []
    wait_until(lambda: threading.active_count() == 1 or not any(isinstance(one, threading.Timer) for one in threading.enumerate()))


def test_a_worker_that_cannot_be_seen_by_its_lock_is_judged_by_its_beat(loop: Loop) -> None:
    def alive(age: float, held: set[int] | None) -> bool:
        Worker.objects.update(beat=loop.db.moment(loop.db.clock_ms() - 1000 * age))
        (worker,) = Look(database(USING), held).health().workers
        assert worker.lock_held == (None if held is None else worker.id in held)
        return worker.alive

    assert alive(25, None) and not alive(35, None)
    assert alive(3, set()) and not alive(7, set())
    assert alive(1000, {loop.worker.id})


def test_the_watchdog_itself_is_never_a_trouble(caplog: pytest.LogCaptureFixture) -> None:
    dog = Watchdog("nowhere")
    dog.turn(leads=False, fleet=Fleet(), dead=set())
    assert "the watchdog could not look" in caplog.text
