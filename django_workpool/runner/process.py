"""One ``workpool_main`` process: its threads, its life from the first signal to the last."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connections

from .. import eventlog, functions, kick, pools
from ..complete import Attempted
from ..database import Hint
from ..execution import workers
from ..execution.assignments import Assignments
from ..execution.coroutines import CoroutineExecutor
from ..execution.run import Performer
from ..execution.threads import ThreadExecutor
from ..execution.writer import Writer
from ..failures import describe
from ..loop.fleet import CALLBACK_CAPACITY, Room
from ..types import Failure, FnType, Outcome, Run
from . import drain
from .leader import Leader
from .service import Service
from .watcher import Watcher

logger = logging.getLogger("django_workpool.runner")

#: Coroutines that one process runs at once.
COROUTINES = 5_000
#: Seconds between two looks of the main thread at its threads and at what is left to drain.
TICK = 0.05
#: Seconds for writing down what has ended, after the grace time.
FLUSH = 1.5
INTERRUPTED = "django_workpool.Interrupted"


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


class Process:
    """Leads or stands by, runs functions, and shuts down."""

    def __init__(self, using: str, options: Options) -> None:
        self.using, self.options = using, options
        self.id = uuid.uuid4()
        self.name = f"{workers.host_name()}:{os.getpid()}"
        self.signals = 0
        self.stopping = threading.Event()
        #: Ends the services; set last, after the functions have ended.
        self.end = threading.Event()

    # Life -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until a signal, or until drained; return the exit code."""
        self._start()
        code = 0
        try:
            code = self._wait()
        finally:
            self._stop()
        return code

    def signal(self) -> None:
        """Take a signal: the first ends it when the running functions have ended, the second does not wait for them."""
        self.signals += 1
        self.stopping.set()

    def _start(self) -> None:
        pools.apply_settings(self.using)
        functions.load_tasks()
        self.assignments = Assignments()
        self.writer = Writer(self.using, self.assignments.done, self.end.is_set)
        self.performer = Performer(
            self.using,
            self.name,
            write=self.writer.put,
            aside=lambda runs: self.side.submit(runs),
            done=self.assignments.done,
            is_stopping=self.end.is_set,
        )
        self.threads = ThreadExecutor("workpool", self.options.threads, self.performer.perform, self._crashed)
        self.side = ThreadExecutor("workpool-callback", CALLBACK_CAPACITY, self.performer.perform_aside, self._crashed)
        self.coroutines = CoroutineExecutor("workpool-async", self.performer.perform_async, self._crashed)
        self.leader = Leader(self.using, self.id, self.submit)
        worker_id = self._register()
        self.watcher = Watcher(self.using, self.leader, self.submit, self.assignments.begin_fetch, self._register, worker_id)
        self._unlisten = kick.listen(self.using, self.leader.hear)
        self.services = [
            Service("watch", self.watcher.run, self.end),
            Service("writer", self.writer.run, self.end),
            Service("loop", self.leader.run, self.end),
        ]
        self.services[0].start()
        # The loop begins with a worker that others can see alive.
        while not self.watcher.ready.wait(TICK) and not self.stopping.is_set() and not self.services[0].is_dead:
            pass
        for service in self.services[1:]:
            service.start()
        eventlog.log("process_started", "REPORT", "*", worker=worker_id, threads=self.options.threads, pid=os.getpid())

    def _register(self) -> int:
        row = workers.register(self.using, process=self.id, threads=self.options.threads, coroutines=COROUTINES, pools=self.options.pools)
        self.leader.fleet.own = row.id
        return row.id

    def _wait(self) -> int:
        """Wait for the end; return the exit code."""
        look = time.monotonic()
        while not self.stopping.wait(TICK):
            if any(service.is_dead for service in self.services):
                logger.critical("a thread has died: the process ends")
                return 1
            if self.options.drain and time.monotonic() >= look:
                look = time.monotonic() + drain.EVERY
                with self._guarded("looking whether all is drained"):
                    if self.idle and drain.is_drained(self.using, self.options.pools):
                        return 0
        return 0

    @property
    def idle(self) -> bool:
        """Whether nothing runs here, and everything that has ended is written."""
        return self.threads.idle and self.side.idle and self.coroutines.idle and self.writer.idle

    # Runs -------------------------------------------------------------------------------------------------------

    def submit(self, runs: Sequence[Run]) -> None:
        """Take runs that are assigned to this worker; those that it has already are passed over."""
        fresh = self.assignments.take(runs)
        if self.stopping.is_set():
            self._give_back(fresh)
            return
        rooms: dict[Room, list[Run]] = {Room.THREAD: [], Room.COROUTINE: [], Room.CALLBACK: []}
        for run in fresh:
            rooms[self._room(run)].append(run)
        try:
            for room, some in rooms.items():
                if some:
                    self._executor(room).submit(some)
                    rooms[room] = []
        except BaseException:
            # They stay in the running rows, and are found there again.
            self.assignments.forget([run for some in rooms.values() for run in some])
            raise

    @staticmethod
    def _room(run: Run) -> Room:
        if run.fn_type is FnType.CALLBACK:
            return Room.CALLBACK
        return Room.COROUTINE if functions.known().get(run.func_path, "").endswith(":async") else Room.THREAD

    def _executor(self, room: Room) -> ThreadExecutor | CoroutineExecutor:
        if room is Room.COROUTINE:
            return self.coroutines
        return self.side if room is Room.CALLBACK else self.threads

    def _crashed(self, run: Run, error: BaseException) -> None:
        """An executor says that a run ended without bringing its outcome home."""
        logger.error("work %s: its run broke off", run.work_id, exc_info=error)
        self.writer.put(Attempted(run=run, outcome=Outcome(kind="failed", failure=describe(error)), worker=self.name))

    def _give_back(self, runs: Sequence[Run]) -> None:
        """Return runs that have not begun: no attempt is counted."""
        for run in runs:
            self.writer.put(Attempted(run=run, outcome=Outcome(kind="returned"), worker=self.name))

    def _interrupt(self, runs: Sequence[Run]) -> None:
        """Write down what the end of the process does to functions that still run: returned if they may run again, else failed."""
        for run in runs:
            idempotent = run.fn_type is not FnType.ACTION or run.retryable
            failure = Failure(class_path=INTERRUPTED, text="interrupted: the worker was stopped", retryable=False)
            outcome = Outcome(kind="returned" if idempotent else "failed", failure=failure)
            eventlog.log("interrupted", "WARN", run.pool, work_id=run.work_id, name=run.name, returned=idempotent)
            self.writer.put(Attempted(run=run, outcome=outcome, worker=self.name))

    # The end ----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Take nothing more, let functions end, write down the rest, hand over."""
        self.stopping.set()
        eventlog.log("process_stopping", "REPORT", "*", grace_s=self.options.grace, running=len(self._active()))
        with self._guarded("taking no more work"):
            workers.stop_accepting(self.using, self.watcher.worker_id)
            if len(drain.others(self.using, self.id)) > 0:
                self.leader.hand_over_asked.set()
        self.leader.hear(Hint("lead"))
        executors = (self.threads, self.coroutines, self.side)
        end = time.monotonic() + self.options.grace
        while not self.idle and self.signals < 2 and time.monotonic() < end:
            for executor in executors:
                self._give_back(executor.take_back())
            time.sleep(TICK / 5)
        self._interrupt(self._active())
        self.writer.drain(FLUSH)
        self._retire()
        self.end.set()
        self.leader.wake()
        self.writer.wake()
        for service in self.services:
            service.join(FLUSH)
        with self._guarded("deleting the worker's row"):
            workers.unregister(self.using, self.watcher.worker_id)
        self._unlisten()
        for executor in executors:
            executor.stop(0)
        connections.close_all()
        eventlog.log("process_ended", "REPORT", "*", pid=os.getpid())

    def _active(self) -> list[Run]:
        return [run for executor in (self.threads, self.coroutines, self.side) for run, _ in executor.active().values()]

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
