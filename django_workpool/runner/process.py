"""One ``workpool_main`` process: its threads, its life from the first signal to the last."""

import gc
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from django.db import DatabaseError, connections

from .. import configuration, eventlog, functions, kick
from ..database import Hint, database
from ..database_errors import is_connection_loss, may_pass
from ..execution import workers
from ..execution.courier import courier
from ..failures import first_line
from ..loop.fleet import REFRESH_EVERY
from ..types import Run
from . import drain
from .clerk import Clerk, Late
from .intake import Intake
from .leader import Leader
from .options import Options as Options
from .probe import Pulse
from .service import Service
from .watcher import Watcher

logger = logging.getLogger("django_workpool.runner")

#: Coroutines that one process runs at once.
COROUTINES = 5_000
#: Seconds between two looks of the main thread at its threads and at what is left to drain.
TICK = 0.05
#: Seconds for writing down what has ended, after the grace time.
FLUSH = 1.5
#: Seconds in which the database must answer the main thread, and after a second signal.
ANSWER, HURRY = 2.0, 0.5

#: Seconds between two tries to begin while the database is away or busy, at most.
WAIT_MAX = 5.0
T = TypeVar("T")

#: What has been imported stays: each full collection would go through all of it, for 30 ms in which no function runs.
#: Once: what is alive when a second database is served may be in use.
_freeze = cache(gc.freeze)


class Stopped(Exception):
    """A signal came before the process had begun."""


