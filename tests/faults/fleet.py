"""The processes of one drill: mains that are started, stopped, woken, told to end and killed, and what was done to them, by time."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from ..conftest import ROOT, MainProcess, StartMain
from .journal import FOLDER_VARIABLE
from .server import FUNCTIONS

SETTINGS = "tests.faults.settings"
START_SECONDS = 60
#: Seconds of grace that a main gets which is told to end, and what it may take beyond that.
GRACE, BEYOND = 5, 10
#: Seconds in which a leader looks at the fleet, where no hint tells it to.
SEEN = 1.2
_EVENT = re.compile(r"^(\S+ \S+) \w+ django_workpool\.events event=(\w+) (.*)$", re.MULTILINE)
_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What was done to a process: "killed", "told" (to end), "stopped" or "cut off", from when to when by the monotonic clock."""

    what: str
    pid: int
    at: float
    until: float = float("inf")
    #: Of a child alone: the main that has it.
    main: int = 0


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One line of a main's log: which main, when (seconds since 1970), what, and its fields as text."""

    main: int
    at: float
    event: str
    fields: dict[str, str]


@dataclass
class Main:
    """One ``workpool_main``."""

    number: int
    arguments: tuple[str, ...]
    started: MainProcess
    disturbances: list[Disturbance]
    #: Whether its end is expected: it was killed or told to end.
    expected_to_end: bool = False
    began: float = field(default_factory=time.monotonic)
    #: While it is stopped: since when, and which processes are.
    _stopped: tuple[float, list[int]] | None = None

    @property
    def pid(self) -> int:
        """The process."""
        return self.started.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.started.process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped by SIGSTOP."""
        return self._stopped is not None

    def output(self) -> str:
        """Return what it has printed."""
        return self.started.output()

    def events(self) -> list[LogEvent]:
        """Return the events of its log."""
        return [
            LogEvent(self.number, _moment(at), name, {key: value.strip('"') for key, value in _FIELD.findall(rest)})
            for at, name, rest in _EVENT.findall(self.output())
        ]

    def children(self) -> list[int]:
        """Return its child processes, and theirs."""
        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]
        return []

    def rss(self) -> int:
        """Return the bytes of memory that it has."""
        with suppress(psutil.NoSuchProcess):
            return int(psutil.Process(self.pid).memory_info().rss)
        return 0

    def _note(self, what: str, pids: Sequence[int], at: float, until: float = float("inf")) -> None:
        self.disturbances.extend(Disturbance(what, pid, at, until) for pid in pids)

    def kill(self) -> float:
        """Kill -9, without its children (they are to end with it); return when."""
        self.expected_to_end, now = True, time.monotonic()
        self._note("killed", [self.pid, *self.children()], now)
        self.started.process.kill()
        self.started.process.wait()
        return now

    def kill_child(self, pick: Callable[[Sequence[int]], int] = min) -> int | None:
        """Kill -9 one of its children; return which."""
        children = self.children()
        if not children:
            return None
        child = pick(children)
        self.disturbances.append(Disturbance("killed", child, time.monotonic(), main=self.pid))
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        return child

    def stop(self, *, with_children: bool = False) -> None:
        """SIGSTOP."""
        pids = [self.pid, *(self.children() if with_children else [])]
        self._stopped = (time.monotonic(), pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        if self._stopped is None:
            return
        since, pids = self._stopped
        self._stopped = None
        self._note("stopped", pids, since, time.monotonic())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def tell_to_end(self) -> float:
        """SIGTERM; return when."""
        now = time.monotonic()
        if not self.expected_to_end:
            self._note("told", [self.pid, *self.children()], now)
        self.expected_to_end = True
        self.started.terminate()
        return now

    def wait(self, seconds: float = GRACE + BEYOND) -> int | None:
        """Wait until it ends; return its exit code, or None if it does not end in time."""
        try:
            return self.started.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def _moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()


class Fleet:
    """All mains of a drill, living and dead, and its load."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.mains: list[Main] = []
        self.disturbances: list[Disturbance] = []
        self._start = StartMain(url, folder)
        self._loads: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, env: dict[str, str] | None = None, url: str = "") -> Main:
        """Start a main with these arguments; it leads and runs functions when it gets there."""
        environment = {
            "DJANGO_SETTINGS_MODULE": SETTINGS,
            "WORKPOOL_LOG_LEVEL": "INFO",
            "TZ": "UTC",
            "PGAPPNAME": FUNCTIONS,
            FOLDER_VARIABLE: str(self.folder),
            **({"DATABASE_URL": url} if url else {}),
            **(env or {}),
        }
        if "--grace" not in arguments:
            arguments = (*arguments, "--grace", str(GRACE))
        main = Main(len(self.mains) + 1, arguments, self._start(*arguments, env=environment), self.disturbances)
        self.mains.append(main)
        return main

    def start_many(self, number: int, *arguments: str, env: dict[str, str] | None = None) -> list[Main]:
        """Start mains and wait until all of them have begun, and the leader has seen them."""
        begun = [self.start(*arguments, env=env) for _ in range(number)]
        for main in begun:
            self.wait_for(main, "process_started")
        if begun:
            time.sleep(SEEN)
        return begun

    def wait_for(self, main: Main, text: str, seconds: float = START_SECONDS) -> None:
        """Wait until a main has printed ``text``.

        Raises:
            TimeoutError: it has not in time, or has ended before.
        """
        deadline = time.monotonic() + seconds
        while text not in main.output():
            if time.monotonic() > deadline or not main.is_alive:
                raise TimeoutError(f"main {main.number} has not printed {text!r} (alive: {main.is_alive}):\n{main.output()[-2000:]}")
            time.sleep(0.02)

    @property
    def alive(self) -> list[Main]:
        """The mains that live and are not stopped."""
        return [main for main in self.mains if main.is_alive and not main.is_stopped]

    def find(self, pid: int) -> Main | None:
        """Return the living main of a process."""
        return next((main for main in self.mains if main.pid == pid and main.is_alive), None)

    def was_killed_by_a_work(self, main: Main) -> bool:
        """Return whether a work has killed the process that ran it, and with it a main."""
        journal = self.folder / f"journal-{main.pid}"
        return main.started.process.poll() == -signal.SIGKILL and journal.exists() and '"dying"' in journal.read_text()

    def ended_by_themselves(self) -> list[str]:
        """Return the mains that have ended without being told or killed, by us or by a work."""
        return [
            f"main {main.number} ended by itself with {main.started.process.returncode}"
            for main in self.mains
            if not main.is_alive and not main.expected_to_end and not self.was_killed_by_a_work(main)
        ]

    def events(self) -> list[LogEvent]:
        """Return the events of all logs, by time."""
        return sorted((event for main in self.mains for event in main.events()), key=lambda one: one.at)

    def load(self, path: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a process that enqueues."""
        environment = {**os.environ, "DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": SETTINGS, "PGAPPNAME": "load"}
        with open(self.folder / f"load-{len(self._loads) + 1}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.load", str(path), *arguments], env=environment, cwd=ROOT, stdout=log, stderr=log
            )
        self._loads.append(process)
        return process

    def end_loads(self) -> None:
        """End what enqueues."""
        for process in self._loads:
            if process.poll() is None:
                process.terminate()
                process.wait(30)

    def end_all(self) -> None:
        """Kill whatever still runs."""
        for load in self._loads:
            load.kill()
        for main in self.mains:
            main.go_on()
            main.started.kill()
