"""Enqueue works at a rate, each in a transaction of its own, and write down those whose call has returned.

``python -m tests.faults.load FILE --rate R ...``, a process of its own: nothing else slows it down. SIGTERM ends it.
"""

import argparse
import json
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import django
from django.db import Error, InterfaceError, connection, transaction

from .kinds import KINDS

#: Seconds between two tries while the database is away.
AWAY = 0.1
#: A file has one writer at a time.
THREADS = 4
MODULE = "tests.faults.works"


def enqueue(key: str, seconds: float | None = None, *, callback: bool = False, priority: int = 0, delay: float = 0.0) -> uuid.UUID:
    """Enqueue the work of a key in a transaction that also inserts a row of ours: both are there, or neither."""
    from datetime import timedelta

    from django_workpool import Workpool

    from ..works.models import Event
    from .works import called

    kind = KINDS[key.partition(".")[0]]
    took = random.uniform(*kind.seconds) if seconds is None else seconds
    pool = Workpool().using(priority=priority)
    if callback:
        pool = pool.using(on_complete=called, on_complete_context=key)
    if delay:
        pool = pool.using(delay=timedelta(seconds=delay))
    with transaction.atomic():
        Event.objects.create(name="asked", key=key, text="called" if callback else "", at=time.time())
        return pool.enqueue(f"{MODULE}.{kind.function}", key, round(took, 3))


class Enqueuer:
    """Enqueues and keeps a list, in a file, of what has been accepted."""

    def __init__(self, path: Path) -> None:
        self.file: IO[str] = open(path, "a", buffering=1)  # noqa: SIM115
        self.refused = 0

    def __call__(self, key: str, seconds: float | None = None, *, callback: bool = False, **options: float) -> uuid.UUID:
        """Enqueue one; what it raises is the caller's."""
        work_id = enqueue(key, seconds, callback=callback, **options)  # type: ignore[arg-type]
        line = {"key": key, "id": str(work_id), "callback": callback, "at": time.time()}
        self.file.write(json.dumps(line) + "\n")
        return work_id

    def patiently(self, key: str, callback: bool, **options: float) -> bool:
        """Enqueue one; return False if the database refused or was away. It may have been committed all the same."""
        try:
            self(key, callback=callback, **options)
        except (Error, InterfaceError) as error:
            self.refused += 1
            print(f"{key}: {type(error).__name__} {str(error).strip().partition(chr(10))[0]}", file=sys.stderr, flush=True)
            connection.close()
            time.sleep(AWAY)
            return False
        return True


class Load:
    """Enqueues at a rate, on threads that share it; what could not be done in time is not made up for."""

    def __init__(self, enqueuer: Enqueuer, options: argparse.Namespace) -> None:
        self.enqueuer, self.options = enqueuer, options
        self.stop = threading.Event()
        self.dice = random.Random(options.seed)
        self._lock = threading.Lock()
        self._number = 0
        self._due = time.monotonic()

    def _next(self) -> tuple[str, bool, float]:
        """Return the next work's key, whether it has a callback, and when it is due."""
        mix = self.options.mix
        with self._lock:
            kind = self.dice.choices(list(mix), list(mix.values()))[0]
            self._number += 1
            self._due = max(self._due + 1 / self.options.rate, time.monotonic() - 0.5)
            return f"{kind}.{self.options.prefix}{self._number}", self.dice.random() < self.options.callbacks, self._due

    def _run(self) -> None:
        while not self.stop.is_set():
            key, callback, due = self._next()
            time.sleep(max(0.0, due - time.monotonic()))
            self.enqueuer.patiently(key, callback)
        connection.close()

    def run(self, ended: Sequence[int]) -> None:
        """Enqueue until a signal has ``ended`` it."""
        threads = [threading.Thread(target=self._run) for _ in range(THREADS if connection.vendor == "postgresql" else 1)]
        for thread in threads:
            thread.start()
        while not ended:
            time.sleep(0.05)
        self.stop.set()
        for thread in threads:
            thread.join()


def main() -> None:
    """Read the command line, and enqueue until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.load", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--mix", type=json.loads, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--callbacks", type=float, default=0.5)
    options = parser.parse_args()
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    django.setup()
    load = Load(Enqueuer(options.file), options)
    load.run(ended)


if __name__ == "__main__":
    main()
