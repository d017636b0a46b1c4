"""Which database holds what, asked of each room; and a router that sends reads to a replica which has nothing."""

import ast
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, router, transaction
from django.test import Client, override_settings
from django.urls import reverse

import django_workpool
from django_workpool import Workpool, call, conf, configuration, eventlog, periodic
from django_workpool.admin import looks
from django_workpool.apps import create_rows
from django_workpool.checks import check_direct, check_routers, check_settings, check_sqlite
from django_workpool.database import database
from django_workpool.exceptions import WorkpoolSettingsError
from django_workpool.execution import shared
from django_workpool.execution.shared import SharedThread
from django_workpool.models import Globals, InternalState, Lead, PendingCancelation, Periodic, RunStatus, Tally, Work
from django_workpool.periodic_checks import check_periodic
from django_workpool.routers import WorkpoolRouter
from django_workpool.runner import drain
from django_workpool.runner.options import Options
from django_workpool.runner.probe import Part, Probe
from django_workpool.runner.several import Several
from django_workpool.stats import diagnostics

from .conftest import StartMain
from .live import PATIENCE, result, wait_until
from .second import SECOND, second_database, transactional_db  # noqa: F401 - a fixture
from .works import databases, tasks
from .works.models import Event

TWO = {"default": {"FUNCTIONS": ["tests"]}, "far": {"DATABASE": SECOND}}
SHIPPED = "django_workpool.routers.WorkpoolRouter"


@pytest.fixture
def admin_client(transactional_db: None) -> Client:  # noqa: F811
    """A client of somebody who may see all."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="x"))
    return client


@pytest.fixture
def second(transactional_db: None, test_database_url: str) -> Iterator[str]:  # noqa: F811
    """A second database of the same vendor, with nothing in it."""
    with second_database(test_database_url, "same") as url:
        yield url


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second database that is only named."""
    monkeypatch.setitem(connections.databases, SECOND, dict(connection.settings_dict))


def test_a_pool_is_where_its_settings_say_else_where_the_router_writes(named: None, settings: Any) -> None:
    settings.WORKPOOLS = {"a": {"DATABASE": SECOND}, "b": {}, "c": {"DATABASE": None}}
    assert [conf.database_alias(pool) for pool in ("a", "b", "c", None, "gone")] == [SECOND, *["default"] * 4]
    assert conf.database_aliases() == (SECOND, "default")
    assert (conf.database_aliases(["b"]), conf.database_aliases(["c", "a"])) == (("default",), (SECOND, "default"))
    assert (conf.pools_in("default"), conf.pools_in(SECOND), conf.pools_in("x")) == (["b", "c"], ["a"], [])
    settings.DATABASE_ROUTERS = [databases.ReadsFromSecond()]
    assert conf.database_alias("b") == "default"


def test_an_unknown_alias_is_an_error_of_the_settings_and_of_the_check(settings: Any) -> None:
    settings.WORKPOOLS = {"p": {"DATABASE": "nowhere"}}
    with pytest.raises(WorkpoolSettingsError, match=r"WORKPOOLS\['p'\]\['DATABASE'\]: 'nowhere' is not in DATABASES."):
        conf.pools()
    (message,) = check_settings(None)
    assert message.id == "workpool.E001"
    # The others have nothing to add.
    assert check_sqlite(None) == check_routers(None) == []


def test_each_database_has_a_direct_alias_of_its_own(named: None, settings: Any) -> None:
    settings.WORKPOOLS = {"a": {"DATABASE": SECOND, "DIRECT": "past"}, "b": {}}
    assert conf.direct_alias("default") is None
    with pytest.raises(WorkpoolSettingsError, match="names 'past', which is not in DATABASES"):
        conf.direct_alias(SECOND)
    (message,) = check_direct(None)
    assert message.id == "workpool.E002" and "'past'" in message.msg
    settings.WORKPOOLS = {"a": {"DATABASE": SECOND, "DIRECT": "default"}, "b": {"DIRECT": SECOND}}
    assert (conf.direct_alias("default"), conf.direct_alias(SECOND)) == (SECOND, "default")


