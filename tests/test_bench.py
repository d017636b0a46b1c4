"""The bench as a real command, in a database of its own beside the tests' one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection

from testproject.bench.management.commands.bench import median
from testproject.bench.measure import Figures, Stamp, execution_problems, milliseconds
from testproject.bench.worker import Setup, Workers

MANAGE = Path(__file__).parents[1] / "testproject" / "manage.py"
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "testproject.settings"}
SECONDS = 60
#: Runs the command after a change to what it reads: {change} is a function of the list of stamps.
CHANGED = """
import sys
import django
django.setup()
from testproject.bench import measure
from django.core.management import execute_from_command_line
read = measure.read_stamps
measure.read_stamps = lambda path: (lambda stamps: {change})(read(path))
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


def bench(url: str, *arguments: str, change: str = "") -> "subprocess.CompletedProcess[str]":
    start = ["-c", CHANGED.format(change=change)] if change else [str(MANAGE)]
    return subprocess.run(
        [sys.executable, *start, "bench", *arguments],
        env={**os.environ, **ENVIRONMENT, "DATABASE_URL": url},
        cwd=MANAGE.parents[1],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def databases() -> set[str]:
    if connection.vendor == "sqlite":
        return set()
    names = "SELECT schema_name FROM information_schema.schemata" if connection.vendor == "mysql" else "SELECT datname FROM pg_database"
    with connection.cursor() as cursor:
        cursor.execute(names)
        return {name for (name,) in cursor.fetchall() if name.startswith("bench_")}


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.slow
@pytest.mark.django_db
def test_cases_run_and_their_results_are_right(test_database_url: str) -> None:
    before = databases()

    ran = bench(test_database_url, "enqueue", "drain", "drain_insert", "drain_callback", "limit10", "--n", "50", "--threads", "8", "--json")

    assert (ran.returncode, ran.stderr) == (0, "")
    told = lines(ran.stdout)
    assert [one["case"] for one in told] == ["enqueue", "drain", "drain_insert", "drain_callback", "limit10"]
    assert [(one["ok"], one["problems"], one["n"]) for one in told] == [(True, [], 50)] * 5
    assert told[0]["per_s"] > 0
    assert all(one["per_s_from_first"] >= one["per_s_ended"] > 0 for one in told[1:])
    # Fifty works may have ended between two samples.
    assert 0 <= told[4]["most_running"] <= 10
    assert databases() == before, "the bench has dropped its own database"


@pytest.mark.slow
@pytest.mark.django_db
def test_a_wrong_result_is_told_and_fails_the_command(test_database_url: str) -> None:
    """One execution is made to look lost, another one doubled."""
    before = databases()

    ran = bench(test_database_url, "drain", "--n", "20", "--threads", "8", change="stamps[:1] + stamps[:-1]")

    assert ran.returncode == 1
    assert "WRONG: too few executions: of 1 works" in ran.stdout
    assert "WRONG: too many executions: of 1 works" in ran.stdout
    assert "wrong: drain" in ran.stderr
    assert databases() == before


@pytest.mark.slow
@pytest.mark.django_db
def test_an_interrupt_leaves_nothing_behind(test_database_url: str, wait_until: Callable[..., None], tmp_path: Path) -> None:
    before = databases()
    command = [sys.executable, str(MANAGE), "bench", "latency", "--n", "1000"]
    environment = {**os.environ, **ENVIRONMENT, "DATABASE_URL": test_database_url, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            started = psutil.Process(process.pid)
            wait_until(started.children, SECONDS)
            workers = started.children()
            process.send_signal(signal.SIGINT)

            assert process.wait(SECONDS) == 128 + signal.SIGINT
        finally:
            process.kill()

    assert [worker for worker in workers if worker.is_running()] == []
    assert databases() == before
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_a_worker_is_being_started_leaves_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It comes when the child is there, and the object for it is not yet."""
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("testproject.bench.worker.subprocess.Popen", Interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), Workers(Setup(), "none", tmp_path):
            pytest.fail("the interrupt was lost")
        assert started[0].poll() is not None
    finally:
        started[0].kill()
        started[0].wait()


def test_the_median_is_told_of_figures_that_are_numbers() -> None:
    told: list[Figures] = [{"rate": rate, "memory": None} for rate in (3, 1, 2)]

    assert median(told) == {"rate": 2, "memory": None}


def test_executions_are_held_against_the_works() -> None:
    right = [Stamp(number, 0.0) for number in (2, 0, 1)]

    assert execution_problems(right, 3) == []
    assert execution_problems(right[1:], 3) == ["too few executions: of 1 works"]
    assert execution_problems([*right, *right[:2]], 3) == ["too many executions: of 2 works"]
    assert execution_problems([*right, Stamp(3, 0.0)], 3) == ["executions that nobody asked for: of 1 works"]
    assert execution_problems(right, 3, runs=2) == ["too few executions: of 3 works"]


def test_percentiles_are_values_that_were_measured() -> None:
    assert milliseconds([number / 1000 for number in range(1, 101)]) == {"p50_ms": 50.0, "p95_ms": 95.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert milliseconds([0.25]) == {"p50_ms": 250.0, "p95_ms": 250.0, "p99_ms": 250.0, "max_ms": 250.0}
    assert milliseconds([])["max_ms"] is None
