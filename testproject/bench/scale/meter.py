"""Counts what a few calls cost: processor time of this thread and of sessions in the server, time that passes, write-ahead log."""

import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

from django.db import connection

from testproject.bench.measure import PROC, wal_bytes


class NotHere(Exception):
    """The server's processor time cannot be seen; the text says why."""


def backend(using: Any = connection) -> int:
    """Return the number of the server's process behind one of Django's connections."""
    using.ensure_connection()
    return int(using.connection.info.backend_pid)


def server_ns(pids: Iterable[int]) -> int:
    """Return the processor time so far of some of the server's processes, in nanoseconds.

    Raises:
        NotHere: they are not on this host, or it does not tell.
    """
    total = 0
    for pid in pids:
        told = ""
        with suppress(OSError):
            if "postgres" in (PROC / str(pid) / "comm").read_text():
                told = (PROC / str(pid) / "schedstat").read_text()
        if not told:
            raise NotHere("The server's processor time cannot be seen: it is to run on this host, and this host is to be Linux.")
        total += int(told.split()[0])
    return total


@dataclass(slots=True)
class Cost:
    """What was counted so far: microseconds, and bytes."""

    python: float = 0.0
    server: float = 0.0
    passed: float = 0.0
    wal: float = 0.0


FIELDS = tuple(field.name for field in fields(Cost))


class Meter:
    """Counts what happens inside of each ``with``: ``each`` divides the sum of all, ``typical`` is the median of them.

    Args:
        pids: The sessions that are counted; those of the default connection if there are none.
        wal: Whether the write-ahead log is counted too: that is a statement more.
    """

    def __init__(self, pids: Iterable[int] = (), *, wal: bool = False) -> None:
        self.pids = tuple(pids)
        self.wal = wal
        self.costs: list[Cost] = []
        self._before = Cost()

    def _now(self, *, ends: bool) -> Cost:
        now = Cost(python=time.thread_time_ns() / 1000, passed=time.perf_counter_ns() / 1000)
        now.server = server_ns(self.pids or (backend(),)) / 1000
        if not ends:
            now.python, now.passed = time.thread_time_ns() / 1000, time.perf_counter_ns() / 1000
        return now

    def __enter__(self) -> "Meter":
        wal = wal_bytes() if self.wal else 0
        self._before = self._now(ends=False)
        self._before.wal = wal
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        now, before = self._now(ends=True), self._before
        now.wal = wal_bytes() if self.wal else 0
        self.costs.append(Cost(*(getattr(now, name) - getattr(before, name) for name in FIELDS)))

    def each(self, n: int) -> Cost:
        """Return the cost of each of ``n``."""
        return Cost(*(sum(getattr(one, name) for one in self.costs) / n for name in FIELDS))

    def typical(self) -> Cost:
        """Return the median of each figure: other load on this host makes some of them larger than they are."""
        return Cost(*(statistics.median(getattr(one, name) for one in self.costs) for name in FIELDS))


def line(few: int, cost_of_few: float, many: int, cost_of_many: float) -> tuple[float, float]:
    """Return what is fixed and what each item costs, from the costs of a call with few and of one with many items."""
    slope = max(0.0, (cost_of_many - cost_of_few) / (many - few))
    return max(0.0, cost_of_few - few * slope), slope
