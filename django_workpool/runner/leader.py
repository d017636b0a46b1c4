"""The loop's thread: take the lead when it is to be had; while leading, iterate the pools that need it and act on what they return."""

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING

from django.db import DatabaseError, OperationalError, connections

from .. import eventlog
from ..database import Hint, database
from ..database_errors import is_away
from ..exceptions import StaleGeneration
from ..execution import workers
from ..failures import first_line
from ..health.watchdog import Watchdog
from ..loop import state, status
from ..loop.fleet import Fleet
from ..loop.memory import PoolMemory
from ..models import Globals, InternalState
from ..segments import segment_ms
from ..types import LoopState
from . import troubles
from .ear import Ear
from .lead import Leadership
from .linger import Linger
from .outlook import LATE, Outlook, Queues
from .pruner import Pruner
from .troubles import Troubles
from .turns import Turns

if TYPE_CHECKING:
    from .intake import Intake

logger = logging.getLogger("django_workpool.loop")

#: Seconds of iterations after which the loop looks around, though more pools are due.
ROUND = 3.0
#: Seconds of a long iteration.
LONG = 0.02
#: Seconds between two attempts to take the lead.
STANDBY_EVERY = 1.0


class Leader:
    """One process's main loop.

    Args:
        using: The database.
        owner: The process.
        intake: Takes the runs assigned to this process, and keeps its results.
    """

    def __init__(self, using: str, owner: uuid.UUID, intake: "Intake") -> None:
        self.using, self.owner, self.intake = using, owner, intake
        self.results = intake.writer
        self.db = database(using)
        self.lead = Leadership(using, owner)
        self.fleet = Fleet()
        #: Workers and processes seen dead, told by the watch.
        self.dead: set[int] = set()
        #: The process ends: the lead is for somebody else, if there are others that take works.
        self.hand_over_asked = threading.Event()
        self.others = False
        self._memories: dict[str, PoolMemory] = {}
        self._next: dict[str, float] = {}
        self._linger = Linger(intake.executors)
        intake.executors.serve_loop(self.wake, lambda: self.lead.held)
        #: The watch brings it what it finds: while nothing happens, the thread needs no statement of its own.
        self.outlook = Outlook(using)
        self._pruner = Pruner(using)
        self._ear = Ear()
        self._turns = Turns(using, owner, self.fleet, intake)
        self.watchdog = Watchdog(using)
        self._troubles = Troubles()

    # What other threads call ------------------------------------------------------------------------------------

    def hear(self, hint: Hint) -> bool:
        """Take a hint; return whether it has reached the leader."""
        if not self._linger.covers(hint):
            self._ear.hear(hint)
        return self.lead.held and hint.kind in ("pool", "ended", "late")

    def wake(self) -> None:
        """Let the thread look at its flags, and at what waits in this process."""
        self._ear.wake()

    # The thread -------------------------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Stand by or lead until ``stop``."""
        self.db.private_connection("loop")
        self.fleet.refreshed = float("-inf")
        try:
            while not stop.is_set():
                self.watchdog.turn(leads=self.lead.held, fleet=self.fleet, dead=self.dead, lead=self.outlook.lead)
                if self.hand_over_asked.is_set() and self.others:
                    self.results.detach()
                    self.lead.hand_over()
                    self._ear.wait(STANDBY_EVERY)
                elif not self.lead.held and not self._take_lead():
                    self._stand_by()
                else:
                    self._lead_once()
            self.lead.hand_over()
        except BaseException:
            # Whatever it was, the memory may no longer fit the rows.
            self.lead.step_down()
            raise
        finally:
            self.results.detach()
            connections[self.using].close()

    def _stand_by(self) -> None:
        """Sleep until the lead may be free: what other hints tell is the leader's matter."""
        end = time.monotonic() + STANDBY_EVERY
        hints = self._ear.wait(STANDBY_EVERY)
        while hints and not any(hint.kind == "lead" for hint in hints):
            hints = self._ear.wait(end - time.monotonic())
        self._take_hints(hints)

    def _take_lead(self) -> bool:
        """Take the lead if it is to be had. Without a hint, what the watch brings tells whether a try is worth its statements."""
        try:
            tries, seen = self.fleet.is_late, self.outlook.lead
            self.outlook.read_workers(self.fleet)
            dead = {worker.process for worker in self.fleet.workers.values() if worker.id in self.dead}
            if not tries and not (seen and self.lead.may_take(*seen, dead)):
                return False
            if not self.lead.take(dead):
                return False
        except OperationalError as error:
            if is_away(error):
                raise
            # A row is held by an old leader that has stopped; it is tried again.
            logger.warning("the lead cannot be taken: %s", first_line(error))
            return False
        eventlog.log("lead_taken", "REPORT", "*", term=self.lead.term, owner=self.owner)
        self._memories.clear()
        self._next.clear()
        self.fleet.refresh(self.using, now=True)
        self._adopt_pools()
        self.results.attach(self._ear.wake)
        return True

    def _adopt_pools(self) -> None:
        """Make the memory of each pool; it reads its running rows in its first iteration."""
        for pool, generation in InternalState.objects.using(self.using).values_list("pool", "generation"):
            if pool not in self._memories:
                self._memories[pool] = PoolMemory(pool=pool, generation=generation, report=state.load(self.using, pool))
                self._next[pool] = 0.0
        eventlog.set_levels(dict(Globals.objects.using(self.using).values_list("pool", "log_level")))

    def _lead_once(self) -> None:
        """Look around, iterate what is due, sleep."""
        try:
            if self.lead.is_lost:
                self._lose("the lease was lost")
                return
            until = time.monotonic() + ROUND
            self._look_around()
            self._linger.plan(self._next, self.results.pools(), lambda pool: self._memories[pool].stays)
            for pool in self._due_pools():
                self._iterate_guarded(pool)
                if not self.lead.held or self.lead.is_lost or time.monotonic() >= until:
                    return
            self._pruner.prune()
        except DatabaseError as error:
            self._trouble("*", error)
            self._ear.wait(troubles.RETRY_AFTER)
            return
        wake_at = min([*self._next.values(), self.outlook.polled + LATE, self._pruner.next_at])
        self._take_hints(self._ear.wait(wake_at - time.monotonic()))

    def _due_pools(self) -> list[str]:
        """Return the pools that are due; those that wait for room come first, the longest wait before the others."""
        due = [pool for pool, at in self._next.items() if at <= time.monotonic()]
        waits = {pool: self._memories[pool].starving_since for pool in due}
        return sorted(due, key=lambda pool: float("inf") if waits[pool] is None else waits[pool] or 0.0)

    def _iterate_guarded(self, pool: str) -> None:
        """Iterate one pool; what fails there must not stop the others."""
        self.watchdog.turned = time.monotonic()
        try:
            self._iterate(pool)
            self._troubles.over(pool)
        except StaleGeneration as error:
            self._lose(str(error))
        except Exception as error:
            self._trouble(pool, error)

    def _trouble(self, pool: str, error: Exception) -> None:
        """Something failed and has written nothing: step down, or read everything again and try once more soon."""
        if is_away(error):
            # The thread begins again with a new connection: as a standby, that takes the lead back if nobody else has.
            raise error
        retry_at = self._troubles.note(pool, error, is_over=self.lead.is_over)
        if pool in self._memories:
            self._memories[pool].loaded = float("-inf")
            self._next[pool] = retry_at
        if self.lead.is_over:
            self._lose("the lease could not be renewed")

    def _lose(self, reason: str) -> None:
        self.lead.step_down()
        self.results.detach()
        self._memories.clear()
        self._next.clear()
        self.fleet.refreshed = float("-inf")
        eventlog.log("lead_lost", "WARN", "*", term=self.lead.term, owner=self.owner, reason=reason)

    def _take_hints(self, hints: set[Hint]) -> None:
        for hint in hints:
            if hint.kind == "ended" and hint.name in self._memories:
                self._linger.pools.setdefault(hint.name, 0.0)
            elif hint.kind in ("pool", "late") and hint.name in self._memories:
                self._next[hint.name], self._memories[hint.name].hurries = 0.0, True
                if hint.kind == "late":
                    self._memories[hint.name].rewind()
            elif hint.kind in ("pool", "ended", "changed"):
                self.outlook.polled = float("-inf")
            elif hint.kind == "lead":
                self.fleet.refreshed = float("-inf")

    # What the leader sees to between iterations -----------------------------------------------------------------

    def _look_around(self) -> None:
        self.fleet.dead = self.dead & set(self.fleet.workers)
        if self.outlook.read_workers(self.fleet):
            self._recount()
            self._next = dict.fromkeys(self._next, 0.0)
        self._bury()
        if queues := self.outlook.read_queues():
            self._find(queues)
        self.outlook.plan_ticks(self._memories, self._next)

    def _recount(self) -> None:
        self.fleet.recount(one for memory in self._memories.values() for one in memory.running.values())

    def _bury(self) -> None:
        """Recover what was assigned to workers that are gone; delete their rows once nothing runs on them."""
        gone = self.fleet.dead | {worker for worker in self.fleet.workers if self.fleet.has_left(worker)}
        if not gone:
            return
        running = {one.worker_id for memory in self._memories.values() for one in memory.running.values()}
        loaded = all(memory.loaded > 0 for memory in self._memories.values())
        for worker in gone - running if loaded else set():
            if worker in self.fleet.dead:
                eventlog.log("worker_lost", "WARN", "*", worker=self.fleet.name(worker))
            workers.unregister(self.using, worker)
            self.fleet.refreshed = float("-inf")
        for memory in self._memories.values():
            if any(self.fleet.is_lost(one.worker_id) for one in memory.running.values()):
                self._next[memory.pool] = 0.0

    def _find(self, queues: Queues) -> None:
        """Wake pools whose queues hold something, whatever hints were lost; adopt pools that are new."""
        found, now_ms = queues.due, queues.now_ms
        if not found.keys() <= self._memories.keys():
            self._adopt_pools()
        for pool, segment in found.items():
            memory, wait = self._memories[pool], max(0.0, segment_ms(segment) - now_ms)
            # Nobody has told of what is due later if the pool is still said to be idle: an iteration says when the loop comes back.
            untold = memory.status is not None and memory.status[0] == LoopState.IDLE
            self._next[pool] = min(self._next[pool], 0.0 if untold else queues.at + wait / 1000)
            memory.suspects_behind |= not wait
        self.watchdog.look(found, now_ms, self.fleet.dead)
        for pool, memory in self._memories.items():
            memory.batches = queues.batches.get(pool)
            lost = any(self.fleet.is_lost(one.worker_id) for one in memory.running.values())
            if lost or memory.status is None or (memory.dirty and time.monotonic() - memory.saved >= state.SAVE_EVERY):
                self._next[pool] = 0.0

    # One iteration and what follows it --------------------------------------------------------------------------

    def _iterate(self, pool: str) -> None:
        memory = self._memories[pool]
        self._linger.begin(pool)
        stale = memory.is_stale()
        waiting = [one for one in self._memories.values() if one.starving_since is not None and one is not memory]
        began = time.monotonic()
        it = self._turns.take(memory, yields=bool(waiting))
        if stale:
            self._recount()
        if it.started or not it.starved:
            # Whoever has got something waits anew.
            memory.starving_since = None
        if it.starved and memory.starving_since is None:
            memory.starving_since = time.monotonic()
        if it.ended:
            self._next |= {one.pool: 0.0 for one in waiting}
        self._linger.end(pool)
        again = status.settle(self.db, memory, status.wanted(it)) or it.again
        if again:
            took = time.monotonic() - began
            self._next[pool] = time.monotonic() + (self.db.courtesy * took if took > LONG else 0.0)
        else:
            self._next[pool] = min(memory.next_look(it.depth), it.at + it.wait)
