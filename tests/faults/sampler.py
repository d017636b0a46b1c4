"""Counts the running works all the time, on a connection of its own, and judges the counts by the limit of that moment."""

import sqlite3
import threading
import time
from dataclasses import dataclass, field

import psycopg

from .server import PostgreSQLServer, SQLiteFile

#: Seconds between two samples.
EVERY = 0.03
#: Seconds for which a limit still counts after it was changed: the iteration that has begun has read the old one.
STILL = 2.0
STATEMENT = "SELECT COUNT(*) FROM workpool_runningwork WHERE lane = 0 AND pool = 'default'"


@dataclass
class Limits:
    """The limit by time: from when (asked for), until when (what follows it was confirmed), how much."""

    #: (from, until, limit)
    spans: list[tuple[float, float, int]] = field(default_factory=list)

    def begin(self, limit: int) -> None:
        """A limit is asked for now: from now on it may hold."""
        self.spans.append((time.monotonic(), float("inf"), limit))

    def confirm(self) -> None:
        """The last one is in force: those before it end."""
        now = time.monotonic()
        self.spans[:-1] = [(begun, min(ended, now), limit) for begun, ended, limit in self.spans[:-1]]

    def most(self, at: float) -> int | None:
        """Return how many may run at a time; None if that is not known."""
        return max((limit for begun, ended, limit in self.spans if begun <= at <= ended + STILL), default=None)


class Sampler:
    """A thread that samples. A context manager."""

    def __init__(self, database: PostgreSQLServer | SQLiteFile, limits: Limits) -> None:
        self.database, self.limits = database, limits
        #: (when, how many), one for each change.
        self.samples: list[tuple[float, int]] = []
        self.count = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drill-sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join(30)

    @property
    def most(self) -> int:
        """The most that was seen."""
        return max((number for _, number in self.samples), default=0)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._sample()
            except (psycopg.Error, sqlite3.Error):
                self._end.wait(0.1)

    def _sample(self) -> None:
        connection = self._connect()
        try:
            while not self._end.wait(EVERY):
                number = int(connection.execute(STATEMENT).fetchall()[0][0])
                self.count += 1
                if not self.samples or self.samples[-1][1] != number:
                    self.samples.append((time.monotonic(), number))
        finally:
            connection.close()

    def _connect(self) -> "psycopg.Connection[tuple[int]] | sqlite3.Connection":
        if isinstance(self.database, SQLiteFile):
            return sqlite3.connect(self.database.path, timeout=20, isolation_level=None)
        return self.database.session()
