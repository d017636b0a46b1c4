"""Whether it is well, with real processes: each reason comes about, and the command, the check and the events tell it."""

import json
import signal
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from django_workpool import Workpool, call, health
from django_workpool.checks import check_health
from django_workpool.database import database
from django_workpool.models import InternalState, Lead, RunningWork, Work

from .conftest import MainProcess, StartMain
from .live import PATIENCE, result, wait_until
from .states.rows import POOL, S1, USING, given
from .works import tasks

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

SQLITE = connection.vendor == "sqlite"
KEYS = {"well", "problems", "pools", "leader", "workers", "count_max"}
POOL_KEYS = {
    *("pool", "reason", "well", "advice", "lag_s", "due", "waiting", "running", "completing", "canceling", "max_parallelism", "held"),
}
LEADER_KEYS = {"present", "absent_s", "expected", "worker", "host", "pid", "term", "lease_expires_in_s"}
WORKER_KEYS = {
    *("id", "host", "pid", "pools", "capacity", "async_capacity", "running", "accepting", "left", "beat_age_s", "lock_held", "alive"),
}


def state(pool: str = POOL) -> health.PoolHealth:
    """Return what one look finds."""
    return next(one for one in health.look(USING).pools if one.pool == pool)


def reason(pool: str = POOL) -> str:
    return state(pool).reason


def told(main: MainProcess, code: int) -> Any:
    """Return the JSON object that a started command has printed."""
    assert main.wait(PATIENCE) == code, main.output()
    return json.JSONDecoder().raw_decode(main.output())[0]


@pytest.fixture
def status(main_process: StartMain) -> Callable[..., MainProcess]:
    """Return a function that starts ``workpool_status``."""
    return lambda *arguments, **options: main_process(*arguments, command="workpool_status", **options)


@pytest.fixture
def main(main_process: StartMain) -> MainProcess:
    started = main_process("--threads", "2", "--grace", "0")
    started.wait_for("lead_taken", PATIENCE)
    return started


def test_all_is_well_while_a_process_leads_and_the_command_says_so(main: MainProcess, status: Callable[..., MainProcess]) -> None:
    wait_until(lambda: health.look(USING).leader.present)
    shown = told(status("--json"), 0)
    assert set(shown) == KEYS
    assert (shown["well"], shown["problems"]) == (True, [])
    assert {one["pool"]: one["reason"] for one in shown["pools"]} == {"default": "ok", "imports": "ok"}
    assert [set(one) for one in shown["pools"]] == [POOL_KEYS] * 2
    assert set(shown["leader"]) == LEADER_KEYS
    assert shown["leader"]["present"] and shown["leader"]["pid"] == main.process.pid
    (worker,) = shown["workers"]
    assert set(worker) == WORKER_KEYS
    assert (worker["pid"], worker["alive"], worker["lock_held"]) == (main.process.pid, True, True)
    assert (worker["capacity"], worker["accepting"], worker["left"]) == (2, True, False)
    table = status("--pool", "imports")
    assert table.wait(PATIENCE) == 0
    assert "imports" in table.output() and "default" not in table.output() and f":{main.process.pid}" in table.output()
    assert "all is well" in table.output()


@pytest.mark.slow
def test_states_that_a_pool_may_be_in_are_no_faults(main: MainProcess, tmp_path: Path, status: Callable[..., MainProcess]) -> None:
    pool = Workpool()
    pool.configure(max_parallelism=1)
    pool.enqueue(tasks.hold, str(tmp_path), "first")
    wait_until((tmp_path / "begun-first").exists)
    pool.enqueue(tasks.note, "second")
    assert (reason(), state().running, state().due) == ("full", 1, 1)
    pool.configure(max_parallelism=3)
    pool.enqueue_many(tasks.hold, [call(str(tmp_path), "second"), call(str(tmp_path), "third")])
    wait_until(lambda: RunningWork.objects.count() == 2)
    wait_until(lambda: reason() == "no_room")
    pool.configure(max_parallelism=0)
    wait_until(lambda: reason() == "paused")
    shown = told(status("--json"), 0)
    assert {one["pool"]: one["reason"] for one in shown["pools"]} == {"default": "paused", "imports": "ok"}
    assert shown["pools"][0]["lag_s"] > 0
    pool.configure(max_parallelism=3)
    (tmp_path / "go").touch()
    wait_until(lambda: not Work.objects.exists())
    assert reason() == "ok"


def test_functions_that_nobody_knows_are_named_with_their_time(main: MainProcess, status: Callable[..., MainProcess]) -> None:
    for number in range(12):
        given(S1, func=f"tests.works.tasks.gone_{number:02}")
    wait_until(lambda: Work.objects.filter(held_since__isnull=False).count() == 12)
    wait_until(lambda: reason() == "held")
    held = state().held
    assert held is not None
    assert (held.works, held.paths) == (12, tuple(f"tests.works.tasks.gone_{number:02}" for number in range(10)))
    assert (held.until - held.since).total_seconds() == 600
    table = status()
    assert table.wait(PATIENCE) == 0
    assert "12 held since" in table.output() and "tests.works.tasks.gone_00" in table.output()
    assert "start a workpool_main with their code" in table.output()


