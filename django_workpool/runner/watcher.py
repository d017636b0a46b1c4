"""The watch's thread: hear hints, hold the liveness lock, beat, observe the other workers, fetch what is assigned to this one."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from django.db import OperationalError, connections

from .. import eventlog, functions
from ..database import Hint, Watch, database
from ..database_errors import is_conflict
from ..execution import workers
from ..execution.liveness import Observer
from ..failures import first_line
from ..models import Globals, Worker
from ..types import Run

if TYPE_CHECKING:
    from .leader import Leader

logger = logging.getLogger("django_workpool.watch")

#: Seconds between two observations and looks for assigned runs.
PULSE_EVERY = 1.0
#: Seconds between two beats: where the lock alone tells who lives (SQLite), a beat would only disturb the one writer.
BEAT_EVERY, BEAT_EVERY_WITH_FLOCK = 0.9, 15.0


class Watcher:
    """One process's watch.

    Args:
        using: The database.
        leader: Is told hints and deaths.
        submit: Takes assigned runs; those it has already are passed over.
        begin_fetch: Called before each look for them.
        register: Inserts a new row for this process, when the fleet has given the old one up.
        worker_id: This process's worker.
    """

    def __init__(
        self,
        using: str,
        leader: "Leader",
        submit: Callable[[Sequence[Run]], None],
        begin_fetch: Callable[[], None],
        register: Callable[[], int],
        worker_id: int,
    ) -> None:
        self.using, self.leader, self.worker_id = using, leader, worker_id
        self.submit, self.begin_fetch, self.register = submit, begin_fetch, register
        self.observer = Observer()
        self.ready = threading.Event()
        #: Set before the leader is told that this worker has left: then its row may go at any time.
        self.leaving = False
        #: Whether this worker takes works, and whether its row was told that it does not any more.
        self.accepting, self.told = True, False
        self._pulsed = float("-inf")
        self.beaten = float("-inf")
        self._newest = 0
        self._learner: threading.Thread | None = None
        #: Counted so that others see that the thread gets on.
        self.rounds = 0
        self._published = len(functions.known())

    def run(self, stop: threading.Event) -> None:
        """Watch until ``stop``."""
        # An interrupted observation says nothing about the time it has missed.
        self.observer.reset()
        watch = database(self.using).watch()
        try:
            self._warn()
            self._pulse(watch)
            self.ready.set()
            # Whoever waits for a worker learns that one has come.
            database(self.using).notify([Hint("lead")])
            self.leader.hear(Hint("lead"))
            while not stop.is_set():
                self.rounds += 1
                for hint in watch.wait(max(0.0, self._pulsed + PULSE_EVERY - time.monotonic())):
                    self._hear(hint)
                if time.monotonic() - self._pulsed >= PULSE_EVERY:
                    self._pulse(watch)
        finally:
            watch.close()
            connections[self.using].close()

    def _warn(self) -> None:
        if not self.ready.is_set():
            for text in database(self.using).pooler_warnings():
                eventlog.log("pooled", "WARN", "*", text=text)

    def _hear(self, hint: Hint) -> None:
        if hint.kind == "worker":
            if str(self.worker_id) in hint.name.split(","):
                self._fetch(self._newest)
            return
        self.leader.hear(hint)
        if hint.kind == "changed" and not self.leader.lead.held:
            self._fetch(self._newest)

    def _fetch(self, after: int) -> None:
        while True:
            self.begin_fetch()
            runs = workers.assigned(self.using, self.worker_id, after)
            if runs:
                after = runs[-1].token
                self._newest = max(self._newest, after)
                self.submit(runs)
            if len(runs) < workers.FETCH_MAX:
                return

    def _pulse(self, watch: Watch) -> None:
        self._pulsed = time.monotonic()
        watch.hold(self.worker_id)
        self._beat(watch)
        try:
            self._look(watch)
        except OperationalError as error:
            # Somebody has locked a table for long: what was not seen is looked at with the next pulse.
            if not is_conflict(error):
                raise
            logger.warning("the watch had to wait: %s", first_line(error))

    def _look(self, watch: Watch) -> None:
        rows = list(Worker.objects.using(self.using).exclude(id=self.worker_id).values_list("id", "beat", "lockless", "accepting"))
        lockless = {worker for worker, _, without, _ in rows if without}
        dead = self.observer.observe({worker: beat for worker, beat, _, _ in rows}, watch.held(), lockless=lockless)
        self.leader.others = any(accepting and worker not in dead for worker, _, _, accepting in rows)
        if dead != self.leader.dead:
            self.leader.dead = dead
            self.leader.wake()
        self._fetch(0)
        self._learn()
        eventlog.set_levels(dict(Globals.objects.using(self.using).values_list("pool", "log_level")))

    def _learn(self) -> None:
        """Look for functions that nobody knows, on a thread of its own (their modules' imports may hang); tell of those found."""
        if self._learner is not None and self._learner.is_alive():
            return
        paths = workers.unknown_paths(self.using)
        known = len(functions.known())
        if known > self._published or not workers.is_published(self.using, self.worker_id):
            workers.publish_functions(self.using, self.worker_id)
            self._published = known
            self.leader.hear(Hint("lead"))
            database(self.using).notify([Hint("lead")])
        if set(paths) - set(functions.known()):
            self._learner = threading.Thread(target=workers.learn, args=(paths,), name="workpool-learn", daemon=True)
            self._learner.start()

    def _beat(self, watch: Watch) -> None:
        now, accepting = time.monotonic(), self.accepting
        if accepting != self.told and now - self.beaten < (BEAT_EVERY if database(self.using).leases else BEAT_EVERY_WITH_FLOCK):
            return
        try:
            if workers.beat(self.using, self.worker_id, lockless=not watch.locks, accepting=accepting):
                self.told = not accepting
            elif not self.leaving:
                self._begin_again(watch)
            self.beaten = now
            self.rounds += 1
        except OperationalError as error:
            # Somebody writes for long: that says nothing about this process, and the next pulse tries again.
            if not is_conflict(error):
                raise

    def _begin_again(self, watch: Watch) -> None:
        """The fleet took this worker for dead and has recovered what it ran: nothing of that can be written any more."""
        old, self.worker_id = self.worker_id, self.register()
        eventlog.log("worker_given_up", "ERROR", "*", worker=old, new_worker=self.worker_id)
        watch.hold(self.worker_id)
