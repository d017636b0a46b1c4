"""What is measured: stamps, percentiles, processor time and memory of processes, the server's own counters."""

import importlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connection

from .models import Inserted
from .tasks import STAMP

Figures = dict[str, float | int | str | None]

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stamp:
    """One execution."""

    number: int
    began: float


def read_stamps(path: Path) -> list[Stamp]:
    """Return all executions in the order of their stamps."""
    written = path.read_bytes()
    return [Stamp(*STAMP.unpack_from(written, at)) for at in range(0, len(written) - STAMP.size + 1, STAMP.size)]


def count_stamps(path: Path) -> int:
    """Return how many executions there were."""
    return path.stat().st_size // STAMP.size


def execution_problems(stamps: Iterable[Stamp], n: int, runs: int = 1) -> list[str]:
    """Return what is wrong if works 0 to ``n`` - 1 were to run, each ``runs`` times: an empty list if nothing is."""
    counts = Counter(stamp.number for stamp in stamps)
    return _problems("executions", counts, n, runs)


def row_problems(n: int) -> list[str]:
    """Return what is wrong if works 0 to ``n`` - 1 were to insert a row each."""
    return _problems("rows", Counter(Inserted.objects.values_list("number", flat=True)), n, 1)


def _problems(what: str, counts: Counter[int], n: int, each: int) -> list[str]:
    few = sum(1 for number in range(n) if counts[number] < each)
    many = sum(1 for number in range(n) if counts[number] > each)
    strange = sum(1 for number in counts if not 0 <= number < n)
    told = [(few, f"too few {what}"), (many, f"too many {what}"), (strange, f"{what} that nobody asked for")]
    return [f"{text}: of {number} works" for number, text in told if number]


def milliseconds(seconds: Sequence[float]) -> Figures:
    """Return percentiles."""
    ordered = sorted(seconds)

    def at(share: float) -> float | None:
        return round(ordered[max(math.ceil(len(ordered) * share) - 1, 0)] * 1000, 1) if ordered else None

    return {"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99), "max_ms": at(1)}


def per_second(n: int, seconds: float) -> float:
    """Return a rate, to three digits or more."""
    rate = n / max(seconds, 1e-9)
    return round(rate) if rate >= 100 else round(rate, 2)


def ratio(value: float | str | None, other: float | str | None) -> float | None:
    """Return ``value`` / ``other``; None where that says nothing."""
    return round(float(value) / float(other), 2) if value is not None and other else None


def cpu_seconds(sessions: Iterable[int]) -> float | None:
    """Return the processor time so far of all processes of the sessions; None where it cannot be seen."""
    if (PROC / "self" / "stat").exists():
        ticks = sum(sum(map(int, fields[11:15])) for fields in _members(sessions))
        return ticks / os.sysconf("SC_CLK_TCK")
    return _with_psutil(sessions, lambda process: sum(process.cpu_times()[:2]))


def server_cpu_seconds() -> float | None:
    """Return the processor time so far of the other sessions of this database; None where it cannot be seen (SQLite, another host)."""
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        pids = [str(pid) for (pid,) in cursor.fetchall()]
    ticks = 0
    for pid in pids:
        try:
            name, _, fields = (PROC / pid / "stat").read_text().rpartition(")")
        except OSError:
            return None
        if "postgres" not in name:
            return None
        ticks += sum(map(int, fields.split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(sessions: Iterable[int]) -> float | None:
    """Return the memory of all processes of the sessions, in MB; None where it cannot be seen."""
    if (PROC / "self" / "stat").exists():
        pages = sum(int(fields[21]) for fields in _members(sessions))
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    found = _with_psutil(sessions, lambda process: process.memory_info().rss)
    return None if found is None else round(found / 2**20, 1)


def _members(sessions: Iterable[int]) -> Iterator[list[str]]:
    """Yield what /proc/PID/stat has after the name, of each process of the sessions."""
    wanted = {str(session) for session in sessions}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] in wanted:
            yield fields


def _with_psutil(sessions: Iterable[int], read: Any) -> float | None:
    try:
        psutil: Any = importlib.import_module("psutil")
    except ImportError:
        return None
    total = 0.0
    for session in sessions:
        try:
            leader = psutil.Process(session)
            total += sum(read(process) for process in (leader, *leader.children(recursive=True)))
        except psutil.Error:
            continue
    return total


def wal_bytes() -> int:
    """Return how many bytes of write-ahead log the server has written (PostgreSQL)."""
    return int(_value("SELECT pg_current_wal_lsn() - '0/0'"))


def transactions() -> int | None:
    """Return how many transactions were committed in this database; None where the database does not count them."""
    if connection.vendor != "postgresql":
        return None
    return int(_value("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))


def _value(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]
