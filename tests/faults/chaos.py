"""The faults of a soak: what each does, and how it ends again. Several last for a while, and overlap."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError, connections

from .drill import Drill
from .fleet import BEYOND, GRACE, Disturbance, Main
from .proxy import Proxy

#: Seconds until a main that has ended is replaced.
REPLACED = (0.5, 4.0)
#: Seconds for which what was cut off may still be taken for lost: a window of its own, once the others see it.
AFTER = 12.0


@dataclass
class Slot:
    """A place in the fleet: what its mains are started with, and the one that is there."""

    arguments: Sequence[str]
    url: str
    main: Main | None = None
    due: float = 0.0
    told: float | None = None


@dataclass
class Chaos:
    """The fleet of a soak, and what was done to it."""

    drill: Drill
    dice: random.Random
    fleet: Sequence[Sequence[str]]
    url_of_last: str
    proxy: Proxy | None
    #: The pool's limit, when nobody changes it.
    limit: int
    slots: list[Slot] = field(default_factory=list)
    #: What ends later: when, and what is to be done.
    _later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def start(self) -> None:
        """Start the fleet, and wait until it is there."""
        urls = [""] * (len(self.fleet) - 1) + [self.url_of_last]
        self.slots = [Slot(arguments, url) for arguments, url in zip(self.fleet, urls, strict=True)]
        self.tend()
        self._wait_for_fleet()

    def _wait_for_fleet(self) -> None:
        for slot in self.slots:
            if slot.main is not None:
                self.drill.fleet.wait_for(slot.main, "process_started")

    def later(self, seconds: float, step: Callable[[], object]) -> None:
        """Do something when ``seconds`` are over, or at the end."""
        self._later.append((time.monotonic() + seconds, step))

    def tend(self) -> None:
        """Do what is due: end faults, replace mains that have ended, look after those that are to end."""
        now = time.monotonic()
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        for _, step in due:
            step()
        for slot in self.slots:
            self._tend_slot(slot, now)

    def _tend_slot(self, slot: Slot, now: float) -> None:
        if slot.main is not None and slot.main.is_alive:
            if slot.told is not None and now - slot.told > GRACE + BEYOND:
                self.drill.problems.append(f"main {slot.main.number} has not ended {now - slot.told:.0f} s after SIGTERM")
                slot.main.kill()
        elif slot.main is not None:
            self._take_leave(slot, slot.main)
            slot.main, slot.told, slot.due = None, None, now + random.uniform(*REPLACED)
        elif now >= slot.due:
            slot.main = self.drill.fleet.start(*slot.arguments, url=slot.url)

    def _take_leave(self, slot: Slot, main: Main) -> None:
        code = main.started.process.returncode
        # Before its first line a Python process cannot take a signal: the system's default ends it.
        unborn = code == -15 and not main.output()
        if slot.told is not None and code != 0 and not unborn:
            self.drill.problems.append(f"main {main.number} was told to end, and ended with {code}")

    def restore(self) -> None:
        """End all faults, and bring the fleet back."""
        for _, step in self._later:
            step()
        self._later.clear()
        for slot in self.slots:
            if slot.main is not None:
                slot.main.go_on()
        if self.proxy is not None:
            self.proxy.normal()
        deadline = time.monotonic() + GRACE + BEYOND + 10
        while any(slot.main is None or slot.told is not None for slot in self.slots) and time.monotonic() < deadline:
            self.tend()
            time.sleep(0.1)
        self._wait_for_fleet()

    # Whom it hits -----------------------------------------------------------------------------------------------

    def candidates(self) -> list[Slot]:
        """Return the slots whose main lives, is not stopped, and was not told to end."""
        return [s for s in self.slots if s.main is not None and s.main.is_alive and not s.main.is_stopped and s.told is None]

    def pick(self, dice: random.Random, leads: bool | None = None) -> Slot | None:
        """Return a slot: the leader's, another one's, or any; any where that cannot be told."""
        slots = self.candidates()
        if leads is not None:
            leader = self.drill.ask(self.drill.leader_now)
            fitting = [slot for slot in slots if (slot.main is leader) == leads]
            slots = fitting or slots
        return dice.choice(slots) if slots else None

    @property
    def cut_off(self) -> Main | None:
        """The main behind the proxy."""
        return self.slots[-1].main

    # Faults of the way to the server ----------------------------------------------------------------------------

    def disturb_way(self, seconds: float) -> None:
        """Note that the main behind the proxy is cut off for some seconds from now."""
        main, now = self.cut_off, time.monotonic()
        if main is not None:
            pids = [main.pid, *main.children()]
            self.drill.fleet.disturbances.extend(Disturbance("cut off", pid, now, now + seconds + AFTER) for pid in pids)

    def lock_fence(self, seconds: float) -> None:
        """Hold the fence's rows in another session."""
        session = self.drill.server.session()
        try:
            session.execute("SET lock_timeout = '3s'")
            session.execute("BEGIN")
            session.execute("SELECT 1 FROM workpool_internalstate, workpool_lead FOR UPDATE")
        finally:
            self.later(seconds, session.close)

    def patiently(self, step: Callable[[], object]) -> str:
        """Ask something of the database that may be away; return what became of it."""
        try:
            return str(step())
        except (DatabaseError, InterfaceError) as error:
            connections.close_all()
            return f"refused: {type(error).__name__}"
