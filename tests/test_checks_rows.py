"""System checks that look at the database: each with what it tells of, and with what it must not tell of."""

import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from django_workpool import Workpool, conf, health
from django_workpool.checks import check_direct, check_health, check_limits, check_migrations
from django_workpool.models import Globals, Worker

from .conftest import MainProcess, StartMain
from .live import PATIENCE, wait_until
from .works.tasks import note

ASKED = {"databases": ["default"]}


def ids(messages: list[CheckMessage]) -> list[str]:
    assert not any(message.is_serious() and message.level < 40 for message in messages)
    return [str(message.id) for message in messages]


# DIRECT -----------------------------------------------------------------------------------------------------------


def aliases(monkeypatch: pytest.MonkeyPatch, settings: Any, **engines: str) -> None:
    """Add aliases of databases that nobody connects to."""
    for alias, engine in engines.items():
        # Django's handler of connections has the same dictionary.
        monkeypatch.setitem(settings.DATABASES, alias, {**connections["default"].settings_dict, "ENGINE": engine})


def test_an_alias_that_leads_past_the_pooler_passes(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    aliases(monkeypatch, settings, direct=connection.settings_dict["ENGINE"])
    settings.WORKPOOLS = {"default": {"DIRECT": "direct"}, "email": {}}
    assert check_direct(None) == []
    settings.WORKPOOLS = {"default": {}}
    assert check_direct(None) == []


def test_an_alias_that_cannot_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    aliases(monkeypatch, settings, other="django.db.backends.dummy", second=connection.settings_dict["ENGINE"])
    wrong = {
        "which is not in DATABASES": {"default": {"DIRECT": "nowhere"}},
        "of another kind than 'default'": {"default": {"DIRECT": "other"}},
        "name one DIRECT alias, not 'other', 'second'": {"default": {"DIRECT": "second"}, "email": {"DIRECT": "other"}},
    }
    for text, pools in wrong.items():
        settings.WORKPOOLS = pools
        (message,) = check_direct(None)
        assert (message.id, text in message.msg) == ("workpool.E002", True), message.msg
    settings.WORKPOOLS = {"default": {"NONSENSE": 1}}
    assert check_direct(None) == [], "that is E001's"


# Limits -----------------------------------------------------------------------------------------------------------


def a_worker(threads: int, **fields: Any) -> Worker:
    values = {
        "process": uuid.uuid4(),
        "host": "host",
        "pid": 1,
        "capacity": threads,
        "async_capacity": 5000,
        "pools": "null",
        "beat": timezone.now(),
        "started": timezone.now(),
    } | fields
    return Worker.objects.create(**values)


@pytest.mark.django_db
def test_a_limit_far_above_what_the_workers_can_run_is_told_of() -> None:
    Workpool("imports").configure(max_parallelism=500)
    assert check_limits(None, **ASKED) == [], "nobody runs: that is another matter"
    a_worker(10)
    a_worker(10, pools='["default"]')
    a_worker(100, accepting=False)
    (message,) = check_limits(None, **ASKED)
    assert (message.id, message.is_serious()) == ("workpool.W004", False)
    assert message.msg.endswith("so it limits nothing: imports (500 against 10).")
    Workpool("imports").configure(max_parallelism=40)
    assert check_limits(None, **ASKED) == []
    Workpool("imports").configure(max_parallelism=0)
    assert check_limits(None, **ASKED) == []


@pytest.mark.django_db
def test_the_default_limit_is_nobodys_mistake() -> None:
    a_worker(1)
    Workpool("imports").configure(max_parallelism=conf.DEFAULT_MAX_PARALLELISM)
    assert check_limits(None, **ASKED) == []


def test_coroutines_count_where_there_are_such_functions(main_process: StartMain) -> None:
    """A real worker: 5,000 coroutines beside its threads."""
    Workpool().configure(max_parallelism=5000)
    main_process("--threads", "2").wait_for("lead_taken", PATIENCE)
    wait_until(lambda: Worker.objects.exclude(function_set="").exists())
    assert check_limits(None, **ASKED) == []
    Workpool().configure(max_parallelism=100_000)
    (message,) = check_limits(None, **ASKED)
    assert "default (100000 against 5002)" in message.msg


# Migrations -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_tables_of_this_version_pass() -> None:
    assert check_migrations(None, **ASKED) == []


@pytest.mark.django_db
@pytest.mark.parametrize("left", [0, 1])
def test_tables_that_are_missing_or_behind_are_told_of(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = MigrationRecorder(connection)
    names = sorted(name for app, name in recorder.applied_migrations() if app == "workpool")
    for name in names[left:]:
        recorder.record_unapplied("workpool", name)
    (message,) = check_migrations(None, **ASKED)
    assert (message.id, message.is_serious()) == ("workpool.W005", False)
    assert message.msg.endswith(f"not applied: {', '.join(names[left:])}.")
    assert message.hint == "Run: manage.py migrate workpool --database default"
    monkeypatch.setattr(sys, "argv", ["manage.py", "migrate"])
    assert check_migrations(None, **ASKED) == [], "that is what it is about to do"


@pytest.fixture
def fresh(settings: Any, tmp_path: Path, main_process: StartMain) -> Any:
    """Return a function that runs a command of the project on a database without any table, and returns its exit code and output."""
    if connection.vendor != "sqlite":
        pytest.skip("SQLite only: a new database is a new file")
    url = f"sqlite:///{tmp_path}/fresh.sqlite3"

    def run(command: str, *arguments: str) -> tuple[int, str]:
        done: MainProcess = main_process(*arguments, command=command, env={"DATABASE_URL": url})
        return done.wait(PATIENCE), done.output()

    return run


@pytest.mark.slow
def test_a_fresh_project_is_told_nothing_before_and_in_its_first_migrate_and_all_that_is_missing_after(fresh: Any) -> None:
    """A project that adds the app later is told once Django's own tables are there."""
    for command in (("check",), ("check", "--database", "default"), ("migrate", "contenttypes", "--verbosity", "0")):
        assert fresh(*command) == (0, "System check identified no issues (0 silenced).\n" if command[0] == "check" else ""), command
    code, output = fresh("check", "--database", "default")
    assert code == 0 and "workpool.W005" in output and "0001_initial, 0002_workers" in output
    assert fresh("migrate", "--verbosity", "0") == (0, "")
    assert fresh("check", "--database", "default") == (0, "System check identified no issues (0 silenced).\n")


@pytest.mark.django_db(transaction=True)
def test_checks_of_rows_stay_silent_where_the_tables_are_missing() -> None:
    with connection.schema_editor() as editor:
        editor.alter_db_table(Worker, "workpool_worker", "not_there")
    try:
        assert check_limits(None, **ASKED) == check_health(None, **ASKED) == []
        with transaction.atomic():
            assert check_limits(None, **ASKED) == []
            assert Globals.objects.exists(), "the transaction goes on"
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Worker, "not_there", "workpool_worker")


# Nobody serves ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_each_fault_has_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "AGAIN_AFTER", 0.0)
    assert check_health(None, **ASKED) == []
    Workpool().enqueue(note)
    assert ids(check_health(None, **ASKED)) == ["workpool.W006"]
    faults = {health.Reason.STALLED: "default: stalled", health.Reason.NO_WORKER: "email: no_worker", health.Reason.NO_LEADER: "no_leader"}
    monkeypatch.setattr(health.Health, "faults", faults)
    assert ids(check_health(None, **ASKED)) == ["workpool.W003", "workpool.W006", "workpool.W003"]