def test_the_router_makes_the_tables_where_pools_are_and_leaves_other_apps_alone(named: None, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    for alias, expected in (("default", True), (SECOND, True), ("other", False)):
        assert WorkpoolRouter().allow_migrate(alias, "workpool", model_name="work") is expected
        assert WorkpoolRouter().allow_migrate(alias, "works") is None
    settings.WORKPOOLS = {"far": {"DATABASE": SECOND}}
    assert (router.allow_migrate_model("default", Work), router.allow_migrate_model(SECOND, Work)) == (False, True)
    assert (router.db_for_read(Work), router.db_for_write(Work), conf.database_alias()) == (SECOND,) * 3
    assert (router.db_for_read(Event), router.db_for_write(Event)) == ("default", "default")
    settings.WORKPOOLS = {"p": {"DATABASE": "nowhere"}}
    assert WorkpoolRouter().allow_migrate("default", "workpool") is False
    assert router.db_for_write(Work) == "default"


def test_the_router_sends_a_row_home(named: None, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED, databases.ReadsFromSecond()]
    settings.WORKPOOLS = {"default": {}}
    from_replica = Globals(pool="default")
    from_replica._state.db = SECOND
    for row in (from_replica, Globals(pool="default"), Lead()):
        assert router.db_for_write(Globals, instance=row) == router.db_for_read(Globals, instance=row) == "default"
    settings.WORKPOOLS = TWO
    assert router.db_for_write(Globals, instance=Globals(pool="far")) == SECOND
    assert router.db_for_write(Globals, instance=Globals(pool="default")) == "default"
    # A pool that has moved has left rows behind.
    left = Globals(pool="far")
    left._state.db = "default"
    assert router.db_for_write(Globals, instance=left) == "default"


def test_a_pool_where_no_router_lets_its_tables_be_made_is_an_error(named: None, settings: Any) -> None:
    settings.WORKPOOLS = TWO
    assert check_routers(None) == []
    settings.DATABASE_ROUTERS = [databases.ReadsFromSecond()]
    (message,) = check_routers(None)
    assert (message.id, message.is_serious()) == ("workpool.E020", True)
    assert "The pools 'far' are in the database 'second'" in message.msg and SHIPPED in str(message.hint)
    settings.DATABASE_ROUTERS = [SHIPPED, databases.ReadsFromSecond()]
    assert check_routers(None) == []


def test_each_sqlite_database_of_pools_is_checked(named: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.backends.sqlite3.base import DatabaseWrapper

    wrong = {alias: DatabaseWrapper({**connection.settings_dict, "OPTIONS": {}}, alias) for alias in ("default", SECOND)}
    monkeypatch.setattr("django_workpool.checks.connections", wrong)
    settings.WORKPOOLS = TWO
    assert [message.msg.split()[2] for message in check_sqlite(None)] == ["'default'", "'second'"]
    settings.WORKPOOLS = {"far": {"DATABASE": SECOND}}
    assert [message.msg.split()[2] for message in check_sqlite(None)] == ["'second'"]


def test_the_levels_of_one_database_leave_those_of_another_alone(named: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog, "_by_database", {})
    monkeypatch.setattr(eventlog, "_levels", {})
    settings.WORKPOOLS = TWO
    eventlog.set_levels("default", {"default": "WARN", "far": "DEBUG"})
    eventlog.set_levels(SECOND, {"far": "ERROR", "default": "DEBUG", "gone": "INFO"})
    # Each pool's own database tells; a row that a pool has left behind does not.
    assert [eventlog.level_of(pool) for pool in ("default", "far", "gone")] == ["WARN", "ERROR", "INFO"]
    eventlog.set_levels(SECOND, {})
    assert [eventlog.level_of(pool) for pool in ("default", "far", "gone")] == ["WARN", "", ""]


# Migrations ---------------------------------------------------------------------------------------------------------


def test_migrate_makes_what_belongs_there_and_nothing_else(second: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    assert {model: list(model.objects.using(SECOND).values_list("pool", flat=True)) for model in (Globals, InternalState, RunStatus)} == {
        Globals: ["far"],
        InternalState: ["far"],
        RunStatus: ["far"],
    }
    assert Lead.objects.using(SECOND).count() == 1
    call_command("migrate", "workpool", "zero", database=SECOND, verbosity=0)
    settings.WORKPOOLS = {"default": {}}
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    tables = connections[SECOND].introspection.table_names()
    assert [table for table in tables if table.startswith("workpool_")] == []


def test_a_database_of_no_pool_gets_no_rows_even_where_its_tables_are(second: str, settings: Any) -> None:
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    for model in (Globals, InternalState, RunStatus, Lead):
        model.objects.using(SECOND).all().delete()
    settings.WORKPOOLS = {"default": {}}
    create_rows(sender=None, using=SECOND)  # type: ignore[arg-type]
    configuration.apply_settings(SECOND)
    assert [model.__name__ for model in (Globals, InternalState, RunStatus, Lead) if model.objects.using(SECOND).exists()] == []


# Atomicity ----------------------------------------------------------------------------------------------------------


def test_an_enqueue_belongs_to_the_transaction_of_its_pools_database_only(second: str, settings: Any) -> None:
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    far = Workpool("far")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        first = far.enqueue(tasks.note, "other transaction")
        assert connection.run_on_commit == []
        1 / 0  # noqa: B018
    assert list(Work.objects.using(SECOND).values_list("id", flat=True)) == [first]
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=SECOND):
        far.enqueue_many(tasks.note, [call(), call()])
        far.cancel(first)
        assert [hook.using for _, hook, *_ in connections[SECOND].run_on_commit] == [SECOND] * 2  # type: ignore[attr-defined]
        assert connection.run_on_commit == []
        1 / 0  # noqa: B018
    assert Work.objects.using(SECOND).count() == 1 and far.cancel(first)
    # An inner block that fails takes its own works with it, and no other's.
    with transaction.atomic(using=SECOND):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=SECOND):
            far.enqueue(tasks.note, "inner")
            1 / 0  # noqa: B018
        last = far.enqueue(tasks.note, "outer")
    assert set(Work.objects.using(SECOND).values_list("id", flat=True)) == {first, last}
    assert not Work.objects.using("default").exists()


# A replica that has nothing -----------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["router", "named"])
def replica(second: str, settings: Any, request: pytest.FixtureRequest) -> str:
    """Reads of the pool's models go to an empty, read-only database, unless they name another one."""
    settings.DATABASE_ROUTERS = [databases.ReadsFromSecond()]
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], **({"DATABASE": "default"} if request.param else {})}, "imports": {}}
    if connection.vendor == "postgresql":
        connections.databases[SECOND]["OPTIONS"] = {"options": "-c default_transaction_read_only=on"}
    with pytest.raises(DatabaseError):
        Work.objects.exists()
    connections[SECOND].close()
    return second


