"""Two pools in two databases, run by one process."""

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import override_settings

from django_workpool import RetryBehavior, Workpool, call
from django_workpool.models import Archive, Globals, InternalState, Lead, PendingStart, RunningWork, Work, Worker
from django_workpool.runner.probe import FRESH_FOR

from .conftest import MainProcess, StartMain
from .live import PATIENCE, wait_until
from .second import SECOND, second_database
from .spans import tracing_here
from .works import databases, tasks
from .works.models import Counter, Event
from .works.traces import TRACES_VARIABLE, traced_mutation

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.works.settings_databases"}
WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}, "far": {"DATABASE": SECOND}}
ROUTERS = ["django_workpool.routers.WorkpoolRouter"]
pytestmark = pytest.mark.usefixtures("transactional_db")
HOME = {"default": "default", "far": SECOND}
SOON = RetryBehavior(max_attempts=5, initial_backoff=timedelta(milliseconds=50))

KINDS = ["same"] if connection.vendor == "sqlite" else ["same", "sqlite"]


@dataclass
class Two:
    """Two databases, and a way to start processes on them."""

    start: StartMain
    url: str
    #: What runs beside the tests, unless one of them has stopped it.
    main: MainProcess | None = None

    def begin(self, *arguments: str, **env: str) -> MainProcess:
        """Start a ``workpool_main`` and wait until it serves."""
        main = self.start(*arguments, env={**SETTINGS, "SECOND_DATABASE_URL": self.url, **env})
        wait_until(lambda: main.output().count("event=lead_taken") == 2 or main.process.poll() is not None)
        assert main.process.poll() is None, main.output()
        return main

    def command(self, *arguments: str, **env: str) -> MainProcess:
        """Start another command."""
        return self.start(*arguments[1:], command=arguments[0], env={**SETTINGS, "SECOND_DATABASE_URL": self.url, **env})

    def halt(self) -> None:
        """Stop what runs beside the tests."""
        if self.main is not None:
            self.main.terminate()
            assert self.main.wait(PATIENCE) == 0, self.main.output()
            self.main = None


@pytest.fixture(scope="module", params=KINDS)
def two(
    request: pytest.FixtureRequest, django_db_blocker: Any, test_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Two]:
    assert "test" in str(connection.settings_dict["NAME"]), "only a test database may be emptied"
    start = StartMain(test_database_url, tmp_path_factory.mktemp("two"))
    with django_db_blocker.unblock(), second_database(test_database_url, request.param) as url:
        with override_settings(WORKPOOLS=WORKPOOLS, DATABASE_ROUTERS=ROUTERS):
            two = Two(start, url)
            try:
                migrated = two.command("migrate", "--run-syncdb", "--database", SECOND, "--verbosity", "0")
                assert migrated.wait(PATIENCE) == 0, migrated.output()
                yield two
                two.halt()
            finally:
                for started in start.started:
                    started.kill()
                call_command("flush", interactive=False, verbosity=0)
                connection.close()
        call_command("flush", interactive=False, verbosity=0)
        connection.close()


@pytest.fixture
def transactional_db(two: Two) -> None:
    """Stand in for pytest-django's fixture: it empties tables under the feet of the process that runs."""


@pytest.fixture
def main(two: Two) -> MainProcess:
    """The process that runs beside the tests."""
    if two.main is None or two.main.process.poll() is not None:
        two.main = two.begin("--threads", "4", "--grace", "5")
    return two.main


@pytest.fixture
def alone(two: Two) -> Iterator[Two]:
    """Nothing runs but what the test starts, and nothing of other tests is left."""
    two.halt()
    for alias in HOME.values():
        call_command("flush", interactive=False, verbosity=0, database=alias)
    yield two
    for started in two.start.started:
        started.kill()


def ended(pool: str, work_id: uuid.UUID) -> Archive:
    """Wait until a work has ended; what it leaves is in its pool's database, and nowhere else."""
    archives = {alias: Archive.objects.using(alias).filter(id=work_id) for alias in HOME.values()}
    wait_until(lambda: any(archive.exists() for archive in archives.values()))
    assert [alias for alias, archive in archives.items() if archive.exists()] == [HOME[pool]]
    return archives[HOME[pool]].get()


def counted(alias: str, name: str) -> int:
    return sum(Counter.objects.using(alias).filter(name=name).values_list("value", flat=True))


