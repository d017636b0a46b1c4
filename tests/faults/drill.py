"""What every drill has: a database, processes, a sampler, a list of problems; and the table of all drills."""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import django
from django.db import Error, InterfaceError, connections

from .fleet import SETTINGS, Fleet, Main
from .journal import FOLDER_VARIABLE
from .load import Enqueuer
from .sampler import Limits, Sampler
from .server import OWN, PostgreSQLServer, SQLiteFile, own_database

BOTH = ("postgresql", "sqlite")
#: What is promised after a death or an outage: seconds until works start again.
RESUMES_WITHIN = 10.0
#: Until everything has ended, after the last fault.
QUIET_SECONDS = 240.0


class Skipped(Exception):
    """The drill cannot be done here; the text says why."""


class Failed(Exception):
    """It makes no sense to go on."""


@dataclass
class Drill:
    """One run of a drill."""

    database: PostgreSQLServer | SQLiteFile
    options: argparse.Namespace
    folder: Path
    fleet: Fleet
    limits: Limits = field(default_factory=Limits)
    problems: list[str] = field(default_factory=list)
    #: What the verdict tells, in this order.
    figures: dict[str, object] = field(default_factory=dict)
    #: Seconds since 1970 less the monotonic clock.
    offset: float = field(default_factory=lambda: time.time() - time.monotonic())

    def __post_init__(self) -> None:
        self.accepted_path = self.folder / "accepted"
        self.enqueue = Enqueuer(self.accepted_path)
        self.sampler = Sampler(self.database, self.limits)
        #: Ids of works that were asked to be canceled, and when (seconds since 1970) all were.
        self.canceled: set[str] = set()
        self.canceled_all: list[float] = []

    @property
    def vendor(self) -> str:
        """The database's name."""
        return self.database.vendor

    @property
    def server(self) -> PostgreSQLServer:
        """The server that can be made to fail."""
        if not isinstance(self.database, PostgreSQLServer):
            raise Skipped("SQLite has no server")
        return self.database

    # Checks -----------------------------------------------------------------------------------------------------

    def expect(self, holds: object, problem: str) -> None:
        """Note a problem unless ``holds``."""
        if not holds:
            self.problems.append(problem)

    def wait(self, condition: Callable[[], object], seconds: float, what: str, poll: float = 0.05) -> float:
        """Wait until ``condition()`` is true, through outages of the database; return how long that took.

        Raises:
            Failed: it is not in time.
        """
        began = time.monotonic()
        while not self.ask(condition):
            if time.monotonic() - began > seconds:
                raise Failed(f"not after {seconds:.0f} s: {what}")
            time.sleep(poll)
        return time.monotonic() - began

    def ask(self, question: Callable[[], object]) -> object:
        """Return what ``question()`` returns, None while the database is away."""
        try:
            return question()
        except (Error, InterfaceError):
            connections.close_all()
            return None

    def set_limit(self, limit: int) -> None:
        """Change the pool's limit, and remember when."""
        from django_workpool import Workpool

        self.limits.begin(limit)
        Workpool().configure(max_parallelism=limit)
        self.limits.confirm()

    # Processes --------------------------------------------------------------------------------------------------

    def leader(self, seconds: float = 30.0) -> Main:
        """Return the main that leads, as soon as a living one does."""
        found: list[Main] = []

        def look() -> bool:
            main = self.leader_now()
            found[:] = [main] if main else []
            return bool(found)

        self.wait(look, seconds, "a living process leads")
        return found[0]

    def leader_now(self) -> Main | None:
        """Return the living main that leads by the rows, None if there is none."""
        from django_workpool.models import Lead, Worker

        row = Worker.objects.filter(process__in=Lead.objects.filter(owner__isnull=False).values("owner")).first()
        return self.fleet.find(row.pid) if row else None

    def others(self) -> list[Main]:
        """Return the living mains that do not lead."""
        leader = self.leader()
        return [main for main in self.fleet.alive if main is not leader]

    def running_on(self, main: Main) -> int:
        """Return how many works run on a main."""
        from django_workpool.models import RunningWork, Worker

        return RunningWork.objects.filter(worker_id__in=Worker.objects.filter(pid=main.pid).values("id")).count()

    def start_load(self, *, rate: float, mix: dict[str, int], callbacks: float = 0.5, seed: int = 0, prefix: str = "load-") -> None:
        """Start a process that enqueues at a rate until ``end_load``, and wait until the first works are accepted."""
        import json

        arguments = ["--rate", str(rate), "--mix", json.dumps(mix), "--callbacks", str(callbacks), "--seed", str(seed), "--prefix", prefix]
        self.fleet.load(self.accepted_path, *arguments)
        self.wait(lambda: f".{prefix}" in self.accepted_path.read_text(), 30, "the first works are accepted")

    def probe(self, key: str, seconds: float = 30.0) -> float:
        """Enqueue a work before all others, and return how long it took from now until it began, through an outage."""
        from .journal import read

        began = time.monotonic()
        while not self.enqueue.patiently(key, False, priority=100):
            key += "'"
            if time.monotonic() - began > seconds:
                raise Failed(f"{key} could not be enqueued for {seconds} s")
        found: list[float] = []

        def begun() -> bool:
            found[:] = [run.begun for run in read(self.folder) if run.key == key][:1]
            return bool(found)

        self.wait(begun, seconds, f"{key} begins", poll=0.02)
        return found[0] - began