@pytest.mark.slow
def test_everything_is_read_where_it_is_written(replica: str, admin_client: Client) -> None:
    pool = Workpool()
    work_id, other = pool.enqueue_many(tasks.note, [call("a"), call("b")])
    assert {status.state for status in pool.status_many([work_id, other]).values()} == {"pending"}
    assert pool.status(uuid.uuid4()).state == "finished"
    assert pool.cancel(work_id) and not pool.cancel(work_id)
    pool.cancel_all()
    pool.configure(max_parallelism=3)
    assert (diagnostics("default", "default").waiting, diagnostics("default", "default").max_parallelism) == (2, 3)
    assert not drain.is_drained("default", None) and not drain.has_completions("default")
    for page in ("work", "globals", "pendingstart", "lead", "worker", "archive"):
        listed = admin_client.get(reverse(f"admin:workpool_{page}_changelist"))
        assert listed.status_code == 200
    assert b"1 pool configuration" in admin_client.get(reverse("admin:workpool_globals_changelist") + "?pool=default").content.lower()
    assert admin_client.get(reverse("admin:workpool_work_change", args=[work_id])).status_code == 200
    pool.enqueue(tasks.note, "nobody serves it")
    shown = StringIO()
    with pytest.raises(CommandError, match="no_worker"):
        call_command("workpool_status", stdout=shown)
    assert "default" in shown.getvalue()
    call_command("migrate", verbosity=0)


