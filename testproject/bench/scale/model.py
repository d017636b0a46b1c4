"""The bounds, as formulas: what each part can carry by itself; the least of them is the wall."""

from dataclasses import dataclass
from math import ceil

from django_workpool.loop.memory import STAYS

from .constants import BATCH, Constants

#: Seconds of a microsecond, bytes of a megabyte.
US, MB = 1e-6, 1e6
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is asked of what.

    Each shard is a database on a server of its own, with a leader of its own; hosts and demand are spread evenly over them.
    """

    hosts: int = 1
    shards: int = 1
    #: Works a second, of all shards together.
    demand: float = 1_000.0
    #: Works that are enqueued by one transaction.
    enqueue_batch: int = 1
    #: Seconds that a function takes, waiting.
    duration: float = 0.01
    #: Whether finished works are kept.
    archive: bool = False
    #: What is not built: a channel for each process, so that a hint wakes only whom it is for.
    channels: bool = False
    #: The same: works that one process gets in a row, before another one gets any (today 1: the least loaded gets the next).
    chunk: int = 1

    @property
    def stays(self) -> bool:
        """Whether functions end so soon that the leader keeps them in its own process as long as that has room."""
        return self.duration < STAYS or self.processes == 1

    def listeners(self, addressed: int) -> int:
        """Return how many processes a hint wakes that is for so many."""
        return addressed if self.channels else self.processes

    @property
    def processes(self) -> int:
        """Processes of one shard: one on each host, and at least one."""
        return max(1, self.hosts // self.shards)

    def speed(self, constants: Constants) -> float:
        """Return how fast Python is: less than 1 if a host has more processes than cores."""
        return min(1.0, self.hosts * constants.host_cores / (self.processes * self.shards))


@dataclass(frozen=True, slots=True)
class Costs:
    """What a work costs in one shard if iterations are as large as they can be: seconds, and bytes."""

    #: Works of one iteration, and of one fetch or completion by one process.
    batch: int
    wave: float
    #: Seconds of an iteration, of which none overlap; and from a start to the end that the leader has seen.
    cycle: float
    flight: float
    #: Of all the server's cores for each work, and of each second whatever is carried.
    server: float
    server_idle: float
    #: Of the process that has most to do.
    host: float
    wal: float


def costs(c: Constants, fleet: Fleet) -> Costs:
    """Return what a work costs."""
    n, speed = fleet.processes, fleet.speed(c)
    batch = int(min(BATCH, n * c.capacity))
    own = min(1.0, c.capacity / batch) if fleet.stays else 1 / n
    other = 1 - own
    alone = not other
    wave = max(min(fleet.chunk, batch, c.capacity), batch / n)
    listeners = fleet.listeners(min(n, ceil(batch / wave)))
    python = (c.leader_own_iteration_us if alone else c.leader_other_iteration_us) + n * c.leader_worker_us
    python += batch * (own * (c.leader_own_work_us + c.exec_us) + other * c.leader_other_work_us)
    server = c.server_own_iteration_us if alone else c.server_other_iteration_us
    server += batch * (own * c.server_own_work_us + other * c.server_other_work_us)
    notify = 0.0 if alone else c.notify_us + listeners * c.signal_us
    python += 0.0 if alone else c.notify_python_us
    cycle = (python / speed + server + c.flush_us + notify) * US
    fetch = c.fetch_server_fixed_us / wave + c.fetch_server_work_us
    complete = c.complete_server_fixed_us / wave + c.complete_server_work_us
    host = c.exec_us + c.fetch_python_work_us + c.complete_python_work_us + (c.fetch_python_fixed_us + c.complete_python_fixed_us) / wave
    away = (wave * (fetch + complete + host / speed) + c.flush_us + listeners * c.wake_server_us / c.server_cores) * US
    hints = 0.0 if alone else (notify + listeners * c.wake_server_us) / batch
    enqueue = c.enqueue_fixed_us / fleet.enqueue_batch + c.enqueue_work_us
    run_wal = own * c.run_own_wal + other * c.run_other_wal
    return Costs(
        batch=batch,
        wave=wave,
        cycle=cycle,
        # Ends of other processes come in the midst of an iteration.
        flight=cycle + fleet.duration + other * (cycle / 2 + away),
        server=(enqueue + server / batch + hints + other * (fetch + complete)) * US,
        server_idle=n * (c.pulse_us + n * c.pulse_row_us) * US,
        host=other * host * US / speed,
        wal=c.enqueue_wal + run_wal + (c.archive_wal if fleet.archive else 0.0),
    )


def bounds(c: Constants, fleet: Fleet) -> dict[str, float]:
    """Return how many works a second each part of all shards can carry, by its name."""
    one, n = costs(c, fleet), fleet.processes
    idle_python = (c.pulse_python_us + n * c.pulse_python_row_us) * US
    each = {
        # The look at the running rows keeps the loop from iterating.
        "leader": one.batch / one.cycle / (1 + one.batch / one.cycle * one.flight * c.reload_row_us * US / 10),
        "server cores": max(0.0, c.server_cores - one.server_idle) / one.server,
        "WAL device": c.wal_mb_s * MB / one.wal,
        "slots": n * c.capacity / one.flight,
        "autovacuum": c.vacuum_bytes_s / c.dead_bytes,
    }
    if one.host:
        each["worker's Python"] = n * max(0.0, 1 - idle_python) / one.host
    return {name: fleet.shards * rate for name, rate in each.items()}


def wall(c: Constants, fleet: Fleet) -> tuple[str, float]:
    """Return the name of what binds, "none" if the demand is carried, and the rate that is carried."""
    name, rate = min(bounds(c, fleet).items(), key=lambda item: item[1])
    return (name, rate) if rate < fleet.demand else (NONE, fleet.demand)


def sessions(c: Constants, fleet: Fleet) -> int:
    """Return how many sessions the pool's own connections need in each server."""
    return int(fleet.processes * c.sessions)
