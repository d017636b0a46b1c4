"""What functions note, whatever becomes of their process and of the database: a file a process, one line at once for each thing.

Imports nothing of Django: a function must be able to note while everything else is broken.
"""

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: The folder of the journals: set for every process of a drill.
FOLDER_VARIABLE = "WORKPOOL_DRILL_FOLDER"

_numbers = itertools.count()
_lock = threading.Lock()
_files: dict[int, int] = {}


@dataclass(slots=True)
class Run:
    """One call of a function."""

    key: str
    pid: int
    #: Of a child process: the main that has started it.
    parent: int
    #: By the clock that all processes of this host share.
    begun: float
    ended: float | None = None
    #: "ended", "failed" (it raised), "dying" (it kills its process), or empty.
    how: str = ""


def folder() -> Path:
    """Return the folder of this drill's journals."""
    return Path(os.environ[FOLDER_VARIABLE])


def note(what: str, key: str, run: str) -> None:
    """Add one line."""
    line = json.dumps({"what": what, "key": key, "run": run, "pid": os.getpid(), "parent": os.getppid(), "at": time.monotonic()})
    os.write(_file(), f"{line}\n".encode())


def _file() -> int:
    pid = os.getpid()
    with _lock:
        if pid not in _files:
            _files[pid] = os.open(folder() / f"journal-{pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return _files[pid]


@contextmanager
def noted(key: str) -> Iterator[str]:
    """Note that a function has begun, and how it ends."""
    run = f"{os.getpid()}-{next(_numbers)}"
    note("begun", key, run)
    try:
        yield run
    except BaseException:
        note("failed", key, run)
        raise
    note("ended", key, run)


def is_first(key: str) -> bool:
    """Return whether nobody has asked this for ``key`` before."""
    try:
        os.close(os.open(folder() / f"first-{key}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def read(path: Path) -> list[Run]:
    """Return all runs of the journals in a folder, in the order in which they began."""
    runs: dict[str, Run] = {}
    for journal in path.glob("journal-*"):
        for text in journal.read_text().splitlines():
            line = json.loads(text)
            if line["what"] == "begun":
                runs[line["run"]] = Run(line["key"], line["pid"], line["parent"], line["at"])
            else:
                runs[line["run"]].ended, runs[line["run"]].how = line["at"], line["what"]
    return sorted(runs.values(), key=lambda run: run.begun)
