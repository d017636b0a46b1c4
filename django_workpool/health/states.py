"""What can be told of a pool's health: reasons, figures, and what to do."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

#: Seconds after the end of a lease within which somebody else takes the lead.
LEADER_AFTER = 5.0
#: Paths named of works that nobody knows.
PATHS_MAX = 10
#: Pools named of those that have the same fault.
NAMES_MAX = 10


class Reason(StrEnum):
    """Why due works do not start, the gravest first."""

    STALLED = "stalled"
    NO_LEADER = "no_leader"
    NO_WORKER = "no_worker"
    FULL = "full"
    NO_ROOM = "no_room"
    PAUSED = "paused"
    HELD = "held"
    OK = "ok"

    @property
    def is_fault(self) -> bool:
        """Whether somebody must do something; the others are states that a pool may be in."""
        return self in (Reason.STALLED, Reason.NO_LEADER, Reason.NO_WORKER)


_ADVICE = {
    Reason.STALLED: "the leader lives, but places nothing though it could: read its log ('wedged', 'stalled'), and restart that process",
    Reason.NO_LEADER: "no process leads: start workpool_main, or read the logs of those that run",
    Reason.NO_WORKER: "no live worker serves it: start workpool_main, without --pool or with --pool and its name",
    Reason.FULL: "as many works run as its limit allows",
    Reason.NO_ROOM: "all workers that could take its works are full: start more of them, or give them more --threads",
    Reason.PAUSED: "its limit is 0: resume() or configure(max_parallelism=...) lets it go on",
    Reason.HELD: "no live worker knows these functions: deploy their code; works held for longer than HOLD fail",
    Reason.OK: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Works of a pool that wait for a worker that knows their function."""

    works: int
    #: At most ``PATHS_MAX``.
    paths: tuple[str, ...]
    since: datetime
    #: When the first of them fail, if no such worker comes.
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHealth:
    """A pool: its reason, and the figures behind it."""

    pool: str
    reason: Reason
    #: Seconds since the oldest work is due that is neither held nor canceled; 0 if none is.
    lag_s: float
    due: int
    waiting: int
    running: int
    completing: int
    canceling: int
    max_parallelism: int
    held: Held | None
    #: What the loop would have to take next: a second look that finds something else has seen progress.
    head: tuple[object, ...]

    @property
    def advice(self) -> str:
        """What to do, or what to know."""
        return _ADVICE[self.reason]

    def to_json(self) -> dict[str, Any]:
        """Return what ``workpool_status --json`` shows."""
        told = {**asdict(self), "well": not self.reason.is_fault, "advice": self.advice}
        del told["head"]
        return told


def shortened(names: Sequence[str]) -> str:
    """Return names for one line, however many they are."""
    return ", ".join(names[:NAMES_MAX]) + (f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderHealth:
    """Who leads, as the lead's row tells it: None where it does not."""

    present: bool
    #: Seconds since the lease is over; None where nobody has written down when the lead became free.
    absent_s: float | None
    #: Whether there is a process that ought to lead: one that lives, or one that has gone without its end.
    expected: bool
    worker: int | None
    host: str | None
    pid: int | None
    term: int
    lease_expires_in_s: float | None

    @property
    def is_missing(self) -> bool:
        """Whether nobody leads, for longer than a change of the lead takes."""
        return not self.present and (self.absent_s is None or self.absent_s > LEADER_AFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """A worker's row, and whether it lives."""

    id: int
    host: str
    pid: int
    #: None for all.
    pools: tuple[str, ...] | None
    capacity: int
    async_capacity: int
    running: int
    accepting: bool
    left: bool
    beat_age_s: float
    #: Whether its liveness lock is held; None where that cannot be seen.
    lock_held: bool | None
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All pools, the leader and the workers at one moment."""

    pools: tuple[PoolHealth, ...]
    leader: LeaderHealth
    workers: tuple[WorkerHealth, ...]
    #: Where the counts of a pool end.
    count_max: int

    @property
    def problems(self) -> list[str]:
        """What is wrong and what to do, a line for each pool; empty if all is well."""
        return [f"pool {one.pool}: {one.reason}: {one.advice}" for one in self.pools if one.reason.is_fault] or self._nobody()

    @property
    def summary(self) -> list[str]:
        """The same in a line for each reason, however many pools there are."""
        return list(self.faults.values())

    @property
    def faults(self) -> dict[Reason, str]:
        """The lines of ``summary`` by their reason."""
        lines = {}
        for reason in Reason:
            pools = [one.pool for one in self.pools if one.reason is reason and reason.is_fault]
            if pools:
                lines[reason] = f"{shortened(pools)}: {reason}: {_ADVICE[reason]}"
        return lines or dict(zip([Reason.NO_LEADER], self._nobody(), strict=False))

    def _nobody(self) -> list[str]:
        # Where no pool needs a leader now, the next work will.
        missing = self.leader.expected and self.leader.is_missing
        return [f"{Reason.NO_LEADER}: {_ADVICE[Reason.NO_LEADER]}"] if missing else []

    def to_json(self) -> dict[str, Any]:
        """Return what ``workpool_status --json`` shows."""
        return {
            "well": not self.problems,
            "problems": self.problems,
            "pools": [one.to_json() for one in self.pools],
            "leader": asdict(self.leader),
            "workers": [asdict(one) for one in self.workers],
            "count_max": self.count_max,
        }
