"""One history: who does what when, who dies, and when all has come to rest."""

import hashlib
import heapq
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connection

from django_workpool import Workpool, configuration, kick
from django_workpool.database import Hint
from django_workpool.execution import limits
from django_workpool.models import Archive, Globals
from django_workpool.types import Run

from . import ending, functions
from .callers import Callers
from .clock import START_MS, clock, dice
from .crashes import LOST, POINTS, Crashes, Died, Fate, Violation
from .ledger import Ledger
from .mains import USING, Main
from .network import Locks, Simulated
from .troubles import Troubles

#: Milliseconds in which a history must come to rest once the chaos is over.
REST_MS = 120_000.0
#: Events of one history, at most: more means that somebody does not stop.
EVENTS_MAX = 20_000
#: Commit points at which a short history seldom passes.
SELDOM = ("execution.run._query", "execution.mutations._mutate", "complete.complete_many")
#: One in so many histories is long.
LONG_EVERY = 5
#: In one in so many a periodic work ticks each second.
TICKING_EVERY = 7
#: Crashes that are aimed at, in turn.
FATES = (Fate.DIE_BEFORE, Fate.DIE_AFTER, Fate.LOSE_BEFORE, Fate.LOSE_AFTER)
#: What must go wrong for a commit point to be reached.
NEEDS = {
    **dict.fromkeys(("execution.workers.stop_accepting", "execution.workers.leave", "runner.lead.hand_over"), "terminate"),
    "execution.workers.unregister": "die",
}
#: The commit points at which everybody passes all the time; at the others it is more dangerous.
FREQUENT = ("loop.iteration.run_iteration", "loop.status.settle", "runner.watcher._pulse")
MORE = 4


class Somebody:
    """A process that only calls the pool."""

    def __init__(self, name: str) -> None:
        self.name = name

    def die(self) -> None:
        """Nobody remembers what it was about to do."""