@pytest.mark.slow
def test_a_pool_that_no_worker_serves_is_a_fault_and_the_check_warns(
    main_process: StartMain, status: Callable[..., MainProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.examine(USING).problems == []
    Workpool().enqueue(tasks.note)
    # Nobody has ever been there.
    assert reason() == "no_worker"
    main_process("--pool", "imports").wait_for("lead_taken", PATIENCE)
    wait_until(lambda: health.look(USING).leader.present)
    assert reason() == "no_worker"
    shown = told(status("--json"), 1)
    assert shown["well"] is False
    assert [line.partition(": start")[0] for line in shown["problems"]] == ["pool default: no_worker: no live worker serves it"]
    (message,) = check_health(None, databases=["default"])
    assert (message.id, message.is_serious()) == ("workpool.W006", False)
    assert "The work pool is not well: default: no_worker: " in message.msg
    assert check_health(None) == check_health(None, databases=["other"]) == []
    call_command("check", databases=["default"])
    assert "workpool.W006" in capsys.readouterr().err
    call_command("check")
    assert "workpool.W00" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_leader_is_a_fault_with_due_work_and_without(main: MainProcess, status: Callable[..., MainProcess]) -> None:
    wait_until(lambda: health.look(USING).leader.present)
    main.kill()
    wait_until(lambda: health.look(USING).leader.is_missing)
    assert health.examine(USING).problems == ["no_leader: no process leads: start workpool_main, or read the logs of those that run"]
    Workpool().enqueue(tasks.note)
    shown = told(status("--json"), 1)
    assert {one["pool"]: one["reason"] for one in shown["pools"]} == {"default": "no_leader", "imports": "ok"}
    assert (shown["leader"]["present"], shown["leader"]["pid"]) == (False, main.process.pid)
    wait_until(lambda: not any(one.alive for one in health.look(USING).workers))


def test_an_orderly_end_without_due_work_is_well(main: MainProcess) -> None:
    main.terminate()
    assert main.wait(PATIENCE) == 0
    assert health.examine(USING).problems == []


@pytest.mark.slow
def test_a_stopped_leader_is_a_fault(main: MainProcess) -> None:
    """Where the lead is a lease, it is over; where it is a lock, the leader holds it, and places nothing."""
    wait_until(lambda: health.look(USING).leader.present)
    # Not after the stop: that may come inside a write, which blocks all writers where there is one.
    Workpool().using(delay=timedelta(seconds=3)).enqueue(tasks.note)
    main.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state().lag_s > 16)
    found = health.examine(USING)
    assert [one.reason for one in found.pools if one.reason.is_fault] == ["stalled" if SQLITE else "no_leader"]
    main.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not Work.objects.exists())
    wait_until(lambda: health.look(USING).problems == [])


@pytest.mark.slow
def test_a_loop_that_places_nothing_says_so_itself(main: MainProcess, status: Callable[..., MainProcess]) -> None:
    """Somebody holds what each iteration must take."""
    wait_until(lambda: health.look(USING).leader.present)
    work_id = Workpool("imports").using(delay=timedelta(seconds=3)).enqueue(tasks.note, "late")
    with transaction.atomic():
        list(InternalState.objects.select_for_update().filter(pool="imports"))
        main.wait_for("event=stalled pool=imports lag_s=", 60)
        found = health.examine(USING)
        assert [one.pool for one in found.pools if one.reason == "stalled"] == ["imports"]
        shown = told(status("--json", "--pool", "imports"), 1)
        assert [one["reason"] for one in shown["pools"]] == ["stalled"]
        assert shown["pools"][0]["lag_s"] > 10
    assert result(work_id).kind == "success"
    assert health.examine(USING).problems == []
    assert main.output().count("event=stalled") == 1


@pytest.mark.slow
def test_who_cannot_take_a_lead_that_nobody_has_says_so(main_process: StartMain) -> None:
    if SQLITE:
        # A lock without a holder that lives: a descriptor that a dead leader's child has kept.
        assert database(USING).take_lead_lock()
    try:
        with transaction.atomic() if not SQLITE else nullcontext():
            list(Lead.objects.select_for_update().all() if not SQLITE else ())
            main = main_process()
            main.wait_for("event=no_leader pool=* since_s=", 60)
            assert any("no_leader" in problem for problem in health.examine(USING).problems)
    finally:
        database(USING).release_lead_lock()
    main.wait_for("lead_taken", PATIENCE)
    wait_until(lambda: health.look(USING).problems == [])
