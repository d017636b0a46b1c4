"""The table: one line for hosts, demand and shards, with what the simulation says, and what the formulas do."""

from dataclasses import dataclass

from .constants import Constants
from .model import NONE, Fleet, sessions, wall
from .simulate import Simulation

HEADINGS = (
    ("hosts", 6),
    ("demand/s", 9),
    ("shards", 7),
    ("carried/s", 10),
    ("bound/s", 9),
    ("leader", 7),
    ("batch", 6),
    ("cores", 6),
    ("WAL MB/s", 9),
    ("hints/s", 8),
    ("p50 ms", 7),
    ("p99 ms", 7),
    ("sessions", 9),
    ("  wall", 16),
)
#: The share of what is enqueued that counts as all of it, and of the cores that counts as all of them.
ALL, FULL = 0.95, 0.9
#: What binds if only the hints can be it: the formulas leave out those that stop when a backlog lasts.
HINTS = "hints"


@dataclass(frozen=True, slots=True)
class Line:
    """What one line tells; shares, batches and rates of hints and of the log are those of one shard."""

    fleet: Fleet
    carried: float
    bound: float
    leader: float
    batch: float
    cores: float
    wal_mb_s: float
    hints_s: float
    p50: float
    p99: float
    grows: bool
    sessions: int
    wall: str

    def __str__(self) -> str:
        late = ["grows", "grows"] if self.grows else [f"{self.p50 * 1000:.1f}", f"{self.p99 * 1000:.1f}"]
        values = [
            f"{self.fleet.hosts:,}",
            f"{self.fleet.demand:,.0f}",
            str(self.fleet.shards),
            f"{self.carried:,.0f}",
            f"{self.bound:,.0f}",
            f"{self.leader:.0%}",
            f"{self.batch:.0f}",
            f"{self.cores:.1f}",
            f"{self.wal_mb_s:.1f}",
            f"{self.hints_s:,.0f}",
            *late,
            f"{self.sessions:,}",
        ]
        return "".join(f"{value:>{width}}" for value, (_, width) in zip(values, HEADINGS, strict=False)) + f"  {self.wall}"


def heading() -> str:
    """Return the line above all."""
    return "".join(f"{name:>{width}}" if name.strip() != "wall" else name for name, width in HEADINGS)


def line(constants: Constants, fleet: Fleet, *, seed: int, works: int) -> Line:
    """Simulate, and return what is told of it."""
    result = Simulation(constants, fleet, seed=seed, works=works).run()
    name, bound = wall(constants, fleet)
    if name == NONE and (result.held_back or result.carried < ALL * result.offered):
        name = HINTS
    elif name == NONE and result.cores > FULL * constants.server_cores:
        name = f"({HINTS})"
    return Line(
        fleet=fleet,
        carried=result.carried,
        bound=bound,
        leader=result.leader,
        batch=result.batch,
        cores=result.cores,
        wal_mb_s=result.wal_mb_s,
        hints_s=result.hints_s,
        p50=result.percentile(0.5),
        p99=result.percentile(0.99),
        grows=result.held_back,
        sessions=sessions(constants, fleet),
        wall=name,
    )
