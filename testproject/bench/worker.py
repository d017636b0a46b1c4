"""Worker processes of a bench: ``manage.py workpool_main``, started, watched, measured and ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from . import best, statements, tasks

#: What SIGTERM gets to end a process in order.
END_SECONDS = 10
TAIL_LINES = 12


class WorkerFailed(Exception):
    """A worker process has ended by itself; the text has its last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How worker processes are started."""

    limit: int = best.LIMIT
    threads: int = best.THREADS
    processes: int = 1
    options: tuple[str, ...] = best.OPTIONS
    #: Keep finished work for a day, as the default is, instead of not at all.
    retention_day: bool = False
    pools: int = 1

    def but(self, **changes: Any) -> "Setup":
        """Return the same with changes."""
        return replace(self, **changes)


class Workers:
    """Started worker processes; a context manager that leaves none behind."""

    def __init__(self, setup: Setup, database: str, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self._command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "workpool_main", "--threads", str(setup.threads)]
        self._command += setup.options
        self._environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "testproject.bench.bench_settings",
            "BENCH_DATABASE": database,
            "BENCH_LIMIT": str(setup.limit),
            "BENCH_RETENTION_DAY": str(setup.retention_day),
            "BENCH_POOLS": str(setup.pools),
            tasks.VARIABLE: str(folder / "stamps"),
        }
        self._number = setup.processes

    def __enter__(self) -> "Workers":
        try:
            for _ in range(self._number):
                self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def count_statements(self) -> Path:
        """Have processes that are started later count their statements, and return the file that grows with them."""
        path = self.folder / "statements"
        path.write_bytes(b"")
        self._environment[statements.VARIABLE] = str(path)
        return path

    def start(self) -> None:
        """Start one more, as the leader of a session: so Ctrl-C reaches this process alone, and nothing of it can be missed."""
        with open(self.folder / "worker.log", "ab") as log, _undisturbed():
            process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            self.processes.append(process)

    @property
    def sessions(self) -> list[int]:
        """The sessions of all of them."""
        return [process.pid for process in self.processes]

    def check(self) -> None:
        """Raise WorkerFailed if one has ended."""
        for process in self.processes:
            if process.poll() is not None:
                lines = (self.folder / "worker.log").read_text(errors="replace").splitlines()[-TAIL_LINES:]
                raise WorkerFailed("\n    ".join([f"workpool_main has ended with exit code {process.returncode}:", *lines]))

    def kill(self, pid: int) -> None:
        """Kill one of them with all that it has started, and wait for its end."""
        process = next(one for one in self.processes if one.pid == pid)
        os.killpg(pid, signal.SIGKILL)
        process.wait()
        self.processes.remove(process)

    def stop(self) -> None:
        """End all: in order if that can be done, then by force."""
        _signal(self.processes, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        try:
            for process in self.processes:
                process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            pass
        finally:
            _signal(self.processes, signal.SIGKILL)
            for process in self.processes:
                process.wait()
            self.processes.clear()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep what ends this process back until the end of the block: a child that has just been started would be known to nobody.

    They are not blocked, as the child would inherit that.
    """
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _signal(processes: Sequence["subprocess.Popen[bytes]"], number: signal.Signals) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)
