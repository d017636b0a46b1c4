"""SQLite's files: flocks beside the database tell who leads and lives, its change counter that there is something to see."""

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from .base import Database
from .forks import keep_from_children
from .watch import DatabaseReplaced, Hint, Watch

#: How often a process looks for changes: up to so many seconds after the last one, every so many; later every POLL_IDLE.
POLLS = ((5.0, 0.005), (60.0, 0.05))
POLL_IDLE = 0.1

#: Asked first while a process starts, and remembered: functions may change the working directory.
_absolute: Callable[[str], str] = cache(os.path.abspath)
_real: Callable[[str], str] = cache(os.path.realpath)


def database_file(database: Database) -> str | None:
    """Return the name of the database's file as it is in the settings, made absolute; None if it has none."""
    name = str(database.connection.settings_dict["NAME"])
    if ":memory:" in name or "mode=memory" in name:
        return None
    return _absolute(name.removeprefix("file:").partition("?")[0])


def lock_path(database: Database, name: str) -> str | None:
    """Return the path of a lock. It is beside the file itself: those who come to it by other names or links must meet there."""
    path = database_file(database)
    return None if path is None else f"{_real(path)}-workpool-{name}"


def _identity(database: Database) -> tuple[int, int] | None:
    """Return what tells the file from another one that is put in its place; None if there is none."""
    path = database_file(database)
    try:
        found = None if path is None else os.stat(path)
    except FileNotFoundError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def flock(path: str) -> int | None:
    """Open ``path`` and lock it; return its descriptor, or None if somebody else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class SQLiteWatch(Watch):
    """A flock a worker, and a look at the file's change counter every few milliseconds."""

    database: Database

    def __init__(self, database: Database) -> None:
        self.database = database
        database.private_connection("watch")
        self.files: dict[int, int] = {}
        self.version: int | None = None
        self.changed = time.monotonic()
        self.begun_with = _identity(database)
        keep_from_children(self, lambda watch: list(watch.files.values()))

    def hold(self, worker_id: int) -> bool:
        self._look_at_file()
        path = lock_path(self.database, f"worker-{worker_id}")
        if path is None or worker_id in self.files:
            return True
        descriptor = flock(path)
        if descriptor is not None:
            self.files[worker_id] = descriptor
        return descriptor is not None

    def held(self) -> set[int] | None:
        prefix = lock_path(self.database, "worker-")
        if prefix is None:
            return set(self.files)
        folder, start = os.path.split(prefix)
        names = [name for name in os.listdir(folder or ".") if name.startswith(start)]
        workers = {int(name[len(start) :]) for name in names if name[len(start) :].isdigit()}
        return {worker for worker in workers if worker in self.files or self._is_held(f"{prefix}{worker}")}

    @staticmethod
    def _is_held(path: str) -> bool:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared: two observers do not take each other for the owner.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)

    def wait(self, timeout: float) -> list[Hint]:
        end = time.monotonic() + timeout
        while True:
            version = self._version()
            now = time.monotonic()
            if version != self.version:
                self.version, self.changed = version, now
                return [Hint("changed")]
            if now >= end:
                return []
            every = next((every for until, every in POLLS if now - self.changed < until), POLL_IDLE)
            time.sleep(min(end - now, every))

    def _look_at_file(self) -> None:
        """See that all of this process still use what others find under the database's name."""
        if self.begun_with is not None and _identity(self.database) != self.begun_with:
            raise DatabaseReplaced(f"the file {database_file(self.database)} was replaced or removed")

    def _version(self) -> int:
        """Return the file's change counter; asked so often that Django's cursor would be most of it."""
        connection: Any = self.database.connection
        connection.ensure_connection()
        with connection.wrap_database_errors:
            return int(connection.connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()
        with suppress(Exception):
            self.database.connection.close()
