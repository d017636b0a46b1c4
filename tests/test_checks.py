"""System checks: each says exactly what to set, and none connects."""

from typing import Any

import pytest
from django.core import checks
from django.db import connections

from django_workpool import conf
from django_workpool.checks import (
    check_connection_pool,
    check_direct,
    check_health,
    check_limits,
    check_mask,
    check_migrations,
    check_settings,
    check_sqlite,
    register_checks,
)
from django_workpool.health import Unasked, examine
from django_workpool.models import Worker

GOOD = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"}


@pytest.fixture
def sqlite(monkeypatch):
    """Make the database of the pool a SQLite one with the given options."""
    from django.db.backends.sqlite3.base import DatabaseWrapper

    def make(options, engine=DatabaseWrapper):
        connection = engine({**connections["default"].settings_dict, "OPTIONS": options}, "default")
        monkeypatch.setattr("django_workpool.checks.connections", {"default": connection})

    return make


def test_the_checks_are_registered_once():
    register_checks()
    registered = [check for check in checks.registry.registry.registered_checks if check.__module__ == "django_workpool.checks"]
    assert sorted(check.__name__ for check in registered) == [
        "check_connection_pool",
        "check_direct",
        "check_health",
        "check_limits",
        "check_mask",
        "check_migrations",
        "check_routers",
        "check_settings",
        "check_sqlite",
    ]


def test_good_settings_pass(settings):
    settings.WORKPOOLS = {"default": {"MAX_PARALLELISM": 3}}
    assert check_settings(None) == []


def test_unusable_settings_are_an_error_with_their_text(settings):
    settings.WORKPOOLS = {"p": {"MAX": 3}}
    (message,) = check_settings(None)
    assert message.id == "workpool.E001"
    assert message.level == checks.ERROR
    assert message.msg.startswith("WORKPOOLS['p'] has an unknown key 'MAX'")


@pytest.mark.parametrize(
    "options",
    [
        GOOD,
        {**GOOD, "transaction_mode": "exclusive", "timeout": 5.0},
        {**GOOD, "init_command": "pragma JOURNAL_MODE = 'wal'"},
        {**GOOD, "init_command": "PRAGMA foreign_keys=1;PRAGMA main.journal_mode(WAL);"},
    ],
)
def test_sqlite_with_its_options_passes(sqlite, options):
    sqlite(options)
    assert check_sqlite(None) == []


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, ["transaction_mode", "timeout", "init_command"]),
        (None, ["transaction_mode", "timeout", "init_command"]),
        ({**GOOD, "transaction_mode": "DEFERRED"}, ["transaction_mode"]),
        ({**GOOD, "transaction_mode": None}, ["transaction_mode"]),
        ({**GOOD, "timeout": 4.9}, ["timeout"]),
        ({key: value for key, value in GOOD.items() if key != "timeout"}, ["timeout"]),
        ({**GOOD, "init_command": "PRAGMA journal_mode=DELETE"}, ["init_command"]),
        ({**GOOD, "init_command": "PRAGMA synchronous=1"}, ["init_command"]),
    ],
)
def test_sqlite_without_an_option_is_warned_of_by_its_name(sqlite, options, missing):
    sqlite(options)
    (message,) = check_sqlite(None)
    assert message.id == "workpool.W001"
    assert message.level == checks.WARNING
    assert [key for key in GOOD if f'"{key}"' in message.msg] == missing
    assert all(f'"{key}"' in message.hint for key in GOOD)
    assert "DATABASES['default']" in message.hint


def test_other_databases_need_no_sqlite_options(sqlite):
    from django.db.backends.dummy.base import DatabaseWrapper

    sqlite({}, DatabaseWrapper)
    assert check_sqlite(None) == []


@pytest.mark.parametrize(
    "pool",
    [None, False, {}, {"max_size": conf.DEFAULT_THREADS}, {"min_size": 50}, {"min_size": 1, "max_size": 50}],
)
def test_connection_pools_that_are_large_enough_pass(sqlite, pool):
    sqlite({"pool": pool} if pool is not None else {})
    assert check_connection_pool(None) == []


@pytest.mark.parametrize(("pool", "size"), [(True, 4), ({"max_size": 3}, 3), ({"min_size": 2}, 2), ({"min_size": 2, "max_size": None}, 2)])
def test_connection_pools_smaller_than_the_threads_are_warned_of(sqlite, pool, size):
    sqlite({"pool": pool})
    (message,) = check_connection_pool(None)
    assert message.id == "workpool.W002"
    assert f"at most {size} connections" in message.msg
    assert f"{conf.DEFAULT_THREADS} threads" in message.msg
    assert f'"max_size": {conf.DEFAULT_THREADS}' in message.hint


def test_the_checks_do_not_connect(sqlite):
    # Without a database mark, a connection would be an error of this test.
    sqlite({"pool": True})
    for check in (check_settings, check_direct, check_sqlite, check_connection_pool, check_health, check_limits, check_migrations):
        check(None)


@pytest.mark.parametrize("check", [check_health, check_limits, check_migrations])
def test_checks_of_rows_run_only_where_django_lets_checks_ask(check):
    (found,) = [one for one in checks.registry.registry.registered_checks if one.__name__ == check.__name__]
    assert found.tags == (checks.Tags.database,)
    assert check(None, databases=["other"]) == []


@pytest.mark.django_db(transaction=True)
def test_a_database_without_the_tables_or_one_that_is_away_is_no_matter_of_the_check_of_health(monkeypatch):
    assert check_health(None, databases=["default"]) == []
    monkeypatch.setitem(Worker._meta.__dict__, "db_table", "not_there")
    with pytest.raises(Unasked, match="Run: manage.py migrate"):
        examine("default")
    assert check_health(None, databases=["default"]) == []


def test_a_mask_that_cannot_be_used_is_told(settings: Any) -> None:
    assert check_mask(None) == []
    settings.WORKPOOL_ADMIN_MASK = "nowhere.mask"
    (told,) = check_mask(None)
    assert told.id == "workpool.E003" and "'nowhere.mask', which cannot be imported" in told.msg
