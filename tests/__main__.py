"""``python -m tests [pytest's arguments]``: run the suite on SQLite and, at the same time, on PostgreSQL.

Most of its tests wait for processes: together the two take little longer than one. What shows nothing that depends on the database (the
mark ``anywhere``) is in SQLite's only. What SQLite's says is shown as it comes, what PostgreSQL's says after it. PostgreSQL is the one that
DATABASE_URL names, else a server of the run's own (see ``postgres.py``).

What takes three seconds or more (the mark ``slow``) is left out, unless files or tests are named: ``--all`` runs it, too.

``--brief`` runs what starts processes (the mark ``processes``) on PostgreSQL only, and of the rest only what asks the database in words of
its own on both: for a further Python or Django, after both databases with another one.

``--mariadb`` runs it on MariaDB alone: the server that WORKPOOL_TEST_MARIADB names, or that is offered on this machine, else one of the
run's own (see ``mariadb.py``). Where there is none it says so, and fails if REQUIRE_ALL is 1.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO
from urllib.parse import quote

import psycopg

from . import mariadb
from .postgres import ServerError, end_process, own_server

#: What ``conftest.py`` says about the database, beside its version.
ORIGIN_VARIABLE = "WORKPOOL_TEST_ORIGIN"
#: Runs the suite on MariaDB instead of on the two others.
ALONE = "--mariadb"
#: Runs what starts processes on one database only.
BRIEF = "--brief"
#: Runs what takes long, too.
ALL = "--all"
#: What ``conftest.py`` leaves out: tests with one of these marks.
LEFT_VARIABLE = "WORKPOOL_TEST_LEFT"
#: What pytest says if it has run no test: those that were asked for may all be left to the other run.
NO_TESTS = 5
#: Processes among which each run deals its files, in the order of ``conftest.py``: most tests wait for processes of their own.
SPREAD = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
#: The same where the other run has little to do.
MORE = ("--numprocesses", "3")
#: How long pytest may take to end its tests' processes after an interrupt.
INTERRUPT_SECONDS = 30

_running: "set[subprocess.Popen[bytes]]" = set()


@dataclass(frozen=True)
class Verdict:
    """How one run of the suite ended."""

    database: str
    returncode: int
    seconds: float

    def __str__(self) -> str:
        word = "passed" if self.returncode == 0 else "no tests" if self.returncode == NO_TESTS else f"FAILED (exit {self.returncode})"
        return f"{self.database}: {word} in {self.seconds:.0f} s"


def main(arguments: list[str]) -> int:
    """Run both suites, print one line with both verdicts, and return the exit code."""
    signal.signal(signal.SIGTERM, _exit)
    # A shell lets what it starts in the background ignore interrupts; the tests, and what they start, are to hear them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own, arguments = {ALONE, BRIEF, ALL}.intersection(arguments), [one for one in arguments if one not in (ALONE, BRIEF, ALL)]
    slow = "" if ALL in own or any(Path(one.partition("::")[0]).exists() for one in arguments) else "slow "
    if ALONE in own:
        return _run_on_mariadb(arguments, slow)
    on_sqlite, on_postgresql, more = ("processes", "anywhere alike", MORE) if BRIEF in own else ("", "anywhere", ())
    with tempfile.TemporaryFile() as later, ThreadPoolExecutor(1) as beside:
        postgresql = beside.submit(_run_on_postgresql, [*more, *arguments], slow + on_postgresql, later)
        try:
            verdicts = [_run_on_sqlite(arguments, slow + on_sqlite)]
            verdicts.append(postgresql.result())
        finally:
            # Whatever ended this one ends the other, too: its pytest gets the interrupt, its server is stopped.
            for process in list(_running):
                _interrupt(process)
            with suppress(BaseException):
                postgresql.result()
            later.seek(0)
            sys.stdout.flush()
            shutil.copyfileobj(later, sys.stdout.buffer)
            sys.stdout.flush()
    print(f"\n{'; '.join(map(str, verdicts))}", flush=True)
    codes = {abs(verdict.returncode) for verdict in verdicts}
    return max(codes if codes == {NO_TESTS} else codes - {NO_TESTS})


def _run_on_mariadb(arguments: list[str], left: str) -> int:
    try:
        with mariadb.server() as server:
            verdict = _run(f"MariaDB {mariadb.version(server.url)} ({server.origin})", server.url, server.origin, arguments, left, None)
    except ServerError as error:
        required = os.environ.get("REQUIRE_ALL") == "1"
        print(f"\nMariaDB: {'FAILED' if required else 'skipped'}: {error}", flush=True)
        return int(required)
    print(f"\n{verdict}", flush=True)
    return abs(verdict.returncode)


def _exit(number: int, frame: FrameType | None) -> None:
    # Unwinds through the context managers that stop the server and the running suite.
    raise SystemExit(128 + number)


def _run_on_sqlite(arguments: list[str], left: str) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="workpool-sqlite-") as folder:
        url = f"sqlite:///{quote(str(Path(folder, 'db.sqlite3')))}"
        return _run(f"SQLite {sqlite3.sqlite_version}", url, "", arguments, left, None)


def _run_on_postgresql(arguments: list[str], left: str, output: IO[bytes]) -> Verdict:
    try:
        with _postgresql() as (url, origin):
            return _run(f"PostgreSQL {_server_version(url)} ({origin})", url, origin, arguments, left, output)
    except ServerError as error:
        print(f"\n{error}", file=sys.stderr, flush=True)
        return Verdict("PostgreSQL (no server)", 1, 0)


@contextmanager
def _postgresql() -> Iterator[tuple[str, str]]:
    url = os.environ.get("DATABASE_URL", "")
    if url.startswith(("postgres:", "postgresql:", "psql:", "pgsql:")):
        scheme, rest = url.split(":", 1)
        yield f"postgresql:{rest}", "named by DATABASE_URL"
        return
    with own_server() as server:
        yield server.url, server.origin


def _server_version(url: str) -> str:
    try:
        with psycopg.connect(url, connect_timeout=30) as connection:
            row = connection.execute("SHOW server_version").fetchone()
    except psycopg.Error as error:
        # The database itself need not exist: the tests make one of their own beside it.
        return f"of unknown version: {str(error).strip()}"
    return str(row[0]).split()[0] if row else ""


def _run(database: str, url: str, origin: str, arguments: list[str], left: str, output: IO[bytes] | None) -> Verdict:
    heading = f"\n### {database}\n"
    if output is None:
        print(heading, end="", flush=True)
    else:
        output.write(heading.encode())
        output.flush()
    started = time.monotonic()
    environment = {**os.environ, "DATABASE_URL": url, ORIGIN_VARIABLE: origin, LEFT_VARIABLE: left}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *SPREAD, *arguments],
        env=environment,
        cwd=Path(__file__).parents[1],
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
    )
    _running.add(process)
    try:
        returncode = process.wait()
    finally:
        _interrupt(process)
        _running.discard(process)
    return Verdict(database, returncode, time.monotonic() - started)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    # An interrupt lets pytest tear down its fixtures, which end the processes that tests have started.
    end_process(process, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL), INTERRUPT_SECONDS)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