def test_each_database_has_the_rows_of_its_pools(two: Two) -> None:
    for model in (Globals, InternalState):
        assert list(model._default_manager.using(SECOND).values_list("pool", flat=True)) == ["far"]
    assert Lead.objects.using(SECOND).count() == 1
    assert "far" not in Globals.objects.using("default").values_list("pool", flat=True)


@pytest.mark.parametrize("pool", HOME)
def test_works_of_each_kind_run_in_the_database_of_their_pool(main: MainProcess, pool: str, request: Any) -> None:
    alias, name = HOME[pool], f"kinds {request.node.name}"
    options = {"on_complete": databases.counted_in, "on_complete_context": {"alias": alias, "name": name}}
    work_id = Workpool(pool).using(**options).enqueue(databases.count_in, alias, name)  # type: ignore[arg-type]
    assert Workpool(pool).status(work_id).state in ("pending", "running", "finished")
    assert (ended(pool, work_id).kind, counted(alias, name), counted(alias, f"{name}:success")) == ("success", 1, 1)
    status = Workpool(pool).status(work_id)
    assert status.result is not None and status.result.value == alias
    other = Workpool("far" if pool == "default" else "default")
    assert other.status(work_id).result is None and not other.cancel(work_id)
    for func in (databases.read_in, databases.read_outside):
        assert ended(pool, Workpool(pool).enqueue(func, alias, name)).value == "1"
    assert ended(pool, Workpool(pool).enqueue(databases.acount_in, alias, name)).kind == "success"
    assert counted(alias, name) == 2
    failed = Workpool(pool).using(**options).enqueue(databases.count_in, alias, name, fails=True)  # type: ignore[arg-type]
    assert (ended(pool, failed).kind, counted(alias, name), counted(alias, f"{name}:failed")) == ("failed", 2, 1)
    retried = Workpool(pool).using(retry=SOON).enqueue(tasks.fail_once, name)
    assert (ended(pool, retried).kind, ended(pool, retried).attempts) == ("success", 2)
    assert other.status(retried).result is None


def test_many_at_once_in_both(main: MainProcess) -> None:
    ids = {pool: Workpool(pool).enqueue_many(databases.count_in, [call(alias, "many")] * 150) for pool, alias in HOME.items()}
    for pool, alias in HOME.items():
        wait_until(lambda: Archive.objects.using(alias).filter(id__in=ids[pool], kind="success").count() == 150)  # noqa: B023
        assert counted(alias, "many") == 150
        assert set(Workpool(pool).status_many(ids[pool])) == set(ids[pool])
        wait_until(lambda: not RunningWork.objects.using(alias).exists())  # noqa: B023


def test_works_of_both_run_at_the_same_time_each_up_to_its_threads(main: MainProcess, tmp_path: Path) -> None:
    ids = {pool: Workpool(pool).enqueue_many(tasks.hold, [call(str(tmp_path), f"{pool}{n}") for n in range(5)]) for pool in HOME}
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 8)
    assert {alias: RunningWork.objects.using(alias).count() for alias in HOME.values()} == {"default": 4, SECOND: 4}
    (tmp_path / "go").touch()
    for pool, some in ids.items():
        assert {ended(pool, one).kind for one in some} == {"success"}


def test_a_pool_is_configured_and_canceled_while_it_runs(main: MainProcess, request: Any) -> None:
    far = Workpool("far")
    far.configure(max_parallelism=0)
    assert list(Globals.objects.using(SECOND).values_list("pool", "max_parallelism")) == [("far", 0)]
    one, two, *more = far.enqueue_many(tasks.note, [call(f"paused {n}") for n in range(5)])
    # The other pool goes on, by the same process.
    assert ended("default", Workpool().enqueue(tasks.note, "meanwhile")).kind == "success"
    assert Work.objects.using(SECOND).count() == 5 and far.status(one).state == "pending"
    assert far.cancel(one) and not far.cancel(one)
    assert ended("far", one).kind == "canceled"
    far.configure(max_parallelism=10, log_level="ERROR")
    assert ended("far", two).kind == "success"
    assert {ended("far", other).kind for other in more} == {"success"}
    far.configure(max_parallelism=0)
    ids = far.enqueue_many(tasks.note, [call()] * 100)
    far.cancel_all()
    wait_until(lambda: Archive.objects.using(SECOND).filter(id__in=ids, kind="canceled").count() == 100)
    far.configure(max_parallelism=10)
    assert Globals.objects.using("default").get(pool="default").max_parallelism == 10
    before = main.output().count("event=started pool=far")
    far.configure(log_level="INFO")
    # The level of a pool is read with the pulse of its own database, and told of by none but its own.
    wait_until(lambda: far.enqueue(tasks.note) and main.output().count("event=started pool=far") > before, poll=0.3)
    assert "event=started pool=default" not in main.output()
    far.configure(log_level="REPORT")


