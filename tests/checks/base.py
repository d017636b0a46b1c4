"""What the checks share: a database of their own, processes on it, one line at the end."""

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import django
import psycopg
from psycopg import sql

from .. import mariadb
from ..postgres import own_server

#: A check that takes longer has failed.
LIMIT_SECONDS = 900


class CheckFailed(Exception):
    """Something is not as promised."""


@dataclass
class Check:
    """One run of a check."""

    vendor: str
    options: argparse.Namespace
    start: Any
    began: float = field(default_factory=time.monotonic)
    problems: list[str] = field(default_factory=list)
    #: What the verdict tells, in this order.
    figures: dict[str, object] = field(default_factory=dict)

    def expect(self, holds: object, problem: str) -> None:
        """Note a problem unless ``holds``."""
        if not holds:
            self.problems.append(problem)

    def wait(self, condition: Callable[[], object], seconds: float, what: str, poll: float = 0.1) -> None:
        """Wait until ``condition()`` is true.

        Raises:
            CheckFailed: it is not in time.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise CheckFailed(f"not after {seconds} s: {what}")
            time.sleep(poll)


def run(name: str, body: Callable[[Check], None], *, add_options: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    """Parse the command line, run ``body`` on a database of its own, print the verdict, and exit."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.checks.{name}", description=sys.modules[body.__module__].__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "mysql"], default="postgresql")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_SECONDS)
    signal.signal(signal.SIGTERM, _stop)
    with _database(options.database) as url, tempfile.TemporaryDirectory(prefix="workpool-check-") as folder:
        check = Check(options.database, options, _set_up(url, Path(folder)))
        try:
            body(check)
        except CheckFailed as failure:
            check.problems.append(str(failure))
        finally:
            for started in check.start.started:
                started.kill()
            _close()
        if check.problems:
            for started in check.start.started:
                print(f"--- {started.log.name}\n{started.output()[-3000:]}", file=sys.stderr)
    figures = " ".join(f"{key}={value}" for key, value in check.figures.items())
    verdict = "ok" if not check.problems else f"FAILED ({'; '.join(check.problems)})"
    print(f"{name} on {options.database}: {verdict} {figures} seconds={time.monotonic() - check.began:.0f}", flush=True)
    raise SystemExit(bool(check.problems))


def _too_long(number: int, frame: FrameType | None) -> None:
    raise CheckFailed(f"it takes longer than {LIMIT_SECONDS} s")


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _set_up(url: str, folder: Path) -> Any:
    os.environ.update(DATABASE_URL=url, DJANGO_SETTINGS_MODULE="tests.settings")
    django.setup()
    from django.core.management import call_command

    from ..conftest import StartMain

    call_command("migrate", run_syncdb=True, verbosity=0)
    return StartMain(url, folder)


def _close() -> None:
    from django.db import connections

    connections.close_all()


@contextmanager
def another_database(vendor: str) -> Iterator[str]:
    """Make another database beside the check's own, with the tables, and yield its DATABASE_URL; it is removed at the end."""
    from ..conftest import MANAGE

    # A PostgreSQL server is the one of the check's own database, which the environment names by now.
    with _database(vendor) as url:
        migrate = [sys.executable, str(MANAGE), "migrate", "--run-syncdb", "--verbosity", "0"]
        subprocess.run(migrate, env={**os.environ, "DATABASE_URL": url}, check=True)
        yield url


@contextmanager
def _database(vendor: str) -> Iterator[str]:
    """Make a database and yield its DATABASE_URL; it is removed at the end."""
    if vendor == "sqlite":
        folder = tempfile.mkdtemp(prefix="workpool-check-")
        try:
            yield f"sqlite:///{quote(folder)}/check.sqlite3"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if vendor == "mysql":
        with mariadb.server() as server, mariadb.own_database(server.url) as url:
            yield url
        return
    named = os.environ.get("DATABASE_URL", "")
    if named.startswith(("postgres:", "postgresql:")):
        with _on_server(named) as url:
            yield url
        return
    with own_server() as server, _on_server(server.url) as url:
        yield url


@contextmanager
def _on_server(server: str) -> Iterator[str]:
    name = f"workpool_check_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