class World:
    """One history.

    Args:
        seed: Everything random comes from it.
        crashes: The hook behind which all commits lie.
    """

    def __init__(self, seed: int, crashes: Crashes) -> None:
        dice.seed(seed)
        clock.ms = START_MS + dice.randrange(0, 1_000)
        self.seed, self.crashes, crashes.violation = seed, crashes, None
        clock.too_long = lambda: crashes.fail(Violation("something is tried again and again"))
        # Aimed at in all fates by so many seeds; a crash that needs a certain kind of work gets a long one.
        self.short = dice.randrange(LONG_EVERY) > 0 and POINTS[seed % len(POINTS)] not in SELDOM
        self.stage = functions.reset()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.calm = False
        self.current: Any = None
        self.caller = Somebody("caller")
        self.mains: list[Main] = []
        self.take_overs = 0
        self.pools = ["default", "imports"] if dice.random() < 0.15 else ["default"]
        #: Whether a periodic work ticks in it.
        self.ticks = seed % TICKING_EVERY == 0
        # How dangerous this history is: deaths at commits, lost hints, slow threads.
        self.danger = dice.choice((0.0, 0.02, 0.04, 0.08))
        self.losses = dice.choice((0.0, 0.3, 1.0))
        self.slowness = dice.choice((1.0, 20.0, 900.0))
        # One crash that is aimed at, so that every range of seeds has all of them.
        self.target, self.aimed = POINTS[seed % len(POINTS)], FATES[seed // len(POINTS) % len(FATES)]
        self._reset_database()
        self.ledger = Ledger()
        self.callers, self.troubles = Callers(self), Troubles(self)

    def _reset_database(self) -> None:
        self.crashes.decide, self.crashes.committed = lambda name: Fate.LIVE, lambda name, watched: None
        raw = connection.connection
        for table in _tables():
            raw.execute(f"DELETE FROM {table}")
        configuration.create_rows(USING, self.pools)
        Globals.objects.update(log_level="ERROR", max_parallelism=dice.choice((1, 2, 3)))
        Simulated.kicks = Simulated.leases = dice.random() < 0.7
        Simulated.locks, Simulated.broadcast = Locks(), self.send
        Simulated.who = lambda: self.current  # type: ignore[method-assign]
        kick._listeners.clear()
        # Tokens begin anew.
        limits._watched.clear()
        kick.listen(USING, self._hear_directly)
        self.crashes.decide, self.crashes.committed = self._decide, self._committed

    # Events -----------------------------------------------------------------------------------------------------

    def later(self, ms: float, body: Callable[[], None]) -> None:
        """Let ``body`` happen in ``ms`` milliseconds."""
        self._number += 1
        heapq.heappush(self._events, (clock.ms + ms, self._number, body))

    def act(self, who: Any, what: str, body: Callable[[], None]) -> None:
        """Let somebody do something, to its end, its death or the loss of its connection."""
        self.current, self.crashes.what = who, f"{who.name.rstrip('0123456789')} {what}"
        clock.begin_act()
        try:
            body()
        except Died:
            if self.crashes.violation is not None:
                raise self.crashes.violation from None
            self.tell(who.name, f"dies ({what})")
            who.die()
        except Exception as error:
            if LOST not in str(error):
                raise
            self.tell(who.name, f"loses its connection ({what})")
        finally:
            self.crashes.revive()
            self.current, self.crashes.what = None, ""

    def tell(self, who: str, what: str) -> None:
        """Write a line of the history."""
        self.ledger.lines.append(f"{clock.ms - START_MS:8.1f} {who:10} {what}")

    def _decide(self, name: str) -> Fate:
        if name == self.target and (name in NEEDS or name in SELDOM or dice.random() < 0.5):
            self.target, fate = "", self.aimed
            self.tell(self.current.name, f"at {name}: {fate.value}")
            return fate
        if self.calm:
            return Fate.LIVE
        danger = self.danger if name in FREQUENT else min(0.35, self.danger * MORE)
        if dice.random() >= danger:
            return Fate.LIVE
        fate = dice.choice(list(Fate)[1:])
        self.tell(self.current.name, f"at {name}: {fate.value}")
        return fate

    def _committed(self, name: str, watched: bool) -> None:
        self.take_overs += name == "runner.lead.take"
        if watched:
            if not Simulated.kicks:
                self._let_see()
            self.ledger.look(self.current.name, name)
            for main in self.mains:
                if main.cut_off and main.paused and not main.begun <= self.ledger.live:
                    # What it runs has been recovered, and may be running again: now is the moment to come back.
                    main.cut_off = False
                    self.later(dice.uniform(0, 800), lambda main=main: self.troubles.resume(main))  # type: ignore[misc]

    # Hints ------------------------------------------------------------------------------------------------------

    def _hear_directly(self, hint: Hint) -> bool:
        """A kick reaches the loop of the same process without the database."""
        return isinstance(self.current, Main) and not self.current.dead and self.current.leader.hear(hint)

    def send(self, hints: Sequence[Hint]) -> None:
        """Let hints go to all processes: each arrives late, twice, or not at all."""
        for hint in hints:
            for main in [one for one in self.mains if one.started and not one.dead]:
                lost = not self.calm and dice.random() < self.losses
                for _ in range(0 if lost else dice.choice((1, 1, 1, 2))):
                    main.soon(dice.uniform(0.2, 5 if self.calm else 400), "hears", lambda m=main, h=hint: m.process.watcher._hear(h))  # type: ignore[misc]

    def _let_see(self) -> None:
        """Where nobody is told, the others find that something has changed, now or later."""
        for main in self.mains:
            if (
                main.started
                and not main.dead
                and main is not self.current
                and not main.looks
                and (self.calm or dice.random() >= self.losses)
            ):
                main.looks = True
                main.soon(dice.uniform(1, 60), "hears", main.see)

    # What runs take, and how they are called ---------------------------------------------------------------------

    def duration(self, run: Run) -> float:
        """Return how long a function takes."""
        return dice.choice((1.0, dice.uniform(1, 100), dice.uniform(1, 1_500)))

    def label(self, run: Run) -> str:
        """Return what a run's work is called."""
        return f"{self.ledger.labels[run.work_id.hex]} token {run.token}"

    # The history ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Let it happen, and hold its end to what was promised.

        Raises:
            Violation: something does not hold.
        """
        if Simulated.leases and dice.random() < 0.4:
            self.troubles.cuts, self.danger = True, min(self.danger, 0.01)
        overtaken = Simulated.leases and dice.random() < 0.2
        needed = NEEDS.get(self.target, "")
        if needed:
            self.danger = min(self.danger, 0.02)
        # What a process that does not lead has run is completed by itself.
        others = overtaken or needed or self.troubles.cuts or self.target == "complete.complete_many"
        for _ in range(2 if others else dice.choice((1, 2, 2, 3))):
            self.spawn()
        # Most crashes need no more than a few works: short histories let many more of them happen.
        end = dice.uniform(200, 1_000) if self.short else dice.uniform(1_500, 5_000)
        for _ in range(dice.randrange(1, 4) if self.short else dice.randrange(4, 12)):
            self.later(dice.uniform(0, end), self.callers.do_something)
        for _ in range(0 if needed else dice.randrange(0, 2 if self.short else 4)):
            self.later(dice.uniform(0, end), self.troubles.strike)
        if self.ticks:
            self.later(dice.uniform(0, 300), lambda: self.act(self.caller, "schedule", self.callers.schedule))
        if overtaken:
            # A leader that is stopped for longer than its lease.
            self.later(dice.uniform(500, end), lambda: self.troubles.strike("pause", 9_000, of_leader=True))
        if needed:
            self.later(dice.uniform(500, end), lambda: self.troubles.strike(needed, of_leader=True))
        over = START_MS + 1_000 + end + dice.uniform(0, 500 if self.short else 2_500)
        self._go_on(lambda: clock.ms >= over)
        self._calm_down()
        self._end_ticks()
        until = clock.ms + REST_MS
        self._go_on(lambda: self._is_quiet() or clock.ms > until)
        self.tell("world", "has come to rest")
        ending.check(self.ledger, self.stage)

    def _go_on(self, done: Callable[[], bool]) -> None:
        while self._events and not done():
            at, _, body = heapq.heappop(self._events)
            clock.ms = max(clock.ms, at)
            body()
            if self._number > EVENTS_MAX:
                raise Violation("there is no end of events")

    def _is_quiet(self) -> bool:
        return self.ledger.quiet and not any(main.paused and not main.dead for main in self.mains) and not ending.left_over()

    def spawn(self) -> None:
        """Start a process."""
        main = Main(self, len(self.mains) + 1, threads=dice.choice((1, 2, 3)))
        self.mains.append(main)
        self.tell(main.name, "starts")
        self.act(main, "starts", main.start)

    def _calm_down(self) -> None:
        """End the chaos: nobody dies or is stopped any more, and there is somebody to do the work."""
        self.calm, self.slowness = True, 1.0
        self.tell("world", "calms down")
        self._replace()
        # Twice: the aimed crash may still be to come.
        for pool in self.pools * 2:
            self.act(self.caller, "configure", lambda pool=pool: Workpool(pool).configure(max_parallelism=3))  # type: ignore[misc]

    def _end_ticks(self) -> None:
        if self.ticks:
            self.act(self.caller, "unschedule", self.callers.unschedule)

    def died(self) -> None:
        """Take note of a death: after the chaos there is always somebody to do the work."""
        if self.calm:
            self.later(500, self._replace)

    def _replace(self) -> None:
        if not any(not main.dead and not main.stopping and not main.paused for main in self.mains):
            self.spawn()

    def digest(self) -> str:
        """Return what tells this history from all others."""
        kept = [str(row) for row in Archive.objects.order_by("id").values_list("id", "name", "kind", "attempts", "value", "finished")]
        return hashlib.sha256("\n".join([*self.ledger.lines, *kept]).encode()).hexdigest()


def _tables() -> list[str]:
    if not _TABLES:
        names = connection.introspection.table_names()
        _TABLES.extend([f'"{name}"' for name in names if name.startswith(("workpool_", "works_"))] + ["sqlite_sequence"])
    return _TABLES


_TABLES: list[str] = []
