"""The health file: fresh while its process is well, stale when it is not, gone when it has ended in order."""

import json
import logging
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_workpool.runner import probe
from django_workpool.runner.probe import FRESH_FOR, Probe, Pulse, age_of
from django_workpool.runner.process import Options

from .conftest import StartMain
from .live import PATIENCE, wait_until
from .postgres import own_cluster

wired = pytest.mark.skipif("probe" not in Options.__dataclass_fields__, reason="the process does not tell its probe how it is")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "health.json"


@pytest.fixture
def keep(path: Path) -> Iterator[Callable[..., Probe]]:
    """Return a function that makes a probe; at the end all of them end."""
    kept = []

    def make(*args: object) -> Probe:
        kept.append(Probe(path))
        return kept[-1]

    yield make
    for one in kept:
        one.remove()


def tick(one: Probe, *, well: bool = True) -> None:
    one.tick(leads=True, worker=7, well=well, reason="runs" if well else "the loop does not go on", beat_age=0.25)


def ask(path: Path) -> str:
    """Ask as a container's probe does; no test of this module that does so has a database."""
    out = StringIO()
    call_command("workpool_status", health_file=str(path), stdout=out)
    return out.getvalue()


def test_the_file_is_written_whole_and_goes_with_its_process(path: Path, keep: Callable[..., Probe]) -> None:
    one = keep()
    assert not path.exists()
    tick(one)
    wait_until(path.exists)
    told = json.loads(path.read_text())
    assert set(told) == {"time", "host", "pid", "role", "worker", "beat_age_s", "state"}
    assert (told["pid"], told["role"], told["worker"], told["beat_age_s"], told["state"]) == (os.getpid(), "leads", 7, 0.2, "runs")
    assert "is fresh: written" in ask(path)
    one.remove()
    assert list(path.parent.iterdir()) == []
    with pytest.raises(CommandError, match="There is no health file") as raised:
        ask(path)
    assert raised.value.returncode == 1


@pytest.mark.slow
def test_it_is_written_every_two_seconds_however_often_it_is_told(path: Path, keep: Callable[..., Probe]) -> None:
    one, seen = keep(), set()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        tick(one)
        if path.exists():
            seen.add(path.stat().st_mtime_ns)
        time.sleep(0.05)
    assert 2 <= len(seen) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("says_so", [True, False], ids=["not well", "does not go on"])
def test_it_is_not_written_any_more_when_the_process_is_not_well(
    path: Path, keep: Callable[..., Probe], says_so: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe, "TICK_WITHIN", 1.5)
    one = keep()
    tick(one)
    wait_until(path.exists)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        if says_so:
            tick(one, well=False)
        time.sleep(0.05)
    assert (age_of(path) or 0) > 3
    why = "the loop does not go on" if says_so else "the process does not go on"
    assert [record.getMessage() for record in caplog.records] == [f"the health file {path} is not renewed: {why}"]
    os.utime(path, (time.time() - FRESH_FOR - 1,) * 2)
    with pytest.raises(CommandError, match="16 s old") as raised:
        ask(path)
    assert raised.value.returncode == 1
    tick(one)
    wait_until(lambda: (age_of(path) or 99) < 5)


def test_what_an_earlier_process_left_is_removed_and_what_a_later_one_wrote_is_not(path: Path, keep: Callable[..., Probe]) -> None:
    path.write_text("{}")
    one = keep()
    assert not path.exists()
    tick(one)
    wait_until(path.exists)
    other = path.with_name("other")
    other.write_text("{}")
    os.replace(other, path)
    one.remove()
    assert path.read_text() == "{}"


@pytest.mark.slow
def test_trouble_with_the_disk_is_told_once_and_hurts_nobody(
    path: Path, keep: Callable[..., Probe], caplog: pytest.LogCaptureFixture
) -> None:
    one = keep()
    tick(one)
    wait_until(path.exists)
    path.unlink()
    path.mkdir()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        tick(one)
        time.sleep(0.05)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(lines) == 1 and f"the health file {path} is not renewed: " in lines[0]
    path.rmdir()
    tick(one)
    wait_until(path.is_file)
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    assert stat.S_ISREG(path.stat().st_mode)


@pytest.mark.parametrize("place", ["nowhere/health.json", ".", "file/health.json"])
def test_a_path_that_cannot_be_written_is_refused_before_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match=r"^--health-file: "):
        call_command("workpool_main", health_file=str(tmp_path / place))


def test_a_thread_that_does_not_go_on_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "GOES_ON_WITHIN", 0.2)
    pulse = Pulse()
    assert pulse.judge(watch=0, loop=0) == (True, "runs")
    time.sleep(0.3)
    assert pulse.judge(watch=1, loop=0) == (False, "the loop does not go on")
    assert pulse.judge(watch=2, loop=1) == (True, "runs")
    time.sleep(0.3)
    assert pulse.judge(watch=2, loop=2)[1].startswith("the watch does not go on")


@pytest.mark.slow
@wired
@pytest.mark.django_db(transaction=True)
def test_a_process_keeps_its_file_until_its_end(path: Path, main_process: StartMain) -> None:
    main = main_process("--health-file", str(path), "--grace", "0")
    main.wait_for("lead_taken", PATIENCE)
    wait_until(lambda: path.exists() and json.loads(path.read_text())["role"] == "leads")
    assert json.loads(path.read_text())["pid"] == main.process.pid
    written = path.stat().st_mtime_ns
    wait_until(lambda: path.stat().st_mtime_ns > written)
    asked = main_process("--health-file", str(path), command="workpool_status", env={"DATABASE_URL": "postgres://nobody@127.0.0.1:1/x"})
    assert asked.wait(PATIENCE) == 0, asked.output()
    main.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: (age_of(path) or 0) > 4)
    main.process.send_signal(signal.SIGCONT)
    main.terminate()
    assert main.wait(PATIENCE) == 0
    assert not path.exists()


@pytest.mark.slow
@wired
@pytest.mark.django_db(transaction=True)
def test_a_file_grows_old_when_its_process_is_killed(path: Path, main_process: StartMain) -> None:
    main = main_process("--health-file", str(path))
    wait_until(path.exists)
    main.kill()
    wait_until(lambda: (age_of(path) or 0) > 3)
    asked = main_process("--health-file", str(path), command="workpool_status")
    assert asked.wait(PATIENCE) == 0
    os.utime(path, (time.time() - FRESH_FOR - 1,) * 2)
    asked = main_process("--health-file", str(path), command="workpool_status")
    assert asked.wait(PATIENCE) == 1


@pytest.mark.slow
@wired
@pytest.mark.skipif(connection.vendor == "sqlite", reason="a file is never away")
@pytest.mark.once
def test_a_file_grows_old_while_the_database_is_away(path: Path, tmp_path: Path) -> None:
    """It is fresh again when the database is back."""
    with own_cluster() as cluster:
        start = StartMain(cluster.server.url, tmp_path)
        try:
            assert start("--verbosity", "0", command="migrate").wait(PATIENCE) == 0
            main = start("--health-file", str(path), "--grace", "0")
            wait_until(path.exists)
            cluster.stop()
            wait_until(lambda: (age_of(path) or 0) > FRESH_FOR, 60)
            cluster.start()
            wait_until(lambda: (age_of(path) or 99) < 4, 60)
            main.terminate()
            assert main.wait(PATIENCE) == 0, main.output()
        finally:
            for started in start.started:
                started.kill()
