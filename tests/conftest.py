"""What all tests share: the test database as a real one, and ``workpool_main`` as a real process on it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# Slow generation and slow examples tell of a busy machine.
hypothesis_settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("busy")

ROOT = Path(__file__).parents[1]
MANAGE = ROOT / "testproject" / "manage.py"
#: Set by ``python -m tests``: where the server is from.
ORIGIN_VARIABLE = "WORKPOOL_TEST_ORIGIN"
#: Set by ``python -m tests``, too: marks whose tests are left out, or to the run on the other database.
LEFT_VARIABLE = "WORKPOOL_TEST_LEFT"
#: Files that take longest, first: whoever comes last is waited for by both cores. The two first take all cores there are: not at once.
LONG = (
    *("simulation", "databases", "faults_drills", "health_live", "signals", "faults", "cancel_running", "testing_projects", "health_file"),
    *("batches_live", "processes", "stops_combined", "quickstart", "demo", "bench", "deploys", "periodic_live", "timeouts_live", "typing"),
)
#: A started ``workpool_main`` that does not end by then is killed.
KILL_SECONDS = 10
#: How the names of files begin whose tests are about statements, which each database gets in its own words.
ASKING = (
    *("rooms_", "state_", "plans", "pulse", "statements", "keys", "batches", "requeue", "periodic"),
    *("cases_enqueue", "tallies", "admin_lists"),
)
#: Empties tables after a test. TRUNCATE makes new files for each of fifty, which takes longer than most tests; where one has grown, or is
#: known to the planner, it is done all the same: the next test is to find them as new.
FLUSH = """
DO $$
DECLARE one text; filled boolean; every regclass[] := ARRAY[{tables}];
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = ANY(every) AND (reltuples >= 0 OR pg_relation_size(oid) > 1000000)) THEN
        TRUNCATE {names};
    ELSE
        FOREACH one IN ARRAY every LOOP
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', one) INTO filled;
            IF filled THEN EXECUTE format('DELETE FROM %s', one); END IF;
        END LOOP;
    END IF;
END $$
"""


@pytest.fixture(scope="session", autouse=True)
def flush_quickly() -> Iterator[None]:
    """Let Django's flush do that on PostgreSQL."""
    if connection.vendor != "postgresql":
        yield
        return

    def sql_flush(self: Any, style: Any, tables: list[str], *, reset_sequences: bool = False, allow_cascade: bool = False) -> list[str]:
        names = [self.quote_name(table) for table in tables]
        return [FLUSH.format(names=", ".join(names), tables=", ".join(f"'{name}'" for name in names))] if tables else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(connection.ops), "sql_flush", sql_flush)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what starts processes and what asks nothing of its own, leave out what another run shows, put the longest files first."""
    for item in items:
        # Another process finds the test database by its address.
        if "test_database_url" in getattr(item, "fixturenames", ()):
            item.add_marker("processes")
        elif not item.path.stem.removeprefix("test_").startswith(ASKING):
            item.add_marker("alike")
    marks = os.environ.get(LEFT_VARIABLE, "").split()
    left = {item for item in items if any(item.get_closest_marker(mark) for mark in marks)}
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    places = {f"test_{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))


def pytest_report_header() -> str:
    """Name the database and its version."""
    origin = os.environ.get(ORIGIN_VARIABLE, "")
    # MariaDB's and MySQL's name is asked of the server, and connecting is blocked outside of tests: their version tells it.
    name = "" if connection.vendor == "mysql" else f"{connection.display_name} "
    return f"database: {name}{_version()}" + (f" ({origin})" if origin else "")


def _version() -> str:
    if connection.vendor == "sqlite":
        return str(connection.Database.sqlite_version)
    if connection.vendor == "mysql":
        return _mysql_version()
    try:
        # Not through Django: the test database does not exist yet, and connecting is blocked outside of tests.
        with connection.Database.connect(**{**connection.get_connection_params(), "dbname": "postgres"}) as raw:
            return str(raw.execute("SHOW server_version").fetchone()[0]).split()[0]
    except connection.Database.Error as error:
        return f"of unknown version: {error}"


def _mysql_version() -> str:
    parameters = {name: value for name, value in connection.get_connection_params().items() if name != "database"}
    try:
        raw = connection.Database.connect(**parameters)
    except connection.Database.Error as error:
        return f"MariaDB or MySQL of unknown version: {error}"
    try:
        with raw.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            version = str(cursor.fetchone()[0])
            return version if "MariaDB" in version else f"MySQL {version}"
    finally:
        raw.close()


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> Iterator[None]:
    """Put SQLite's test database into a file, so that threads and other processes can open it; give each process of pytest its own."""
    if connection.vendor != "sqlite":
        if worker := os.environ.get("PYTEST_XDIST_WORKER"):
            connection.settings_dict["TEST"]["NAME"] = f"test_{connection.settings_dict['NAME']}_{worker}"
        yield
        return
    with tempfile.TemporaryDirectory(prefix="workpool-tests-") as folder:
        connection.settings_dict["TEST"]["NAME"] = str(Path(folder, "test.sqlite3"))
        yield


