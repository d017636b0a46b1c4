"""A database of the bench's own: nobody's data are touched, and nothing is left of it."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, connection

from django_workpool.models import PendingCancelation, PendingCompletion, PendingStart, RunningWork, Work

#: What holds rows only while there is unfinished work.
QUEUES = (Work, PendingStart, PendingCompletion, PendingCancelation, RunningWork)


class NoPlace(Exception):
    """The bench's own database cannot be made; the text says why."""


@contextmanager
def temporary_database(folder: Path) -> Iterator[str]:
    """Lead this process's default alias to a new database with all tables, and yield its name; drop it at the end.

    On a server it is made beside the configured one; on SQLite it is a file in ``folder``.

    Raises:
        NoPlace: it cannot be made.
    """
    configured = connection.settings_dict["NAME"]
    name = f"bench_{uuid.uuid4().hex[:12]}" if is_server() else str(folder / "bench.sqlite3")
    try:
        _administer(f"CREATE DATABASE {name}{' CHARACTER SET utf8mb4' if is_mysql() else ''}")
    except DatabaseError as error:
        raise NoPlace(f"The bench's own database cannot be made: {str(error).strip()}") from error
    try:
        _use(name)
        call_command("migrate", interactive=False, verbosity=0)
        yield name
    finally:
        _use(configured)
        # FORCE: a worker that was killed may have sessions that the server has not missed yet.
        _administer(f"DROP DATABASE IF EXISTS {name}{' WITH (FORCE)' if is_postgresql() else ''}")


def is_postgresql() -> bool:
    """Return whether the configured database is PostgreSQL."""
    return connection.vendor == "postgresql"


def is_mysql() -> bool:
    """Return whether the configured database is MariaDB or MySQL."""
    return connection.vendor == "mysql"


def is_server() -> bool:
    """Return whether the configured database is a server's; else it is SQLite."""
    return is_postgresql() or is_mysql()


def _use(name: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name


def _administer(statement: str) -> None:
    if is_server():
        with connection._nodb_cursor() as cursor:
            cursor.execute(statement)


def empty() -> None:
    """Empty the tables of the pools and of the bench."""
    models = [*apps.get_app_config("workpool").get_models(), *apps.get_app_config("bench").get_models()]
    quote = connection.ops.quote_name
    tables = [quote(model._meta.db_table) for model in models]
    with connection.cursor() as cursor:
        if is_postgresql():
            cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY")
            return
        for table in tables:
            cursor.execute(f"TRUNCATE {table}" if is_mysql() else f"DELETE FROM {table}")
        if is_mysql():
            return
        # The file shrinks, so that each repetition begins alike.
        cursor.execute("VACUUM")


def analyze() -> None:
    """Give the planner its figures, as a database in use has them."""
    with connection.cursor() as cursor:
        if not is_mysql():
            cursor.execute("ANALYZE")
            return
        # It counts for itself while rows come; told to, it does so table by table.
        for model in apps.get_app_config("workpool").get_models():
            cursor.execute(f"ANALYZE TABLE {connection.ops.quote_name(model._meta.db_table)}")
            cursor.fetchall()


def left() -> int:
    """Return how many rows of unfinished work there are."""
    return sum(model._default_manager.count() for model in QUEUES)


def running() -> int:
    """Return how many works run, or have ended and wait for the loop."""
    return RunningWork.objects.count() + PendingCompletion.objects.count()