@contextmanager
def drill_context(vendor: str, options: argparse.Namespace) -> Iterator[Drill]:
    """Make a database and the context; at the end all its processes are killed, and everything is removed.

    Django is set up once a process: so is a drill.
    """
    with own_database(vendor) as database, tempfile.TemporaryDirectory(prefix="workpool-drill-") as name:
        folder = Path(name)
        names = {"DATABASE_URL": database.url, "DJANGO_SETTINGS_MODULE": SETTINGS, FOLDER_VARIABLE: name, "PGAPPNAME": OWN}
        os.environ.update(names)
        django.setup()
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        drill = Drill(database, options, folder, Fleet(database.url, folder))
        try:
            drill.set_limit(10)
            with drill.sampler:
                yield drill
        finally:
            drill.fleet.end_all()
            connections.close_all()
            if getattr(options, "keep", None):
                _keep(folder, Path(options.keep))


def _keep(folder: Path, to: Path) -> None:
    import shutil

    shutil.copytree(folder, to, dirs_exist_ok=True)


# The table ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One drill of the table."""

    name: str
    body: Callable[[Drill], None]
    #: What it shows, in one sentence.
    shows: str
    databases: tuple[str, ...]
    #: How long it takes.
    seconds: int
    #: The options with which it runs in CI; None if it does not.
    quick: tuple[str, ...] | None
    options: Callable[[argparse.ArgumentParser], None] | None
    #: After that many seconds it has failed.
    limit: int


TABLE: dict[str, Entry] = {}


def drill(
    shows: str,
    *,
    seconds: int,
    databases: tuple[str, ...] = BOTH,
    quick: tuple[str, ...] | None = None,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    limit: int = 1800,
) -> Callable[[Callable[[Drill], None]], Callable[[Drill], None]]:
    """Enter a function into the table of drills, by its name."""

    def enter(body: Callable[[Drill], None]) -> Callable[[Drill], None]:
        TABLE[body.__name__] = Entry(
            name=body.__name__, body=body, shows=shows, databases=databases, seconds=seconds, quick=quick, options=options, limit=limit
        )
        return body

    return enter


def run(entry: Entry, vendor: str, options: argparse.Namespace) -> int:
    """Run one drill on a database of its own and print its verdict; return 0 if all is as promised, 2 if it was skipped."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(entry.limit)
    signal.signal(signal.SIGTERM, lambda number, _: _stop(number))
    began = time.monotonic()
    try:
        if vendor not in entry.databases:
            raise Skipped(f"it is for {' and '.join(entry.databases)}")
        with drill_context(vendor, options) as context:
            try:
                entry.body(context)
            except (Failed, TimeoutError, Error) as failure:
                context.problems.append(str(failure).strip())
            context.problems += context.fleet.ended_by_themselves()
            context.figures.update(seconds=round(time.monotonic() - began), machine_load=f"{os.getloadavg()[0]:.1f}")
            logs = [(main.number, main.output()[-1500:]) for main in context.fleet.mains] if context.problems else []
    except Skipped as reason:
        print(f"{entry.name} on {vendor}: skipped ({reason})", flush=True)
        return 2
    for number, text in logs:
        print(f"--- main {number}\n{text}", flush=True)
    figures = " ".join(f"{name}={value}" for name, value in context.figures.items())
    verdict = f"FAILED ({'; '.join(context.problems)})" if context.problems else "ok"
    print(f"{entry.name} on {vendor}: {verdict} {figures}", flush=True)
    return int(bool(context.problems))


def _too_long(number: int, frame: FrameType | None) -> None:
    raise Failed("it takes too long")


def _stop(number: int) -> None:
    raise SystemExit(128 + number)