class Process:
    """Leads or stands by, runs functions, and shuts down: all that serves one database.

    Args:
        using: The database.
        options: What the command line says.
        agreement: When all databases are drained that this process of the system serves.
    """

    def __init__(self, using: str, options: Options, agreement: drain.Agreement | None = None) -> None:
        self.using, self.options = using, options
        self.id = uuid.uuid4()
        self.name = f"{workers.host_name()}:{os.getpid()}"
        #: Counted by the signal handler, which does nothing else: an Event that this very thread waits on could block it for ever.
        self.signals = 0
        #: Ends the services; set last, after the functions have ended.
        self.end = threading.Event()
        self.intake = Intake(using, self.name, options, self.end.is_set)
        self.pulse = Pulse()
        self.clerk = Clerk(using)
        self._told_late = False
        self._registered: int | None = None
        self.agreement = agreement or drain.Agreement([using])
        #: Tells its threads from those that serve other databases.
        self._mark = f"@{using}" if self.agreement.is_of_several else ""

    # Life -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until a signal, or until drained; return the exit code."""
        try:
            self._start()
        except Stopped:
            self._take_back()
            return 0
        code = 0
        try:
            code = self._wait()
        finally:
            self._stop()
            self.clerk.close()
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
                return self.clerk.do(step, float("inf"), lambda: self.signals > 0)
            except Late:
                raise Stopped from None
            except DatabaseError as error:
                if not may_pass(error):
                    raise
                logger.warning("starting: %s, next try in %.1f s", first_line(error), wait)
            until = time.monotonic() + wait
            while time.monotonic() < until and not self.signals:
                time.sleep(TICK)
            wait = min(wait * 2, WAIT_MAX)

    def _start(self) -> None:
        self._patiently(lambda: configuration.apply_settings(self.using))
        functions.load_tasks()
        _freeze()
        self.leader = Leader(self.using, self.id, self.intake)
        worker_id = self._patiently(self._register)
        intake, board = self.intake, self.intake.executors.board
        self.watcher = Watcher(self.using, self.leader, intake.submit, intake.assignments.begin_fetch, self._register, worker_id)
        self._unlisten = kick.listen(self.using, self.leader.hear)
        self.services = [
            self._service("watch", self.watcher.run, lambda: self.watcher.rounds),
            self._service("writer", intake.writer.run, lambda: intake.writer.progress),
            self._service("loop", self.leader.run, lambda: self.leader.watchdog.turned),
            self._service("progress", board.run, lambda: board.progress),
            *(Service(name + self._mark, body, self.end) for name, body in intake.executors.bodies().items()),
            Service("signals" + self._mark, courier.run, self.end),
        ]
        self.services[0].start()
        # The loop begins with a worker that others can see alive.
        while not self.watcher.ready.is_set() and not self.signals and not self.services[0].is_dead:
            time.sleep(TICK / 5)
        for service in self.services[1:]:
            service.start()
        eventlog.log(
            "process_started", "REPORT", "*", worker=worker_id, capacity=self.options.capacity, pid=os.getpid(), database=self.using
        )

    def _take_back(self) -> None:
        """Delete the row that was inserted while the signal came: nobody beats it, so it would look like a death."""
        self.clerk.settle(HURRY)
        if (own := self._registered) is not None:
            self._try("deleting the worker's row", lambda: workers.unregister(self.using, own))
        self.clerk.close()

    def _service(self, name: str, body: Callable[[threading.Event], None], progress: Callable[[], object]) -> Service:
        return Service(name + self._mark, courier.feeding(body), self.end, progress, lambda: database(self.using).cut(name))

    def _register(self) -> int:
        row = workers.register(
            self.using,
            process=self.id,
            threads=self.options.capacity,
            coroutines=COROUTINES,
            pools=self.options.pools,
            accepting=not self.intake.stopping.is_set(),
        )
        self.leader.fleet.own = self._registered = row.id
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
                if self.agreement.look(self.using, lambda: self.intake.taken, self._is_drained):
                    return 0
        return 0

    def _is_drained(self) -> bool:
        drained = lambda: drain.is_drained(self.using, self.options.pools)  # noqa: E731
        return self.idle and bool(self._try("looking whether all is drained", drained))

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
        eventlog.log(
            "process_stopping", "REPORT", "*", grace_s=self.options.grace, running=len(intake.executors.active()), database=self.using
        )
        # The beat says it as well, in case that this does not get through.
        self.watcher.accepting = False
        self.leader.hand_over_asked.set()
        told = self._try("taking no more work", lambda: workers.stop_accepting(self.using, self.watcher.worker_id))
        self.leader.hear(Hint("lead"))
        intake.executors.end_others()
        end, knows = time.monotonic() + self.options.grace, False
        while True:
            if not knows and (told or self.watcher.told):
                # A leader in another process reads the workers once a second.
                knows = True
                intake.told(within=0.1 if leads else 1.1 * REFRESH_EVERY)
            intake.return_waiting()
            self._tell("stops")
            if self.idle or self.signals > 1 or time.monotonic() >= end:
                break
            time.sleep(TICK / 5)
        intake.return_waiting(all_of_them=True)
        intake.submit(self._try("giving back what came last", self._assigned) or [])
        intake.interrupt()
        intake.writer.drain(FLUSH)
        self._retire()
        self._leave()
        self._end_threads()
        eventlog.log("process_ended", "REPORT", "*", pid=os.getpid(), database=self.using)

    def _end_threads(self) -> None:
        intake, led = self.intake, self.leader.lead.held
        intake.executors.end_others(FLUSH)
        self.end.set()
        self.leader.wake()
        intake.writer.wake()
        self._try("waking the watch", lambda: database(self.using).notify([Hint("worker", str(self.watcher.worker_id))]))
        until = time.monotonic() + FLUSH
        for service in self.services:
            service.join(max(0.0, until - time.monotonic()))
        if led:
            # Nobody else places anything with it: else that is for whoever leads.
            self._try("deleting the worker's row", lambda: workers.unregister(self.using, self.watcher.worker_id))
        self._unlisten()
        intake.executors.stop()
        connections.close_all()

    def _leave(self) -> None:
        """Tell that all that had begun here is written; if it is not, this worker's death will tell what became of it."""
        self.intake.closed = True
        self._try("leaving", self._say_that_it_has_left)

    def _say_that_it_has_left(self) -> None:
        if self.intake.has_written(self._assigned()):
            self.watcher.leaving = True
            workers.leave(self.using, self.watcher.worker_id)
            database(self.using).notify([Hint("lead")])

    def _assigned(self) -> list[Run]:
        return workers.assigned(self.using, self.watcher.worker_id)

    def _retire(self) -> None:
        """While leading, work off the last completions, so that nothing looks as if it still ran."""
        until = time.monotonic() + FLUSH
        while self.leader.lead.held and time.monotonic() < until:
            if not self._try("working off the last completions", lambda: drain.has_completions(self.using)):
                return
            self.leader.hear(Hint("changed"))
            time.sleep(TICK / 5)

    def _try(self, what: str, step: Callable[[], T]) -> T | None:
        """Do something with the database if it answers soon: neither the end nor a signal waits for it."""
        for last in (False, True):
            try:
                return self.clerk.do(step, HURRY if self.signals > 1 else ANSWER)
            except Exception as error:
                # The connection has been idle, and may have been lost without anybody's notice.
                if last or not is_connection_loss(error):
                    if not (isinstance(error, Late) and self._told_late):
                        logger.warning("%s failed: %s", what, first_line(error))
                    self._told_late = isinstance(error, Late)
                    return None
        return None
