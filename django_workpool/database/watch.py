"""What a process hears from others, and how it shows that it lives: the interface, which each vendor fills."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .parts import Answers, Part, one_by_one

if TYPE_CHECKING:
    from .base import Database


@dataclass(frozen=True, slots=True)
class Hint:
    """Something that probably happened. Whoever loses one finds the rows at its next poll."""

    #: "pool" (look at its queues, without a name at those of all pools), "ended" (the same, soon: a slot of this process is free),
    #: "late" (look behind the cursor too), "worker" (look at its running rows), "canceled" (look at which of its works are canceled),
    #: "lead" (the lead is free, or a worker has come or gone), "changed" (anything).
    kind: str
    name: str = ""


class DatabaseReplaced(Exception):
    """Something else has taken the place of the database: who goes on would work for nobody, and keep others from the new one."""


class Watch(ABC):
    """One process's ear and pulse: it hears hints, and holds the lock by which others know that the process lives.

    Used by one thread, on a connection of its own that is never in a transaction.
    """

    #: Whether it can hold locks at all.
    locks = True
    database: "Database"

    @abstractmethod
    def hold(self, worker_id: int) -> bool:
        """Take the liveness lock of ``worker_id``, or make sure that it is still held; return whether it is."""

    @abstractmethod
    def held(self) -> set[int] | None:
        """Return the workers whose liveness lock is held by anybody; None where locks cannot be used."""

    def look(self, parts: Sequence[Part]) -> tuple[Answers, set[int] | None]:
        """Send parts at once; return their answers, and the workers whose lock is held. No change waits for what a question waits for."""
        return one_by_one(self.database, parts), self.held()

    @abstractmethod
    def wait(self, timeout: float) -> list[Hint]:
        """Wait for hints, at most ``timeout`` seconds."""

    @abstractmethod
    def close(self) -> None:
        """Give up the lock and the connection. Never raises."""
