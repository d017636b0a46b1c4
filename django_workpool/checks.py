"""System checks: what in the settings would stop the pool or slow it down, without connecting to a database; and whether the pool is well.

The latter is asked only where Django lets checks ask: by ``check --database`` and ``migrate``.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Warned
from django.db import DatabaseError, connections, router, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper as SQLite

from . import conf, health, masks
from .exceptions import WorkpoolSettingsError
from .loop.fleet import Fleet, Room
from .models import Globals, Work
from .periodic_checks import check_periodic

#: Seconds that a SQLite connection should wait for another writer.
LEAST_TIMEOUT = 5
#: What psycopg_pool opens when it is asked for a pool without a size.
POOL_DEFAULT_SIZE = 4
#: A limit that is so many times what live workers can run at once is told of.
LIMIT_TIMES = 4
#: Where works run; callbacks have limits of their own.
ROOMS = (Room.THREAD, Room.COROUTINE)

_WAL = re.compile(r"""journal_mode\s*[=(]\s*['"]?wal\b""", re.IGNORECASE)
_SQLITE_OPTIONS = '"OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}'


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.E001: the WORKPOOLS setting cannot be used."""
    try:
        conf.pools()
    except WorkpoolSettingsError as error:
        return [Error(str(error), id="workpool.E001")]
    return []


def check_mask(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.E003: WORKPOOL_ADMIN_MASK cannot be used: the admin hides all payloads."""
    try:
        masks.mask()
    except WorkpoolSettingsError as error:
        return [Error(str(error), id="workpool.E003")]
    return []


def _databases() -> tuple[str, ...]:
    try:
        return conf.database_aliases()
    except WorkpoolSettingsError:
        # It is told by E001.
        return ()


def check_routers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.E020: a pool in a database in which migrate makes no tables for it."""
    return [
        Error(
            f"The pools {', '.join(map(repr, conf.pools_in(alias)))} are in the database {alias!r}, but DATABASE_ROUTERS does not let "
            "migrate make their tables there.",
            hint='DATABASE_ROUTERS = ["django_workpool.routers.WorkpoolRouter", ...] lets it, or allow_migrate() of a router of your own.',
            id="workpool.E020",
        )
        for alias in _databases()
        if not router.allow_migrate_model(alias, Globals)
    ]


def check_sqlite(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.W001: SQLite without the options that let several processes write."""
    return [message for alias in _databases() for message in _check_sqlite(alias)]


def _check_sqlite(alias: str) -> list[CheckMessage]:
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
    return [message for alias in _databases() for message in _check_connection_pool(alias)]


def _check_connection_pool(alias: str) -> list[CheckMessage]:
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


def check_direct(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.E002: DIRECT names no alias, several, or one of another kind of database."""
    return [message for alias in _databases() for message in _check_direct(alias)]


def _check_direct(alias: str) -> list[CheckMessage]:
    try:
        direct = conf.direct_alias(alias)
    except WorkpoolSettingsError as error:
        return [Error(str(error), id="workpool.E002")]
    if direct is None or connections[direct].settings_dict["ENGINE"] == connections[alias].settings_dict["ENGINE"]:
        return []
    text = f"WORKPOOLS: DIRECT names {direct!r}, which is of another kind than {alias!r}: it must lead to the same database."
    return [Error(text, hint=f"Give DATABASES[{direct!r}] the ENGINE of DATABASES[{alias!r}].", id="workpool.E002")]


def check_health(app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.W003 and W006: due works do not start, and somebody must do something about it; W006 if nobody serves their pool."""
    hint = "manage.py workpool_status shows the pools, who leads and who works."
    ids = {health.Reason.NO_WORKER: "workpool.W006"}
    where = " in the database {!r}" if len(_databases()) > 1 else ""
    messages: list[CheckMessage] = []
    for alias in _asked(databases):
        try:
            faults = health.examine(alias).faults
        except (health.Unasked, WorkpoolSettingsError):
            # Before the first migration there is nothing to ask; a database that is away is told of by others.
            continue
        for one, text in faults.items():
            said = f"The work pool{where.format(alias)} is not well: {text}."
            messages.append(Warned(said, hint=hint, id=ids.get(one, "workpool.W003")))
    return messages


def _asked(databases: Sequence[str] | None) -> list[str]:
    """Return the databases of pools that Django lets checks ask."""
    return [alias for alias in _databases() if alias in (databases or ())]


def check_limits(app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.W004: a pool's limit is far above what its live workers can run at once."""
    return [message for alias in _asked(databases) for message in _check_limits(alias)]


def _check_limits(alias: str) -> list[CheckMessage]:
    fleet = Fleet()
    try:
        # Where the tables are not there yet, a transaction of the caller's goes on.
        with transaction.atomic(using=alias):
            fleet.refresh(alias, now=True)
            limits = dict(Globals.objects.using(alias).order_by("pool").values_list("pool", "max_parallelism"))
    except (DatabaseError, WorkpoolSettingsError):
        return []
    rooms = {pool: sum(sum(worker.capacity[room] for room in ROOMS) for worker in fleet.serving(pool)) for pool in limits}
    # Nobody there is another matter, and the default is nobody's mistake.
    most = {pool: max(LIMIT_TIMES * room, conf.DEFAULT_MAX_PARALLELISM) for pool, room in rooms.items() if room}
    told = [f"{pool} ({limits[pool]} against {rooms[pool]})" for pool in most if limits[pool] > most[pool]]
    if not told:
        return []
    text = f"The limit is far above what all live workers together can run at once, so it limits nothing: {health.shortened(told)}."
    hint = "Start more workpool_main, with more --threads or --processes; or lower MAX_PARALLELISM, so that it says what happens."
    return [Warned(text, hint=hint, id="workpool.W004")]


def check_migrations(app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.W005: the tables are not those of this version."""
    if sys.argv[1:2] == ["migrate"]:
        # It asks its checks before it does what they would ask for.
        return []
    return [message for alias in _asked(databases) for message in _check_migrations(alias)]


def _check_migrations(alias: str) -> list[CheckMessage]:
    from django.db.migrations.executor import MigrationExecutor

    try:
        executor = MigrationExecutor(connections[alias])
        if not executor.loader.applied_migrations:
            # A new project: nothing is there yet, not even Django's own.
            return []
        label = Work._meta.app_label
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes(label))
    except (DatabaseError, WorkpoolSettingsError):
        return []
    missing = [migration.name for migration, _ in plan if migration.app_label == label]
    if not missing:
        return []
    text = f"The pool's tables in database {alias!r} are not those of this version; not applied: {health.shortened(missing)}."
    return [Warned(text, hint=f"Run: manage.py migrate {label} --database {alias}", id="workpool.W005")]


def register_checks() -> None:
    """Register the checks; twice changes nothing."""
    for check in (check_settings, check_mask, check_routers, check_direct, check_sqlite, check_connection_pool):
        register(check)
    for check_rows in (check_health, check_limits, check_migrations, check_periodic):
        register(check_rows, Tags.database)
