"""Periodic works in real processes: a tick each second while the leader is killed, and a leader without the library."""

import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from django.db import connection

from django_workpool import Workpool
from django_workpool.models import Archive, Periodic
from django_workpool.periodic import schedule

from .conftest import StartMain
from .live import PATIENCE, wait_until
from .works.tasks import note

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_second_is_enqueued_once_while_the_leader_is_killed(test_database_url: str) -> None:
    """The short form of ``python -m tests.checks.periodic``, in a database of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.checks.periodic", "--database", connection.vendor, "--seconds", "10", "--kills", "1"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": test_database_url},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " twice=0 missing=0 " in done.stdout


@pytest.mark.slow
def test_a_tick_comes_soon_after_its_second_in_an_idle_pool(main_process: StartMain) -> None:
    """The loop wakes for it by itself: no look of once a second is needed, whose times would lie anywhere in the second."""
    main = main_process()
    main.wait_for("process_started", PATIENCE)
    schedule("tick", note, cron="* * * * * *", args=["x"])
    wait_until(lambda: Archive.objects.count() >= 6)
    late = sorted(
        (created - datetime.fromisoformat(name.partition(" @ ")[2])).total_seconds()
        for name, created in Archive.objects.values_list("name", "created")
    )
    assert late[0] >= 0
    # The machine may be busy with others now and then.
    assert late[2] < 0.4


def test_a_process_without_the_library_works_on(main_process: StartMain, tmp_path: Path) -> None:
    """It says what is missing, once, and runs everything else."""
    (tmp_path / "cronsim.py").write_text("raise ImportError('not here')\n")
    schedule("tick", note, cron="* * * * * *", args=["tick"])
    main = main_process(env={"PYTHONPATH": str(tmp_path)})
    main.wait_for("event=periodic_failed", PATIENCE)
    work_id = Workpool().enqueue(note, "other")
    wait_until(lambda: Archive.objects.filter(id=work_id, kind="success").exists())
    assert main.output().count("event=periodic_failed") == 1
    assert Archive.objects.count() == 1
    assert (Periodic.objects.get().error, Periodic.objects.get().next_ms) == ("", None)
