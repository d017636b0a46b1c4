"""SQLite's database is a file: it has other names, it may be replaced, and functions change the directory in which a name is looked up."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.db import connection

from django_workpool import Workpool
from django_workpool.database import Database
from django_workpool.database.files import database_file, lock_path
from django_workpool.models import Lead, Worker

from .conftest import StartMain
from .live import PATIENCE, value, wait_until
from .works.tasks import note

pytestmark = pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite only")


def named(name: str | Path) -> Database:
    """Return as much of a database as says where its file is."""
    return cast(Database, SimpleNamespace(connection=SimpleNamespace(settings_dict={"NAME": name})))


def test_locks_are_beside_the_file_itself(tmp_path: Path) -> None:
    """By a link to it, by one to its folder, and by the address of a file, the locks are the same ones."""
    (tmp_path / "data").mkdir()
    file, link, folder = tmp_path / "data" / "db.sqlite3", tmp_path / "link.sqlite3", tmp_path / "folder"
    file.touch()
    link.symlink_to(file)
    folder.symlink_to(tmp_path / "data")
    names: list[Any] = [file, link, str(link), folder / "db.sqlite3", f"file:{link}?cache=private"]
    assert {lock_path(named(name), "lead") for name in names} == {f"{file.resolve()}-workpool-lead"}
    assert [lock_path(named(name), "lead") for name in (":memory:", "file:one?mode=memory&cache=shared")] == [None, None]


def test_a_function_that_changes_the_directory_moves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a relative name means is decided when it is first asked for."""
    monkeypatch.chdir(tmp_path)
    before = lock_path(named("relative.sqlite3"), "worker-"), database_file(named("relative.sqlite3"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (lock_path(named("relative.sqlite3"), "worker-"), database_file(named("relative.sqlite3"))) == before
    assert before == (f"{tmp_path.resolve()}/relative.sqlite3-workpool-worker-", f"{tmp_path}/relative.sqlite3")


@pytest.mark.slow
def test_processes_that_come_by_different_names_have_one_leader(main_process: StartMain, tmp_path: Path) -> None:
    """Two leaders, of which each takes the other for dead, would fail what runs in the other."""
    first = main_process()
    first.wait_for("lead_taken", PATIENCE)
    link = tmp_path / "link.sqlite3"
    link.symlink_to(connection.settings_dict["NAME"])
    second = main_process(env={"DATABASE_URL": f"sqlite:///{link}"})
    second.wait_for("process_started", PATIENCE)
    wait_until(lambda: Worker.objects.count() == 2)
    assert [value(Workpool().enqueue(note, key)) for key in "abc"] == ["a", "b", "c"]
    assert "lead_taken" not in second.output()
    assert "lead_lost" not in first.output()
    assert Lead.objects.get().term == 1
    first.terminate()
    assert first.wait(PATIENCE) == 0
    second.wait_for("lead_taken", PATIENCE)
    assert value(Workpool().enqueue(note, "d")) == "d"


@pytest.fixture
def copy(transactional_db: None, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the test database: its own stays where it is."""
    path = tmp_path / "copy.sqlite3"
    vacuum_into(path)
    yield path


def vacuum_into(path: Path) -> None:
    """Write a copy of the test database."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(path)])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_process_ends_when_its_file_is(copy: Path, tmp_path: Path, how: str) -> None:
    """It would go on for ever with a file that nobody sees any more, and its lock would keep all others from the new one."""
    start = StartMain(f"sqlite:///{copy}", tmp_path)
    try:
        first = start()
        first.wait_for("lead_taken", PATIENCE)
        os.remove(copy)
        if how == "replaced":
            vacuum_into(tmp_path / "new.sqlite3")
            os.rename(tmp_path / "new.sqlite3", copy)
        assert first.wait(PATIENCE) == 1
        assert f"the file {copy} was replaced or removed" in first.output()
        assert "Traceback" not in first.output()
        if how == "replaced":
            second = start()
            second.wait_for("lead_taken", PATIENCE)
            second.terminate()
            assert second.wait(PATIENCE) == 0
    finally:
        for started in start.started:
            started.kill()