@pytest.mark.slow
def test_a_process_serves_beside_a_replica(replica: str, main_process: StartMain, request: pytest.FixtureRequest) -> None:
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.works.settings_replica",
        "SECOND_DATABASE_URL": replica,
        "NAMES_DATABASE": "1" if conf.pools()["default"].database else "",
    }
    main = main_process("--threads", "2", env=env)
    main.wait_for("lead_taken", PATIENCE)
    pool = Workpool()
    with override_settings(DATABASE_ROUTERS=[]):
        assert result(pool.using(on_complete=tasks.ended).enqueue(tasks.note, "1")).kind == "success"
        assert result(pool.enqueue(tasks.fail_once, "2")).attempts in (1, 2)
        assert result(pool.enqueue(tasks.count_up, "3")).kind == "success"
        assert result(pool.enqueue(tasks.enqueue_for_row, "4")).kind == "success"
        assert result(pool.using(on_complete=tasks.read_status).enqueue(tasks.note, "5")).callback == "done"
        assert Event.objects.get(name="status").text == "finished:success"
    status = main_process("--json", command="workpool_status", env=env)
    assert status.wait(PATIENCE) == 0, status.output()
    check = main_process("--database", "default", command="check", env=env)
    # By their ids: Django's own W037 on MariaDB names the models of the package.
    assert check.wait(PATIENCE) == 0 and "(workpool." not in check.output()
    main.terminate()
    assert main.wait(PATIENCE) == 0, main.output()
    assert "Traceback" not in main.output() and "no such table" not in main.output()


def test_the_package_names_the_database_of_each_query() -> None:
    """A manager that is not told asks the router, which may name a replica."""
    for path in Path(django_workpool.__file__).parent.rglob("*.py"):
        if "migrations" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ("using", "none")}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("objects", "_default_manager", "_base_manager"):
                assert id(node) in told, f"{path.name}:{node.lineno} names no database"


# Periodic works -----------------------------------------------------------------------------------------------------


def where(name: str) -> dict[str, list[str]]:
    """Return the pools of the rows of a periodic work, by database."""
    return {alias: list(Periodic.objects.using(alias).filter(name=name).values_list("pool", flat=True)) for alias in ("default", SECOND)}