def test_a_transaction_of_another_database_does_not_hold_an_enqueue_back(main: MainProcess) -> None:
    """The enqueue is atomic with what its pool's own database gets, and with nothing else."""
    with pytest.raises(ZeroDivisionError), transaction.atomic(using="default"):
        Counter.objects.using("default").create(name="rolled back", value=1)
        across = Workpool("far").enqueue(databases.count_in, SECOND, "across")
        assert ended("far", across).kind == "success"
        inside = Workpool().enqueue(tasks.note, "rolled back")
        1 / 0  # noqa: B018
    assert (counted("default", "rolled back"), counted(SECOND, "across")) == (0, 1)
    assert not Work.objects.using("default").filter(id=inside).exists()
    with transaction.atomic(using=SECOND):
        Counter.objects.using(SECOND).create(name="row", value=7)
        read = Workpool("far").enqueue(databases.read_in, SECOND, "row")
        assert not connections[SECOND].run_on_commit == connection.run_on_commit == []
    assert ended("far", read).value == "7"


def test_sessions_that_are_cut_in_one_database_are_no_matter_of_the_other(main: MainProcess) -> None:
    if connections[SECOND].vendor != "postgresql":
        pytest.skip("sessions of PostgreSQL")
    leads = main.output().count("event=lead_taken")
    with connections[SECOND].cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] >= 3
    assert ended("default", Workpool().enqueue(tasks.note, "not concerned")).kind == "success"
    assert ended("far", Workpool("far").enqueue(databases.count_in, SECOND, "again")).kind == "success"
    assert main.process.poll() is None
    assert "database=default" not in "".join(line for line in main.output().splitlines() if "lead_lost" in line)
    assert main.output().count("event=lead_taken") <= leads + 1
    assert "@second: the database is away" in main.output() and "@default: the database is away" not in main.output()


def test_a_mutation_that_enqueues_into_another_database_and_fails_has_enqueued(main: MainProcess) -> None:
    assert ended("default", Workpool().enqueue(databases.enqueue_into, "far", "from a failure", True)).kind == "failed"
    wait_until(lambda: counted(SECOND, "from a failure") == 1)
    assert ended("far", Workpool("far").enqueue(databases.enqueue_into, "far", "with it", True)).kind == "failed"
    assert ended("far", Workpool("far").enqueue(databases.enqueue_into, "far", "with it", False)).kind == "success"
    wait_until(lambda: counted(SECOND, "with it") == 1)
    wait_until(lambda: not Work.objects.using(SECOND).exists())
    assert counted(SECOND, "with it") == 1


@pytest.mark.slow
def test_the_status_shows_all_databases(two: Two, main: MainProcess) -> None:
    shown = two.command("workpool_status", "--json")
    assert shown.wait(PATIENCE) == 0, shown.output()
    told = json.loads(shown.output())
    assert set(told) == {"well", "problems", "databases"} and told["well"] and told["problems"] == []
    assert {alias: [pool["pool"] for pool in one["pools"] if pool["pool"] in HOME] for alias, one in told["databases"].items()} == {
        "default": ["default"],
        SECOND: ["far"],
    }
    for one in told["databases"].values():
        assert one["leader"]["pid"] == main.process.pid and [worker["pid"] for worker in one["workers"]] == [main.process.pid]
        assert [(worker["pools"], worker["capacity"]) for worker in one["workers"]] == [(None, 4)]
    table = two.command("workpool_status")
    assert table.wait(PATIENCE) == 0
    assert table.output().count("all is well") == 1 and "database second\n" in table.output()
    one = two.command("workpool_status", "--pool", "far", "--json")
    assert one.wait(PATIENCE) == 0
    assert [pool["pool"] for pool in json.loads(one.output())["pools"]] == ["far"]
    nowhere = two.command("workpool_status", "--pool", "nowhere")
    assert nowhere.wait(PATIENCE) == 2 and "There is no pool 'nowhere'" in nowhere.output()


@pytest.mark.slow
def test_the_last_lines_of_the_status_tell_of_all_databases(alone: Two) -> None:
    """One that is well does not end the text with a word that hides the other."""
    Workpool().enqueue(tasks.note, "nobody serves it")
    shown = alone.command("workpool_status")
    assert shown.wait(PATIENCE) == 1
    assert "all is well" not in shown.output() and "\n\ndatabase default: pool default: no_worker: " in shown.output()


