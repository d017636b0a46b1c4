"""One ``workpool_main`` process: its threads, its life from the first signal to the last."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import DatabaseError, connections

from .. import eventlog, functions, kick, pools
from ..database import Hint, database
from ..database_errors import may_pass
from ..execution import workers
from ..loop.fleet import REFRESH_EVERY
from . import drain
from .intake import Intake
from .leader import Leader
from .probe import Probe, Pulse
from .service import Service
from .watcher import Watcher

logger = logging.getLogger("django_workpool.runner")

#: Coroutines that one process runs at once.
COROUTINES = 5_000
#: Seconds between two looks of the main thread at its threads and at what is left to drain.
TICK = 0.05
#: Seconds for writing down what has ended, after the grace time.
FLUSH = 1.5

#: Seconds between two tries to begin while the database is away or busy, at most.
WAIT_MAX = 5.0

T = TypeVar("T")


class Stopped(Exception):
    """A signal came before the process had begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    threads: int
    #: The pools whose works it runs; None for all.
    pools: tuple[str, ...] | None
    #: End when nothing is due, running or waiting for a retry.
    drain: bool
    #: Seconds that running functions get after the first signal.
    grace: float
    #: Child processes that run the functions instead of threads; 0 for none.
    processes: int = 0
    #: Works after which a child is replaced; 0 for never.
    recycle: int = 0
    #: Makes the executor to which actions are handed over.
    executor: Callable[[], Any] | None = None
    #: Is told how the process is.
    probe: Probe | None = None

    @property
    def capacity(self) -> int:
        """Functions that run at once, coroutines and callbacks not counted."""
        return self.processes or self.threads