def test_the_dashboard_shows_one_database_at_a_time(second: str, settings: Any, admin_client: Client) -> None:
    settings.WORKPOOLS, settings.DATABASE_ROUTERS = TWO, [SHIPPED]
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    looks.forget()
    Workpool("far").enqueue(tasks.note, "there")
    minute = int(database(SECOND).clock_ms() // 60_000)
    for using, pool, number in (("default", "default", 3), (SECOND, "far", 40)):
        Tally.objects.using(using).create(pool=pool, minute=minute - 2, succeeded=number)
    told = {}
    for using in ("default", SECOND):
        answer = admin_client.get(reverse("admin:workpool_dashboard_data"), {"database": using}).json()
        told[using] = {one["pool"]: (one["waiting"], one["total"]["succeeded"]) for one in answer["pools"]}
    assert (told["default"]["default"], told[SECOND]) == ((0, 3), {"far": (1, 40)})
    (work,) = admin_client.get(reverse("admin:workpool_dashboard_waiting"), {"database": SECOND, "pool": "far"}).json()["works"]
    assert admin_client.get(work["url"]).status_code == 200
    page = admin_client.get(reverse("admin:workpool_dashboard"), {"database": SECOND}).content.decode()
    assert f'<option value="{SECOND}" selected>' in page and '<option value="default">' in page
    looks.forget()


def test_a_periodic_work_is_in_the_database_of_its_pool(second: str, settings: Any, admin_client: Client) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    periodic.schedule("nightly", tasks.note, cron="0 1 * * *", pool="far")
    assert where("nightly") == {"default": [], SECOND: ["far"]}
    # It moves with its pool, and does not tick twice.
    periodic.schedule("nightly", tasks.note, cron="0 1 * * *")
    assert where("nightly") == {"default": ["default"], SECOND: []}
    pk = Periodic.objects.using("default").get().pk
    fields = {"name": "nightly", "func_path": "tests.works.tasks.note", "arguments": '{"args": [], "kwargs": {}}', "priority": "0"}
    fields |= {"cron": "0 2 * * *", "time_zone": "UTC", "missed": "last", "enabled": "on"}
    page = reverse("admin:workpool_periodic_change", args=[pk])
    changed = admin_client.post(page, {**fields, "pool": "far"})
    assert changed.status_code == 302, changed.content
    assert where("nightly") == {"default": [], SECOND: ["far"]}
    moved = Periodic.objects.using(SECOND).get()
    page = reverse("admin:workpool_periodic_change", args=[moved.pk]) + "?_changelist_filters=database%3Dsecond"
    assert admin_client.post(page, {**fields, "pool": "far", "cron": "0 3 * * *"}).status_code == 302
    assert Periodic.objects.using(SECOND).get().cron == "0 3 * * *"
    listed = reverse("admin:workpool_periodic_changelist") + "?database=second"
    admin_client.post(listed, {"action": "disable", "_selected_action": [moved.pk]})
    assert not Periodic.objects.using(SECOND).get().enabled
    Periodic.objects.using(SECOND).update(enabled=True, func_path="gone.away")
    assert [message.id for message in check_periodic(None, databases=["default", SECOND])] == ["workpool.W010"]
    assert check_periodic(None, databases=["default"]) == []
    assert periodic.unschedule("nightly") and not periodic.unschedule("nightly")
    assert where("nightly") == {"default": [], SECOND: []}


def test_what_is_rolled_back_in_one_database_is_not_lost_in_the_other(second: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    periodic.schedule("nightly", tasks.note, cron="0 1 * * *")
    with pytest.raises(RuntimeError), transaction.atomic(using=SECOND):
        periodic.schedule("nightly", tasks.note, cron="0 1 * * *", pool="far")
        assert where("nightly") == {"default": ["default"], SECOND: ["far"]}
        raise RuntimeError
    assert where("nightly") == {"default": ["default"], SECOND: []}
    with transaction.atomic(using=SECOND):
        periodic.schedule("nightly", tasks.note, cron="0 1 * * *", pool="far")
    assert where("nightly") == {"default": [], SECOND: ["far"]}


def test_a_row_that_the_other_database_refuses_stays_where_it_is(second: str, settings: Any, admin_client: Client) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    periodic.schedule("nightly", tasks.note, cron="0 1 * * *", pool="far")
    moved = Periodic.objects.using(SECOND).get()
    fields = {"name": "nightly", "func_path": "tests.works.tasks.note", "arguments": '{"args": [], "kwargs": {}}', "priority": "0"}
    fields |= {"cron": "0 2 * * *", "time_zone": "UTC", "missed": "last", "enabled": "on", "pool": "default"}
    page = reverse("admin:workpool_periodic_change", args=[moved.pk]) + "?_changelist_filters=database%3Dsecond"
    with patch.object(periodic, "create", side_effect=DatabaseError), pytest.raises(DatabaseError):
        admin_client.post(page, fields)
    assert where("nightly") == {"default": [], SECOND: ["far"]}


def test_works_are_scheduled_before_the_other_database_has_tables(second: str, settings: Any) -> None:
    """As while the databases are migrated, one after the other, by a receiver of post_migrate."""
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    periodic.schedule("nightly", tasks.note, cron="0 1 * * *")
    with transaction.atomic():
        periodic.schedule("nightly", tasks.note, cron="0 2 * * *")
    assert Periodic.objects.using("default").get().cron == "0 2 * * *"
    assert periodic.unschedule("nightly")


def test_a_process_ends_where_its_version_was_not_migrated(second: str, settings: Any, main_process: StartMain) -> None:
    """It must not take the lead from processes of the version before: these go on."""
    call_command("migrate", "workpool", "0002", database=SECOND, verbosity=0)
    main_process.database_url = second
    main = main_process()
    assert main.wait(PATIENCE) == 1
    assert "cannot be read" in main.output() and "Run: manage.py migrate" in main.output()
    assert not Lead.objects.using(SECOND).exclude(owner=None).exists()


# The admin ----------------------------------------------------------------------------------------------------------


def test_the_admin_shows_each_database(second: str, settings: Any, admin_client: Client) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    home, far = Workpool().enqueue(tasks.note, "home"), Workpool("far").enqueue(tasks.note, "far")
    page = reverse("admin:workpool_work_changelist")
    plain = admin_client.get(page).content.decode()
    assert str(home) in plain and str(far) not in plain and "?database=second" in plain
    chosen = admin_client.get(f"{page}?database=second").content.decode()
    assert str(far) in chosen and str(home) not in chosen
    # The links from there keep what was chosen.
    assert f"{far}/change/?_changelist_filters=database%3Dsecond" in chosen
    detail = reverse("admin:workpool_work_change", args=[far])
    assert admin_client.get(f"{detail}?_changelist_filters=database%3Dsecond").status_code == 200
    assert admin_client.get(detail).status_code == 302
    assert str(home) in admin_client.get(f"{page}?database=nowhere").content.decode()
    settings.DATABASE_ROUTERS = []
    settings.WORKPOOLS = {"far": {"DATABASE": SECOND}}
    assert str(far) in admin_client.get(page).content.decode()
    settings.WORKPOOLS = {"default": {}}
    assert "?database=" not in admin_client.get(page).content.decode()


def test_what_is_done_from_the_admin_is_done_in_the_shown_database(second: str, settings: Any, admin_client: Client) -> None:
    settings.DATABASE_ROUTERS = [SHIPPED]
    settings.WORKPOOLS = TWO
    call_command("migrate", "workpool", database=SECOND, verbosity=0)
    home, listed, single = Workpool().enqueue(tasks.note, "home"), *Workpool("far").enqueue_many(tasks.note, [call("a"), call("b")])
    page = reverse("admin:workpool_work_changelist") + "?database=second"
    chosen = {"action": "cancel", "index": 0, "_selected_action": [str(home), str(listed)]}
    assert admin_client.post(page, chosen)["Location"] == page
    assert list(PendingCancelation.objects.using(SECOND).values_list("work_id", flat=True)) == [listed]
    detail = reverse("admin:workpool_work_change", args=[single]) + "?_changelist_filters=database%3Dsecond"
    button = reverse("admin:workpool_work_act", args=[single, "cancel"]) + "?_changelist_filters=database%3Dsecond"
    assert button in admin_client.get(detail).content.decode()
    assert admin_client.post(button)["Location"] == detail
    assert set(PendingCancelation.objects.using(SECOND).values_list("work_id", flat=True)) == {listed, single}
    assert not PendingCancelation.objects.using("default").exists()
    # The pool has moved meanwhile: its function would act on the other database.
    settings.WORKPOOLS = {"default": {}, "far": {}, "there": {"DATABASE": SECOND}}
    told = admin_client.post(page, {**chosen, "_selected_action": [str(single)]}, follow=True).content.decode()
    assert "the settings have the pool &#x27;far&#x27; in another database" in told


# One process ----------------------------------------------------------------------------------------------------------


def test_all_are_drained_when_a_moment_is_seen_at_which_nothing_was_anywhere() -> None:
    taken = {"a": 0, "b": 0}
    both = drain.Agreement(["a", "b"])

    def look(using: str, drained: bool = True, takes: int = 0) -> bool:
        def look_now() -> bool:
            taken[using] += takes
            return drained

        return both.look(using, lambda: taken[using], look_now)

    assert both.is_of_several and not drain.Agreement(["a"]).is_of_several
    assert not look("a") and not look("b")
    # A was empty before B was; what B has done until then may have brought something into A.
    assert not look("b")
    assert not look("b", drained=False)
    assert not look("a") and not look("b")
    # Something was taken between two looks, or during one.
    taken["a"] += 1
    assert not look("a") and not look("b")
    assert not look("b", takes=1)
    assert not look("b")
    assert not look("a")
    assert look("b")
    assert look("a", drained=False), "once all are drained, all of them end"


def test_one_database_is_drained_at_the_first_look() -> None:
    assert drain.Agreement(["a"]).look("a", lambda: 0, lambda: True)
    assert not drain.Agreement(["a"]).look("a", lambda: 0, lambda: False)


@pytest.mark.slow
def test_the_health_file_is_as_good_as_the_worst_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "health.json"
    probe = Probe(path)
    try:
        a, b = Part(probe, "a"), Part(probe, "b")
        a.tick(leads=True, worker=1, well=True, reason="runs")
        time.sleep(1.2)
        assert not path.exists(), "b has not begun"
        b.tick(leads=False, worker=2, well=False, reason="the loop does not go on")
        wait_until(lambda: "b: the loop does not go on" in caplog.text)
        assert not path.exists()
        b.tick(leads=False, worker=2, well=True, reason="runs", beat_age=0.5)
        a.tick(leads=True, worker=1, well=True, reason="runs", beat_age=0.1)
        wait_until(path.exists)
        text = path.read_text()
        assert '"databases": {"a": {"role": "leads"' in text and '"role": "stands by", "worker": 2, "beat_age_s": 0.5' in text
        b.leave()
        written = path.stat().st_mtime_ns
        a.tick(leads=True, worker=1, well=True, reason="runs", beat_age=0.1)
        wait_until(lambda: path.stat().st_mtime_ns > written)
        assert '"b"' not in path.read_text()
    finally:
        probe.remove()


def test_connections_that_loops_share_are_not_put_right_while_one_of_them_uses_them() -> None:
    busy = [True]
    one, other = SharedThread("one", None, lambda: True), SharedThread("other", None, lambda: not busy[0])
    seen: list[str] = []

    class Kept:
        has_connections = True
        begin = staticmethod(lambda label: seen.append("begin"))
        heal = staticmethod(lambda: seen.append("heal"))
        close = staticmethod(lambda: seen.append("close"))

    before, shared._kept = shared._kept, (shared.threading.get_ident(), Kept())  # type: ignore[assignment]
    try:
        one._tidy(True)
        one._close()
        other._tidy(False)
        busy[0] = False
        one._tidy(True)
        one._close()
        assert seen == ["heal", "heal", "begin", "close"] and shared._kept is None
    finally:
        shared._kept = before
    del other


class Fake:
    """Stands for what serves one database."""

    def __init__(self, using: str, ends: Callable[["Fake"], int]) -> None:
        self.using, self.ends, self.signals, self.idle = using, ends, 0, True
        self.options = Options(threads=1, pools=None, drain=False, grace=0)
        self.thread: threading.Thread | None = None

    def signal(self) -> None:
        self.signals += 1

    def run(self) -> int:
        self.thread = threading.current_thread()
        return self.ends(self)


def until_signaled(fake: Fake) -> int:
    wait_until(lambda: fake.signals)
    return 0


def raises(fake: Fake) -> int:
    raise LookupError(fake.using)


def several(*fakes: Fake, prepare: Callable[[Any], bool] = lambda process: True) -> Several:
    return Several(fakes, prepare)  # type: ignore[arg-type]


def test_one_that_is_dead_ends_all_with_its_code() -> None:
    good, bad = Fake("good", until_signaled), Fake("bad", lambda fake: 1)
    assert several(good, bad).run() == 1
    assert good.signals == 1
    assert good.thread is not bad.thread and good.thread is not threading.current_thread()
    alone = Fake("alone", lambda fake: 0)
    assert several(alone).run() == 0 and alone.thread is threading.current_thread()


def test_one_that_raises_ends_all_and_what_it_raised_is_raised() -> None:
    good, bad = Fake("good", until_signaled), Fake("bad", raises)
    with pytest.raises(LookupError, match="bad"):
        several(good, bad).run()
    assert good.signals == 1

    def refuse(process: Any) -> bool:
        if process is bad:
            raise CommandError("no tables")
        return True

    good.signals = 0
    with pytest.raises(CommandError, match="no tables"):
        several(good, bad, prepare=refuse).run()


def test_signals_reach_all_and_are_counted() -> None:
    first, second = Fake("first", until_signaled), Fake("second", lambda fake: wait_until(lambda: fake.signals > 1) or 0)
    both = several(first, second)
    for at in (0.2, 0.6):
        threading.Timer(at, both.signal).start()
    assert both.run() == 0
    assert (first.signals, second.signals) == (2, 2)
    second.idle = False
    assert not both.idle
