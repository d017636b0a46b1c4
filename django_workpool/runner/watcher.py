"""The watch's thread: hear hints, hold the liveness lock, beat, observe the other workers, fetch what is assigned to this one."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from .. import eventlog, functions
from ..database import Hint, Watch, database
from ..execution import workers
from ..execution.liveness import Observer
from ..loop import periodic, poll
from ..loop.fleet import WORKERS, WorkerRow
from ..types import Run
from .outlook import News, Queues

if TYPE_CHECKING:
    from .leader import Leader

#: Seconds between two pulses: each is one statement, where the vendor joins its parts.
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
            self._pulse(watch)
            first = not self.ready.is_set()
            self.ready.set()
            # Whoever waits for a worker learns that one has come.
            database(self.using).notify([Hint("lead")])
            self.leader.hear(Hint("lead"))
            if first:
                self._warn()
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
        for text in database(self.using).pooler_warnings():
            eventlog.log("pooled", "WARN", "*", text=text, database=self.using)

    def _hear(self, hint: Hint) -> None:
        if hint.kind == "worker":
            if str(self.worker_id) in hint.name.split(","):
                self._fetch(self._newest)
            return
        if hint.kind == "canceled":
            if hint.name == str(self.worker_id):
                asked = workers.canceled(self.worker_id)
                self._stop_canceled(database(self.using).fetch(asked.template, asked.params))
            return
        self.leader.hear(hint)
        if hint.kind == "changed" and not self.leader.lead.held:
            self._fetch(self._newest)

    def _fetch(self, after: int) -> None:
        while True:
            self.begin_fetch()
            runs = workers.assigned(self.using, self.worker_id, after)
            self._take(runs)
            if len(runs) < workers.FETCH_MAX:
                return
            after = runs[-1].token

    def _fetch_unknown(self, tokens: Sequence[int]) -> None:
        """Fetch those of the runs, found by a look that has begun before, that no hint has told of."""
        if len(tokens) >= workers.TOKENS_MAX:
            # There may be more.
            self._fetch(0)
            return
        unknown = self.leader.intake.assignments.unknown(tokens)
        for first in range(0, len(unknown), workers.FETCH_MAX):
            self._take(workers.assigned(self.using, self.worker_id, among=unknown[first : first + workers.FETCH_MAX]))

    def _take(self, runs: Sequence[Run]) -> None:
        if runs:
            self._newest = max(self._newest, runs[-1].token)
            self.submit(runs)

    def _stop_canceled(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Tell runs whose works are canceled; those that know it are not told again."""
        tokens = [token for (token,) in rows if token is not None]
        if tokens:
            self.leader.intake.cancel(tokens)

    def _pulse(self, watch: Watch) -> None:
        self._pulsed = time.monotonic()
        watch.hold(self.worker_id)
        self.begin_fetch()
        leads, accepting = self.leader.lead.held, self.accepting
        parts = [*workers.questions(self.worker_id), WORKERS, database(self.using).clock_part, eventlog.LEVELS]
        parts += self.leader.lead.ask(progress=self.leader.watchdog.turned)
        parts += [*poll.parts(database(self.using)), periodic.TICKS] if leads else []
        if self._is_beat_due(accepting):
            parts.append(workers.beating(self.using, self.worker_id, lockless=not watch.locks, accepting=accepting))
        answers, held = watch.look(parts)
        if "beat" in answers:
            self._note_beat(watch, accepting=accepting, there=bool(answers["beat"]))
        lead = self.leader.lead.take_answers(answers)
        # Somebody may have locked a table for long: what was not seen is looked at with the next pulse.
        if len(answers) == len(parts):
            rows = [WorkerRow(*row) for row in answers["workers"]]
            self._observe(rows, held)
            if lead is not None:
                now_ms = float(answers["clock"][0][0])
                queues = Queues.of(answers, now_ms, self._pulsed) if leads else None
                ticks = periodic.first_ticks(answers, now_ms) if leads else None
                self.leader.outlook.bring(News(at=self._pulsed, now_ms=now_ms, workers=rows, lead=lead, queues=queues, ticks=ticks))
                self.leader.wake()
            self._fetch_unknown([token for (token,) in answers["assigned"]])
            self._stop_canceled(answers["canceled"])
            self._learn([path for (path,) in answers["unknown"]], is_published=bool(answers["published"]))
            eventlog.set_levels(self.using, {pool: level for pool, level in answers["levels"]})

    def _is_beat_due(self, accepting: bool) -> bool:
        every = BEAT_EVERY if database(self.using).leases else BEAT_EVERY_WITH_FLOCK
        return accepting == self.told or time.monotonic() - self.beaten >= every

    def _note_beat(self, watch: Watch, *, accepting: bool, there: bool) -> None:
        if there:
            self.told = not accepting
        elif not self.leaving:
            self._begin_again(watch)
        self.beaten = time.monotonic()
        self.rounds += 1

    def _observe(self, rows: Sequence[WorkerRow], held: set[int] | None) -> None:
        others = [row for row in rows if row.id != self.worker_id]
        lockless = {row.id for row in others if row.lockless}
        dead = self.observer.observe({row.id: row.beat for row in others}, held, lockless=lockless)
        self.leader.others = any(row.accepting and row.id not in dead for row in others)
        self.leader.dead = dead

    def _learn(self, unknown: Sequence[str], *, is_published: bool) -> None:
        """Look for functions that nobody knows, on a thread of its own (their modules' imports may hang); tell of those found."""
        if self._learner is not None and self._learner.is_alive():
            return
        known = len(functions.known())
        if known > self._published or not is_published:
            workers.publish_functions(self.using, self.worker_id)
            self._published = known
            self.leader.hear(Hint("lead"))
            database(self.using).notify([Hint("lead")])
        if set(unknown) - set(functions.known()):
            self._learner = threading.Thread(target=workers.learn, args=(unknown,), name="workpool-learn", daemon=True)
            self._learner.start()

    def _begin_again(self, watch: Watch) -> None:
        """The fleet took this worker for dead and has recovered what it ran: nothing of that can be written any more."""
        old, self.worker_id = self.worker_id, self.register()
        eventlog.log("worker_given_up", "ERROR", "*", worker=old, new_worker=self.worker_id, database=self.using)
        watch.hold(self.worker_id)