class Process:
    """Leads or stands by, runs functions, and shuts down."""

    def __init__(self, using: str, options: Options) -> None:
        self.using, self.options = using, options
        self.id = uuid.uuid4()
        self.name = f"{workers.host_name()}:{os.getpid()}"
        #: Counted by the signal handler, which does nothing else: an Event that this very thread waits on could block it for ever.
        self.signals = 0
        #: Ends the services; set last, after the functions have ended.
        self.end = threading.Event()
        self.intake = Intake(using, self.name, options, self.end.is_set)
        self.pulse = Pulse()

    # Life -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until a signal, or until drained; return the exit code."""
        try:
            self._start()
        except Stopped:
            return 0
        code = 0
        try:
            code = self._wait()
        finally:
            self._stop()
        return code

    def signal(self) -> None:
        """Take a signal: the first ends it when the running functions have ended, the second does not wait for them."""
        self.signals += 1

    def _patiently(self, step: Callable[[], T]) -> T:
        """Do what the start needs the database for, as soon as it can be had.

        Raises:
            Stopped: a signal came first.
        """
        wait = TICK
        while True:
            if self.signals:
                raise Stopped
            try:
                return step()
            except DatabaseError as error:
                if not may_pass(error):
                    raise
                logger.warning("starting: %s, next try in %.1f s", str(error).strip().partition("\n")[0], wait)
                connections[self.using].close()
            until = time.monotonic() + wait
            while time.monotonic() < until and not self.signals:
                time.sleep(TICK)
            wait = min(wait * 2, WAIT_MAX)

    def _start(self) -> None:
        self._patiently(lambda: pools.apply_settings(self.using))
        functions.load_tasks()
        self.leader = Leader(self.using, self.id, self.intake.submit)
        worker_id = self._patiently(self._register)
        intake = self.intake
        self.watcher = Watcher(self.using, self.leader, intake.submit, intake.assignments.begin_fetch, self._register, worker_id)
        self._unlisten = kick.listen(self.using, self.leader.hear)
        self.services = [
            self._service("watch", self.watcher.run, lambda: self.watcher.rounds),
            self._service("writer", intake.writer.run, lambda: object() if intake.writer.idle else intake.writer.rounds),
            self._service("loop", self.leader.run, lambda: self.leader.watchdog.turned),
            *(Service(name, body, self.end) for name, body in intake.executors.bodies().items()),
        ]
        self.services[0].start()
        # The loop begins with a worker that others can see alive.
        while not self.watcher.ready.is_set() and not self.signals and not self.services[0].is_dead:
            time.sleep(TICK / 5)
        for service in self.services[1:]:
            service.start()
        eventlog.log("process_started", "REPORT", "*", worker=worker_id, capacity=self.options.capacity, pid=os.getpid())

    def _service(self, name: str, body: Callable[[threading.Event], None], progress: Callable[[], object]) -> Service:
        return Service(name, body, self.end, progress, lambda: database(self.using).cut(name))

    def _register(self) -> int:
        row = workers.register(self.using, process=self.id, threads=self.options.capacity, coroutines=COROUTINES, pools=self.options.pools)
        self.leader.fleet.own = row.id
        return row.id

    def _wait(self) -> int:
        """Wait for the end; return the exit code."""
        look = time.monotonic()
        while not self.signals:
            time.sleep(TICK)
            for service in self.services:
                service.look()
            self._tell()
            if any(service.is_dead for service in self.services):
                logger.critical("a thread has died: the process ends")
                return 1
            if self.options.drain and time.monotonic() >= look:
                look = time.monotonic() + drain.EVERY
                with self._guarded("looking whether all is drained"):
                    if self.idle and drain.is_drained(self.using, self.options.pools):
                        return 0
        return 0

    def _tell(self, does: str = "") -> None:
        """Tell the probe how this process is."""
        if self.options.probe is not None:
            well, reason = self.pulse.judge(watch=self.watcher.rounds, loop=self.leader.watchdog.turned)
            self.options.probe.tick(
                leads=self.leader.lead.held,
                worker=self.watcher.worker_id,
                well=well,
                reason=(well and does) or reason,
                beat_age=time.monotonic() - self.watcher.beaten,
            )

    @property
    def idle(self) -> bool:
        """Whether nothing runs here, and everything that has ended is written."""
        return self.intake.idle

    # The end ----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Take nothing more, let functions end, write down the rest, hand over."""
        intake, leads = self.intake, self.leader.lead.held
        intake.refuse()
        eventlog.log("process_stopping", "REPORT", "*", grace_s=self.options.grace, running=len(intake.executors.active()))
        # This thread's connection has been idle, and may be lost without anybody's notice: others must learn of the end for certain.
        connections.close_all()
        with self._guarded("taking no more work"):
            workers.stop_accepting(self.using, self.watcher.worker_id)
            if len(drain.others(self.using, self.id)) > 0:
                self.leader.hand_over_asked.set()
        intake.told(within=0.1 if leads else 1.1 * REFRESH_EVERY)
        self.leader.hear(Hint("lead"))
        intake.executors.end_others()
        end = time.monotonic() + self.options.grace
        while True:
            intake.return_waiting()
            self._tell("stops")
            if self.idle or self.signals > 1 or time.monotonic() >= end:
                break
            time.sleep(TICK / 5)
        intake.return_waiting(all_of_them=True)
        with self._guarded("giving back what came last"):
            intake.submit(workers.assigned(self.using, self.watcher.worker_id))
        intake.interrupt()
        intake.writer.drain(FLUSH)
        self._retire()
        self._leave()
        self._end_threads()
        eventlog.log("process_ended", "REPORT", "*", pid=os.getpid())

    def _end_threads(self) -> None:
        intake, led = self.intake, self.leader.lead.held
        intake.executors.end_others(FLUSH)
        self.end.set()
        self.leader.wake()
        intake.writer.wake()
        with self._guarded("waking the watch"):
            database(self.using).notify([Hint("worker", str(self.watcher.worker_id))])
        for service in self.services:
            service.join(FLUSH)
        with self._guarded("deleting the worker's row"):
            # Nobody else places anything with it: else that is for whoever leads.
            if led and not workers.assigned(self.using, self.watcher.worker_id):
                workers.unregister(self.using, self.watcher.worker_id)
        self._unlisten()
        intake.executors.stop()
        connections.close_all()

    def _leave(self) -> None:
        """Tell that all that had begun here is written; if it is not, this worker's death will tell what became of it."""
        with self._guarded("leaving"):
            if self.intake.close(lambda: workers.assigned(self.using, self.watcher.worker_id)):
                self.watcher.leaving = True
                workers.leave(self.using, self.watcher.worker_id)
                database(self.using).notify([Hint("lead")])

    def _retire(self) -> None:
        """While leading, work off the last completions, so that nothing looks as if it still ran."""
        until = time.monotonic() + FLUSH
        with self._guarded("working off the last completions"):
            while self.leader.lead.held and time.monotonic() < until and drain.has_completions(self.using):
                self.leader.hear(Hint("changed"))
                time.sleep(TICK / 5)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            logger.warning("%s failed: %s", what, error)
            connections.close_all()
