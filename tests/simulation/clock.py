"""The only time and the only chance that the package knows in a simulation."""

import random
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

#: Some moment in 2027, in milliseconds since 1970.
START_MS = 1_800_000_000_000.0
#: What the monotonic clock says then: never 0, which some would take for false.
BOOT = 1_000.0
#: Seconds that whoever does something may sleep over it: more means that it is tried for ever.
PATIENCE = 60.0


class Clock:
    """A clock that moves when it is told to. It stands for the database's and for each process's own."""

    def __init__(self) -> None:
        self.ms = START_MS
        #: Called when somebody has waited too long inside one act.
        self.too_long: Callable[[], None] = lambda: None
        self._patience = 0.0

    def begin_act(self) -> None:
        """Let somebody begin to do something."""
        self._patience = PATIENCE

    def monotonic(self) -> float:
        """Return seconds since some moment."""
        return BOOT + (self.ms - START_MS) / 1000

    def time(self) -> float:
        """Return seconds since 1970."""
        return self.ms / 1000

    def time_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return int(self.ms * 1000) * 1000

    def sleep(self, seconds: float) -> None:
        """Let whoever waits inside an act wait: everybody else is late by as much."""
        self.ms += max(0.0, seconds) * 1000
        self._patience -= seconds
        if self._patience < 0:
            self.too_long()


clock = Clock()
#: Drawn from by the simulation and by the package; seeded for each history.
dice = random.Random(0)


def install() -> None:
    """Give all modules of the package this clock and these dice."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "django_workpool":
            continue
        for attribute, real, virtual in (("time", time, clock), ("random", random, dice)):
            if getattr(module, attribute, None) is real:
                setattr(module, attribute, virtual)
    from django_workpool import ids
    from django_workpool.execution import workers

    setattr(ids, "os", SimpleNamespace(urandom=dice.randbytes))  # noqa: B010 - a module in the place of a module
    workers.host_name = lambda: "host"
