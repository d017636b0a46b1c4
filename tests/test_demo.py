"""The demo as a real command, with ``workpool_main`` as a real process beside it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_workpool.models import Work
from testproject.imports import drain, files, intake
from testproject.imports.bar import Bar
from testproject.imports.drain import Drain, MainProcessFailed
from testproject.imports.models import Import
from testproject.imports.progress import progress, retried

from .conftest import StartMain
from .odd_files import expected, make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "in")


class Stream:
    """Takes what a bar writes."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self.text = ""

    def isatty(self) -> bool:
        return self.live

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_the_bar_fills_on_a_terminal_and_is_silent_elsewhere_at_first() -> None:
    live, plain = Stream(live=True), Stream(live=False)
    for stream in (live, plain):
        with Bar(stream, 4) as bar:  # type: ignore[arg-type]
            bar.show(2)
            bar.show(4)

    assert "#." in live.text
    assert "4/4" in live.text
    assert live.text.endswith("\n")
    assert plain.text == ""


@pytest.fixture
def demo(transactional_db: None, test_database_url: str) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Return a function that runs ``manage.py demo`` on the test database as a user would."""
    manage = Path(__file__).parents[1] / "testproject" / "manage.py"
    environment = {**os.environ, "DATABASE_URL": test_database_url, "DJANGO_SETTINGS_MODULE": "testproject.settings"}

    def run(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(manage), "demo", *arguments],
            env={**environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    return run


@pytest.mark.slow
def test_demo_json_has_the_digest_of_every_file_and_tells_what_failed(
    demo: Callable[..., "subprocess.CompletedProcess[str]"], folder: Path
) -> None:
    # A regular file for stat, an input/output error for read: root cannot read it either.
    (folder / "unreadable").symlink_to("/proc/self/mem")

    ended = demo("--json", str(folder))

    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    wanted = expected(folder)
    assert told["digests"] == wanted
    assert list(told["failures"]) == ["unreadable"]
    assert "Input/output error" in told["failures"]["unreadable"]
    assert (told["files"], told["succeeded"], told["failed"], told["retried"]) == (len(wanted) + 1, len(wanted), 1, 1)
    assert told["bytes"] == sum((folder / path).stat().st_size for path in wanted)
    assert told["seconds"] > 0
    assert told["work_per_second"] > 0
    made = Import.objects.get()
    assert {files.from_text(path) for path in made.files.values_list("path", flat=True)} == {*wanted, "unreadable"}
    assert not Work.objects.exists()


@pytest.mark.slow
def test_demo_prints_a_table(demo: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one").write_text("1\n")
    (tmp_path / "in" / "two ☃").symlink_to("/proc/self/mem")

    ended = demo(str(tmp_path / "in"), env={"PYTHONIOENCODING": "ascii:strict"})

    assert ended.returncode == 0, ended.stderr
    words = [line.split() for line in ended.stdout.splitlines()]
    for name, value in (("files", "2"), ("bytes", "2"), ("succeeded", "1"), ("retried", "1"), ("failed", "1")):
        assert [name, value] in words
    assert {"seconds", "work/s", "database"} <= {line[0] for line in words if line}
    assert "two \\u2603: " in ended.stdout


def test_demo_refuses_what_is_not_a_folder(demo: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    ended = demo("--json", "/no/such/folder")

    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.strip() == "CommandError: There is no folder /no/such/folder."


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "sqlite", reason="the database of a fresh checkout is SQLite")
def test_demo_makes_the_database_of_a_fresh_checkout(demo: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    ended = demo("--json", str(tmp_path / "in"), env={"DATABASE_URL": f"sqlite:///{tmp_path}/fresh.sqlite3"})

    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["files"], told["digests"], told["failures"]) == (0, {}, {})
    assert (tmp_path / "fresh.sqlite3").exists()


def test_a_file_that_vanished_is_tried_three_times_and_has_its_row(main_process: StartMain, folder: Path) -> None:
    made = intake.take_in(str(folder))
    (folder / "empty").unlink()
    gone = {"empty", "link-to-file"}

    assert main_process("--drain").wait(60) == 0

    assert set(made.files.filter(ok=False).values_list("path", flat=True)) == gone
    assert progress(made).succeeded == made.total - 2
    assert retried(made) == 2
    assert all("No such file" in error for error in made.files.filter(ok=False).values_list("error", flat=True))


@pytest.fixture
def main_script(tmp_path: Path, settings: Any) -> Callable[[str], None]:
    """Return a function that puts a script in the place of ``manage.py``."""
    settings.BASE_DIR = tmp_path

    def write(script: str) -> None:
        (tmp_path / "manage.py").write_text(script)

    return write


def test_a_main_process_that_dies_is_told_with_its_last_lines(main_script: Callable[[str], None]) -> None:
    main_script("import sys\nfor number in range(100): print('line', number)\nsys.exit(3)")

    with pytest.raises(MainProcessFailed) as caught, Drain() as started:
        started.watch(lambda: 2, 3, lambda done: None)

    told = str(caught.value)
    assert told.startswith("workpool_main ended with exit code 3.")
    assert "line 99" in told
    assert "line 79" not in told
    assert f" Its output is in {started.log}, at last:" in told
    assert started.log.read_text().endswith("line 99\n")
    started.log.unlink()


@pytest.mark.parametrize("rows", [2, 3])
def test_a_main_process_that_does_nothing_is_ended(main_script: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(drain, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(drain, "END_SECONDS", 0.3)
    main_script("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)")

    with pytest.raises(MainProcessFailed, match="has done nothing for"), Drain() as started:
        started.watch(lambda: rows, 3, lambda done: None)

    assert started.process.returncode is not None
    started.log.unlink()


def test_a_main_process_that_ends_well_leaves_no_log(main_script: Callable[[str], None]) -> None:
    main_script("print('drained')")
    shown: list[int] = []

    with Drain() as started:
        started.watch(lambda: 2, 3, shown.append)

    assert shown == [2]
    assert not started.log.exists()


def test_the_first_blocks_of_the_readme_are_the_demo_and_the_tests() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)

    assert blocks[0].strip().endswith(".venv/bin/python testproject/manage.py demo")
    assert blocks[1].strip().endswith(".venv/bin/python -m tests")
    assert all(len(block.splitlines()) == 1 for block in blocks[:2])
