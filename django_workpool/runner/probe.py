"""A small file that is fresh only while its process is well: what a container's probe looks at, without the database.

``tick`` is called often, and only notes what it is told; a thread of its own writes, so that a disk that hangs stops no process.
"""

import json
import logging
import math
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

logger = logging.getLogger("django_workpool.runner")

#: Seconds between two writings.
WRITE_EVERY = 2.0
#: Seconds after which a file is no longer fresh.
FRESH_FOR = 15.0
#: Seconds without a tick after which the process itself does not go on.
TICK_WITHIN = 5.0
#: Seconds after which a thread that has not gone on is taken to hang.
GOES_ON_WITHIN = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What the process has said of itself, and when."""

    at: float
    leads: bool
    worker: int
    well: bool
    reason: str
    beat_age: float | None

    @property
    def trouble(self) -> str:
        """Why the process is not well, or nothing."""
        if not self.well:
            return self.reason
        return "the process does not go on" if time.monotonic() - self.at > TICK_WITHIN else ""


class Part:
    """What tells of a part of a process, the one that serves a database, among several.

    Args:
        probe: Keeps the file.
        name: The database.
    """

    def __init__(self, probe: "Probe", name: str) -> None:
        self.probe, self.name = probe, name
        probe.ticks[name] = None

    def tick(self, *, leads: bool, worker: int, well: bool, reason: str, beat_age: float | None = None) -> None:
        """As that of ``Probe``."""
        self.probe.ticks[self.name] = Tick(at=time.monotonic(), leads=leads, worker=worker, well=well, reason=reason, beat_age=beat_age)

    def leave(self) -> None:
        """Tell nothing any more: this part has ended in order."""
        self.probe.ticks.pop(self.name, None)


class Pulse:
    """Tells whether the threads of a process go on, from what each of them counts."""

    def __init__(self) -> None:
        #: For each thread what it told last, and when that changed.
        self._seen: dict[str, tuple[object, float]] = {}

    def judge(self, *, watch: object, loop: object) -> tuple[bool, str]:
        """Return whether the process is well, and what it does or what is wrong with it.

        Args:
            watch: Something else each time the watch has been through: it has reached the database, and beaten.
            loop: Something else each time the loop's thread, leading or standing by, has gone on.
        """
        if self._age("watch", watch) > GOES_ON_WITHIN:
            return False, "the watch does not go on: the database is away"
        if self._age("loop", loop) > GOES_ON_WITHIN:
            return False, "the loop does not go on"
        return True, "runs"

    def _age(self, name: str, told: object) -> float:
        now = time.monotonic()
        seen, since = self._seen.get(name, (None, now))
        if seen != told:
            since = now
        self._seen[name] = (told, since)
        return now - since


class Probe:
    """Keeps one process's health file.

    Args:
        path: The file. Its folder must be there; an older file goes.

    Raises:
        OSError: the file could not be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Functions may change the working directory.
        self.path = Path(path).absolute()
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        #: What the process has said of itself last; where it has several parts, of each of them, by name.
        self.ticks: dict[str, Tick | None] = {}
        #: Device and inode of what was written last: somebody else's file stays.
        self._written: tuple[int, int] | None = None
        #: Why it is not renewed, as far as that was told.
        self._trouble = ""
        self._end = threading.Event()
        # All that writing needs is tried now; what an earlier process has left must not look fresh.
        self._write({})
        self.path.unlink()
        self._thread = threading.Thread(target=self._run, name="workpool-probe", daemon=True)
        self._thread.start()

    def tick(self, *, leads: bool, worker: int, well: bool, reason: str, beat_age: float | None = None) -> None:
        """Note how the process is. Cheap; never raises."""
        self.ticks[""] = Tick(at=time.monotonic(), leads=leads, worker=worker, well=well, reason=reason, beat_age=beat_age)

    def remove(self) -> None:
        """Remove the file: the process ends in order. Never raises, and does not wait for a disk that hangs."""
        self._end.set()
        self._thread.join(WRITE_EVERY)

    def _run(self) -> None:
        while not self._end.wait(WRITE_EVERY / 4):
            ticks = dict(self.ticks)
            told = {name: tick for name, tick in ticks.items() if tick is not None}
            if not told or len(told) < len(ticks):
                # A part has not begun yet.
                continue
            trouble = self._renew(told)
            if trouble and not self._trouble:
                logger.error("the health file %s is not renewed: %s", self.path, trouble)
            elif self._trouble and not trouble:
                logger.warning("the health file %s is renewed again", self.path)
            self._trouble = trouble
            if not trouble:
                self._end.wait(WRITE_EVERY * 3 / 4)
        with suppress(OSError):
            found = self.path.stat()
            if (found.st_dev, found.st_ino) == self._written:
                self.path.unlink()

    def _renew(self, ticks: dict[str, Tick]) -> str:
        """Write the file if the process is well, with all its parts; return why it is not written, or nothing."""
        for name, tick in ticks.items():
            if tick.trouble:
                return f"{name}: {tick.trouble}" if len(ticks) > 1 else tick.trouble
        try:
            self._write(_told(ticks))
        except OSError as error:
            return str(error)
        return ""

    def _write(self, told: dict[str, object]) -> None:
        """Put a whole file in the old one's place."""
        try:
            self._temporary.write_text(json.dumps(told) + "\n")
            found = self._temporary.stat()
            os.replace(self._temporary, self.path)
            self._written = found.st_dev, found.st_ino
        except BaseException:
            with suppress(OSError):
                self._temporary.unlink()
            raise


def _told(ticks: dict[str, Tick]) -> dict[str, object]:
    parts = {name: _told_of(tick) for name, tick in ticks.items()}
    # Of several the whole says what the last beat was that is longest ago.
    worst = max(parts.values(), key=lambda part: part["beat_age_s"] or 0.0)
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **worst,
        **({"databases": parts} if "" not in parts else {}),
    }


def _told_of(tick: Tick) -> dict[str, Any]:
    return {
        "role": "leads" if tick.leads else "stands by",
        "worker": tick.worker,
        "beat_age_s": None if tick.beat_age is None or math.isinf(tick.beat_age) else round(tick.beat_age, 1),
        "state": tick.reason,
    }


def age_of(path: str | os.PathLike[str]) -> float | None:
    """Return how many seconds ago a health file was written; None if there is none.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        return max(0.0, time.time() - os.stat(path).st_mtime)
    except FileNotFoundError:
        return None