@pytest.mark.slow
def test_the_checks_ask_each_database(alone: Two) -> None:
    Workpool("far").enqueue(tasks.note, "nobody serves it")
    asked = alone.command("check", "--database", "default", "--database", SECOND)
    assert asked.wait(PATIENCE) == 0, asked.output()
    assert "The work pool in the database 'second' is not well: far: no_worker" in asked.output()
    assert asked.output().count("workpool.W006") == 1
    other = alone.command("check", "--database", "default")
    assert other.wait(PATIENCE) == 0 and "workpool.W006" not in other.output()
    status = alone.command("workpool_status", "--json")
    assert status.wait(PATIENCE) == 1
    told, _ = json.JSONDecoder().raw_decode(status.output())
    assert [line.partition(": no live")[0] for line in told["problems"]] == ["second: pool far: no_worker"]
    assert [one["well"] for one in told["databases"].values()] == [True, False]


@pytest.mark.slow
def test_a_killed_process_is_recovered_from_in_both_databases(alone: Two, tmp_path: Path) -> None:
    first = alone.begin("--threads", "3")
    ids = {}
    for pool, alias in HOME.items():
        options = {"retry": SOON, "on_complete": databases.counted_in, "on_complete_context": {"alias": alias, "name": "recovered"}}
        ids[pool] = (
            Workpool(pool)
            .using(**options)
            .enqueue_many(  # type: ignore[arg-type]
                tasks.hold, [call(str(tmp_path), f"{pool}{n}") for n in range(3)]
            )
        )
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 6)
    other = alone.command("workpool_main", "--threads", "3")
    wait_until(lambda: other.output().count("event=process_started") == 2)
    assert {Worker.objects.using(alias).count() for alias in HOME.values()} == {2}
    os.killpg(first.process.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    for pool, some in ids.items():
        assert [(one.kind, one.attempts) for one in [ended(pool, one) for one in some]] == [("success", 2)] * 3
        assert counted(HOME[pool], "recovered:success") == 3
    assert other.output().count("event=lead_taken") == 2
    for alias in HOME.values():
        wait_until(lambda: not RunningWork.objects.using(alias).exists() and Worker.objects.using(alias).count() == 1)  # noqa: B023
    other.terminate()
    assert other.wait(PATIENCE) == 0, other.output()


def test_a_signal_ends_both_after_their_functions_and_a_second_one_does_not_wait(alone: Two, tmp_path: Path) -> None:
    main = alone.begin("--grace", "60")
    (tmp_path / "in time").mkdir()
    (tmp_path / "late").mkdir()
    quick = Workpool("far").enqueue(tasks.hold, str(tmp_path / "in time"), "quick")
    slow = {pool: Workpool(pool).enqueue(tasks.hold, str(tmp_path / "late"), pool) for pool in HOME}
    wait_until(lambda: RunningWork.objects.using(SECOND).count() == 2 and RunningWork.objects.using("default").count() == 1)
    wait_until(lambda: len(list(tmp_path.glob("*/begun-*"))) == 3)
    main.terminate()
    wait_until(lambda: main.output().count("event=process_stopping") == 2)
    (tmp_path / "in time" / "go").touch()
    assert ended("far", quick).kind == "success"
    assert main.process.poll() is None
    began = time.monotonic()
    main.terminate()
    assert main.wait(PATIENCE) == 0, main.output()
    assert time.monotonic() - began < 20
    for pool, work_id in slow.items():
        assert (ended(pool, work_id).kind, "interrupted" in ended(pool, work_id).error) == ("failed", True)
        wait_until(lambda: not Worker.objects.using(HOME[pool]).exists())  # noqa: B023
        assert Lead.objects.using(HOME[pool]).get().owner is None


def test_a_drained_process_has_drained_both_though_works_go_to_and_fro(alone: Two) -> None:
    Workpool("far").enqueue(databases.bounce, ["default", "far"], 20)
    Workpool("default").using(delay=timedelta(hours=1)).enqueue(tasks.note, "later")
    main = alone.command("workpool_main", "--drain")
    assert main.wait(PATIENCE) == 0, main.output()
    assert sorted(int(text) for text in Event.objects.filter(name="bounce").values_list("text", flat=True)) == list(range(21))
    assert {alias: PendingStart.objects.using(alias).count() for alias in HOME.values()} == {"default": 1, SECOND: 0}


@pytest.mark.slow
def test_children_serve_both_databases(alone: Two) -> None:
    ids = {pool: Workpool(pool).enqueue_many(databases.count_in, [call(alias, "by children")] * 5) for pool, alias in HOME.items()}
    ids["far"] += [Workpool("far").enqueue(databases.read_outside, SECOND, "nothing")]
    main = alone.command("workpool_main", "--processes", "1", "--drain")
    assert main.wait(PATIENCE) == 0, main.output()
    for pool, alias in HOME.items():
        assert [ended(pool, one).kind for one in ids[pool]][:5] == ["success"] * 5
        assert counted(alias, "by children") == 5
    assert ended("far", ids["far"][-1]).error.startswith("Counter matching query does not exist")


def test_only_the_databases_of_the_named_pools_are_served(alone: Two) -> None:
    home, far = Workpool().enqueue(tasks.note, "home"), Workpool("far").enqueue(tasks.note, "far")
    main = alone.command("workpool_main", "--pool", "far", "--drain")
    assert main.wait(PATIENCE) == 0, main.output()
    assert main.output().count("event=process_started") == 1
    assert ended("far", far).kind == "success"
    assert Workpool().status(home).state == "pending" and not Worker.objects.using("default").exists()
    unknown = alone.command("workpool_main", "--pool", "nowhere")
    assert unknown.wait(PATIENCE) == 1 and "There is no pool 'nowhere'" in unknown.output()


def test_a_database_that_is_away_at_the_start_holds_no_other_up_and_the_health_file_tells_of_the_worst(alone: Two, tmp_path: Path) -> None:
    if connections[SECOND].vendor == "sqlite":
        pytest.skip("a file is never away")
    path = tmp_path / "health.json"
    away = {"SECOND_DATABASE_URL": "postgres://nobody@127.0.0.1:1/away"}
    main = alone.command("workpool_main", "--health-file", str(path), **away)
    work_id = Workpool().enqueue(tasks.note, "served")
    assert ended("default", work_id).kind == "success"
    main.wait_for("the database is away", PATIENCE)
    assert not path.exists()
    main.terminate()
    assert main.wait(PATIENCE) == 0, main.output()
    status = alone.command("workpool_status", "--json", **away)
    assert status.wait(PATIENCE) == 2
    told, _ = json.JSONDecoder().raw_decode(status.output())
    assert list(told["databases"]) == ["default"] and not told["well"]
    assert told["problems"][-1].startswith("second: The database 'second' cannot be asked")


def test_the_health_file_tells_of_both(alone: Two, tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    main = alone.begin("--health-file", str(path))
    wait_until(path.exists)

    def roles() -> dict[str, str]:
        return {alias: one["role"] for alias, one in json.loads(path.read_text())["databases"].items()}

    # The file is there before both leads are taken.
    wait_until(lambda: roles() == {"default": "leads", SECOND: "leads"})
    told = json.loads(path.read_text())
    assert (told["pid"], told["state"]) == (main.process.pid, "runs") and FRESH_FOR > 0
    main.terminate()
    assert main.wait(PATIENCE) == 0 and not path.exists()


def test_a_database_without_tables_ends_the_process_and_says_so(alone: Two, tmp_path: Path) -> None:
    empty = {"SECOND_DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}
    main = alone.command("workpool_main", **empty)
    assert main.wait(PATIENCE) == 1
    assert f"Run: manage.py migrate --database {SECOND}" in main.output() and "Traceback" not in main.output()


def test_one_trace_has_works_of_both_databases(alone: Two, tmp_path: Path) -> None:
    """Runs of two databases may have the same token: each has the span of its own work."""
    path = tmp_path / "spans"
    with tracing_here(path) as spans:
        with spans.view():
            ids = {pool: [Workpool(pool).enqueue(traced_mutation) for _ in range(5)] for pool in HOME}
        assert all(Work.objects.using(alias).exclude(trace="").count() == 5 for alias in HOME.values())
        alone.begin("--threads", "4", **{TRACES_VARIABLE: str(path)})
        name = "tests.works.traces.traced_mutation"
        for pool, work_ids in ids.items():
            for work_id in work_ids:
                (run,), (enqueued,) = spans.of(f"run {name}", work_id), spans.of(f"enqueue {name}", work_id)
                assert (run["parent"], run["trace"]) == (enqueued["span"], spans.some("GET /")[0]["trace"])
                value = Archive.objects.using(HOME[pool]).get(id=work_id).value
                assert json.loads(value) == [run["trace"], run["span"]]