@pytest.fixture(scope="session")
def test_database_url(django_db_setup: None) -> str:
    """Return the DATABASE_URL of the test database, for other processes."""
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{quote(str(settings['NAME']))}"
    user, password = (quote(str(settings[key]), safe="") for key in ("USER", "PASSWORD"))
    scheme = "mysql" if connection.vendor == "mysql" else "postgres"
    place = f"{settings['HOST']}:{settings['PORT']}" if settings["PORT"] else settings["HOST"]
    if settings["HOST"].startswith("/"):
        # A folder of sockets goes into the path, the port does not fit there and comes as an option.
        port = f"?port={settings['PORT']}" if settings["PORT"] else ""
        return f"postgres://{user}:{password}@/{quote(settings['HOST'])}/{quote(str(settings['NAME']))}{port}"
    return f"{scheme}://{user}:{password}@{place}/{quote(str(settings['NAME']))}"


@dataclass
class MainProcess:
    """A started ``manage.py workpool_main`` (or another command) and the file with all that it prints."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def output(self) -> str:
        """Return what it has printed so far."""
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        """Wait until it ends and return its exit code; fail with its output if it does not end in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.process.args!r} has not ended after {seconds} s:\n{self.output()}")

    def wait_for(self, text: str, seconds: float) -> None:
        """Wait until it has printed ``text``; fail with its output if it does not in time, or ends before."""
        deadline = time.monotonic() + seconds
        while text not in self.output():
            ended = self.process.poll() is not None
            if (ended or time.monotonic() > deadline) and text not in self.output():
                pytest.fail(f"{self.process.args!r} has not printed {text!r} ({ended=}):\n{self.output()}")
            time.sleep(0.02)

    def terminate(self) -> None:
        """Send SIGTERM: it is to shut down in order."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to it and to all that it has started, and wait for its end."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(KILL_SECONDS)


class StartMain:
    """Starts ``manage.py COMMAND ARGUMENTS`` on the test database, with variables added to the environment."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self.database_url = database_url
        self.folder = folder
        self.started: list[MainProcess] = []

    def __call__(self, *arguments: str, env: dict[str, str] | None = None, command: str = "workpool_main") -> MainProcess:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONUNBUFFERED": "1",
            "DATABASE_URL": self.database_url,
            **(env or {}),
        }
        log = self.folder / f"{command}-{len(self.started) + 1}.log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(MANAGE), command, *arguments],
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = MainProcess(process, log)
        self.started.append(started)
        return started


@pytest.fixture
def main_process(transactional_db: None, test_database_url: str, tmp_path: Path) -> Iterator[StartMain]:
    """Return a function that starts ``workpool_main`` with the given arguments; what still runs at the end is killed."""
    start = StartMain(test_database_url, tmp_path)
    yield start
    for started in start.started:
        started.kill()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Return a function that waits, for at most ``seconds``, until ``condition()`` is true."""

    def wait(condition: Callable[[], object], seconds: float = 20, poll: float = 0.02) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not true within {seconds} s: {condition}")
            time.sleep(poll)

    return wait
