"""System checks: what in the settings would stop the pool or slow it down, without connecting to a database; and whether the pool is well.

The latter is asked only where Django lets checks ask: by ``check --database`` and ``migrate``.
"""

import re
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Warned
from django.db import connections
from django.db.backends.sqlite3.base import DatabaseWrapper as SQLite

from . import conf, health
from .exceptions import WorkpoolSettingsError
from .periodic_checks import check_periodic

#: Seconds that a SQLite connection should wait for another writer.
LEAST_TIMEOUT = 5
#: What psycopg_pool opens when it is asked for a pool without a size.
POOL_DEFAULT_SIZE = 4

_WAL = re.compile(r"""journal_mode\s*[=(]\s*['"]?wal\b""", re.IGNORECASE)
_SQLITE_OPTIONS = '"OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}'


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.E001: the WORKPOOLS setting cannot be used."""
    try:
        conf.pools()
    except WorkpoolSettingsError as error:
        return [Error(str(error), id="workpool.E001")]
    return []


def check_sqlite(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.W001: SQLite without the options that let several processes write."""
    alias = conf.database_alias()
    connection = connections[alias]
    if not isinstance(connection, SQLite):
        return []
    options = connection.settings_dict.get("OPTIONS") or {}
    missing = []
    if str(options.get("transaction_mode") or "").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        missing.append('"transaction_mode": "IMMEDIATE" (else a transaction that reads before it writes fails with "database is locked")')
    timeout = options.get("timeout")
    if not isinstance(timeout, (int, float)) or timeout < LEAST_TIMEOUT:
        missing.append(f'"timeout": {LEAST_TIMEOUT} or more, in seconds (else writers that meet give up early)')
    if not _WAL.search(str(options.get("init_command") or "")):
        missing.append('"init_command": "PRAGMA journal_mode=WAL" (else readers and the writer shut each other out)')
    if not missing:
        return []
    return [
        Warned(
            f"SQLite database {alias!r} is missing options that the pool's processes need: {'; '.join(missing)}.",
            hint=f"Set in DATABASES[{alias!r}]: {_SQLITE_OPTIONS}",
            id="workpool.W001",
        )
    ]


def check_connection_pool(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.W002: a connection pool smaller than the threads of a worker."""
    alias = conf.database_alias()
    pool = (connections[alias].settings_dict.get("OPTIONS") or {}).get("pool")
    if not pool:
        return []
    sizes = pool if isinstance(pool, dict) else {}
    size = sizes.get("max_size") or sizes.get("min_size", POOL_DEFAULT_SIZE)
    if size >= conf.DEFAULT_THREADS:
        return []
    return [
        Warned(
            f"The connection pool of database {alias!r} holds at most {size} connections, but a worker runs functions on "
            f"{conf.DEFAULT_THREADS} threads, each with a connection of its own: the others would wait, then fail.",
            hint=(
                f'Set DATABASES[{alias!r}]["OPTIONS"]["pool"] = {{"max_size": {conf.DEFAULT_THREADS}}} or more, '
                f"or start workpool_main with --threads {size} or less."
            ),
            id="workpool.W002",
        )
    ]


def check_health(app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.W003: due works do not start, and somebody must do something about it."""
    try:
        alias = conf.database_alias()
        problems = health.examine(alias).summary if alias in (databases or ()) else []
    except (health.Unasked, WorkpoolSettingsError):
        # Before the first migration there is nothing to ask; a database that is away is told of by others.
        return []
    hint = "manage.py workpool_status shows the pools, who leads and who works."
    return [Warned(f"The work pool is not well: {problem}.", hint=hint, id="workpool.W003") for problem in problems]


def register_checks() -> None:
    """Register the checks; twice changes nothing."""
    for check in (check_settings, check_sqlite, check_connection_pool):
        register(check)
    register(check_health, Tags.database)
    register(check_periodic, Tags.database)
