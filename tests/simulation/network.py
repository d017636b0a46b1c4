"""The database as the simulation has it: its clock, its locks and its hints are the world's."""

from collections.abc import Callable, Sequence

from django_workpool.database import Condition, Hint, Watch, database
from django_workpool.database import sqlite as product

from .clock import clock


class Locks:
    """The locks that live as long as their process."""

    def __init__(self) -> None:
        #: Who holds the lead, where it is a lock.
        self.lead: object | None = None
        #: The workers whose liveness lock is held, and by whom.
        self.workers: dict[int, object] = {}

    def release(self, who: object) -> None:
        """Free all locks of a process."""
        self.lead = None if self.lead is who else self.lead
        self.workers = {worker: holder for worker, holder in self.workers.items() if holder is not who}


class Simulated(product.SQLite):
    """SQLite in memory, which behaves to the package as PostgreSQL does (a lease, kicks) or as SQLite does (a lock, a look)."""

    clock_ms_sql = "virtual_ms()"
    locks = Locks()

    @staticmethod
    def who() -> object:
        """Return the process that is at work; set by the world."""
        return None

    #: Takes hints that go to all processes; set by the world.
    broadcast: Callable[[Sequence[Hint]], None] = staticmethod(lambda hints: None)

    def clock_ms(self) -> float:
        return clock.ms

    def private_connection(self, purpose: str) -> None:
        """There is one connection, and one at a time who uses it."""

    def notify(self, hints: Sequence[Hint], unless: Condition | None = None) -> None:
        if self.kicks and not (unless and self.fetch(*unless)):
            Simulated.broadcast(hints)

    def take_lead_lock(self) -> bool:
        who = Simulated.who()
        if not self.leases and self.locks.lead is None:
            self.locks.lead = who
        return self.leases or self.locks.lead is who

    def release_lead_lock(self) -> None:
        if self.locks.lead is Simulated.who():
            self.locks.lead = None

    def forget_worker(self, worker_id: int) -> None:
        """There is no file to remove."""


class SimulatedWatch(Watch):
    """A process's pulse."""

    def __init__(self, who: object) -> None:
        self.process, self.database = who, database("default")

    def hold(self, worker_id: int) -> bool:
        Simulated.locks.workers.setdefault(worker_id, self.process)
        return Simulated.locks.workers[worker_id] is self.process

    def held(self) -> set[int] | None:
        return set(Simulated.locks.workers)

    def wait(self, timeout: float) -> list[Hint]:
        return []

    def close(self) -> None:
        """Nothing is open."""
