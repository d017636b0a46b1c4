"""The database of one drill: a PostgreSQL server of its own that can be made to fail, or a SQLite file. Never DATABASE_URL."""

import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg

from ..postgres import Cluster, own_cluster

#: Seconds of an outage that is called immediate: the server is down for as long as it takes to start.
CONNECT_SECONDS = 10
NAME = "drill"
#: The application name of the drill's own sessions, which are never cut, and of those on which a main's functions run.
OWN, FUNCTIONS = "drill", "main"


class Database(Protocol):
    """What every drill needs of its database."""

    vendor: str
    url: str

    def fetch(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in a session of its own, and return its rows."""


class SQLiteFile:
    """A file in a folder of its own."""

    vendor = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{quote(str(path))}"

    def fetch(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in a session of its own, and return its rows."""
        connection = sqlite3.connect(self.path, timeout=20, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


class PostgreSQLServer:
    """A server with one database: it can be restarted, be away, refuse writes as after a fail-over, and cut sessions."""

    vendor = "postgresql"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin_url = cluster.server.url
        self.url = urlunsplit(urlsplit(self.admin_url)._replace(path=f"/{NAME}"))
        #: When it was made to fail, and when that was over, by the monotonic clock.
        self.faults: list[tuple[float, float]] = []
        with self.session(self.admin_url) as session:
            session.execute(f"CREATE DATABASE {NAME}")

    @property
    def port(self) -> int:
        """The TCP port."""
        return self.cluster.port or 0

    def session(self, url: str = "") -> psycopg.Connection[Any]:
        """Return a session of its own, which writes even while the server is read-only."""
        session = psycopg.connect(url or self.url, autocommit=True, connect_timeout=CONNECT_SECONDS, application_name=OWN)
        session.execute("SET default_transaction_read_only = off")
        return session

    def fetch(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in a session of its own, and return its rows."""
        with self.session() as session:
            cursor = session.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _fault(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.faults.append((began, time.monotonic()))

    def restart(self, away: float = 0.0) -> None:
        """Stop it at once (a crash), leave it away for some seconds, and start it again."""
        with self._fault():
            self.cluster.stop(signal.SIGQUIT)
            time.sleep(away)
            self.cluster.start()

    def cut(self, names: str = "%", share: float = 1.0) -> int:
        """Cut the sessions whose application name is like ``names``, or a random share of them; return how many."""
        statement = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            f"WHERE datname = '{NAME}' AND application_name <> '{OWN}' AND application_name LIKE %s AND random() < %s"
        )
        with self._fault(), self.session(self.admin_url) as session:
            row = session.execute(statement, [names, share]).fetchone()
        return int(row[0]) if row else 0

    def set_read_only(self, value: bool) -> None:
        """Refuse writes as a server does that is no longer the primary, or take them again; all sessions are cut."""
        with self._fault(), self.session(self.admin_url) as session:
            session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if value else 'off'}")
            session.execute("SELECT pg_reload_conf()")
            # A session begun before the reload has the old value.
            time.sleep(0.1)
        self.cut()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Be read-only for a while."""
        self.set_read_only(True)
        try:
            yield
        finally:
            self.set_read_only(False)


@contextmanager
def own_database(vendor: str, options: Sequence[tuple[str, str]] = ()) -> Iterator[PostgreSQLServer | SQLiteFile]:
    """Make a database, and remove it at the end."""
    if vendor == "sqlite":
        with tempfile.TemporaryDirectory(prefix="workpool-drill-") as folder:
            yield SQLiteFile(Path(folder, "drill.sqlite3"))
        return
    with own_cluster(dict(options)) as cluster:
        yield PostgreSQLServer(cluster)
