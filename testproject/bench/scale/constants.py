"""What the parts cost, as measured on two cores with PostgreSQL 15 and fsync on, beside other load; and what is assumed of larger machines.

``manage.py bench_scale --measure`` measures most of it again. Microseconds of processor time of one work, unless a name or a line says
something else; ``fixed``: of each call, however many works it is for. "Python" is the process, "server" its session in PostgreSQL.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

#: Works that an iteration starts: what the constants were measured with. The loop takes twice as many by now.
BATCH = 256

LOOP = "measured: an iteration alone in its process, batches of 16 and of 256"
CALL = "measured: the call alone in its process, batches of 16 and of 256"
HINT = "measured: 12 and 40 sessions that listen"
PULSE = "measured: the watch's pulse among 20 and among 1,000 workers"
ASSUMED = "assumed"


def _from(value: float, source: str) -> Any:
    return field(default=value, metadata={"source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """All that the model and the simulation know of the system."""

    # The leader. "own": works that its own process runs, whose ends need no pending completion.
    leader_own_iteration_us: float = _from(720, LOOP)
    leader_own_work_us: float = _from(11, LOOP)
    server_own_iteration_us: float = _from(440, LOOP)
    server_own_work_us: float = _from(11, LOOP)
    leader_other_iteration_us: float = _from(880, LOOP)
    leader_other_work_us: float = _from(12, LOOP)
    server_other_iteration_us: float = _from(530, LOOP)
    server_other_work_us: float = _from(10.5, LOOP)
    #: Of each iteration, for each process: its rooms are counted and put into a heap.
    leader_worker_us: float = _from(
        4.2, "measured: a placement of 256 among 100 and among 1,000 workers; three times that when it collects garbage"
    )
    #: The look at each running row every ten seconds, both sides of it.
    reload_row_us: float = _from(14, "measured: 256 rows")
    # A worker.
    exec_us: float = _from(20, "between 9, the executor alone, and 30, manage.py bench drain beside other load; not its waiting")
    fetch_python_fixed_us: float = _from(480, CALL)
    fetch_python_work_us: float = _from(10.5, CALL)
    fetch_server_fixed_us: float = _from(110, CALL)
    fetch_server_work_us: float = _from(3.5, CALL)
    complete_python_fixed_us: float = _from(360, CALL)
    complete_python_work_us: float = _from(4.5, CALL)
    complete_server_fixed_us: float = _from(190, CALL)
    complete_server_work_us: float = _from(19.5, CALL)
    # Whoever enqueues; his Python is his own matter.
    enqueue_fixed_us: float = _from(380, "measured: enqueue one by one, less what a work costs")
    enqueue_work_us: float = _from(10, "measured: enqueue_many, a thousand a statement")
    # Hints: NOTIFY wakes each session that listens, whomever it is for.
    notify_us: float = _from(32, HINT)
    notify_python_us: float = _from(70, HINT)
    signal_us: float = _from(5, HINT)
    #: To signal a session that has not yet heard the last signal.
    signal_again_us: float = _from(1, ASSUMED)
    wake_server_us: float = _from(19, HINT)
    wake_python_us: float = _from(9, HINT)
    # The pulse of each process, each second, and what it costs for each row of a worker and lock that it looks at.
    pulse_us: float = _from(215, PULSE)
    pulse_row_us: float = _from(4.5, PULSE)
    pulse_python_us: float = _from(210, PULSE)
    pulse_python_row_us: float = _from(3.5, PULSE)
    # The log. Bytes of a work; a flush ends all commits that wait for it.
    enqueue_wal: float = _from(717, "measured: enqueue_many")
    run_own_wal: float = _from(494, LOOP)
    run_other_wal: float = _from(1009, LOOP)
    archive_wal: float = _from(370, "measured: works with and without RETENTION")
    flush_us: float = _from(300, "measured: 120 to 500, whatever else the disk had to do")
    wal_mb_s: float = _from(500, ASSUMED)
    # Machines.
    server_cores: float = _from(16, ASSUMED)
    host_cores: float = _from(8, ASSUMED)
    #: Works that a process takes at once, those of --prefetch included.
    capacity: float = _from(512, ASSUMED)
    #: Sessions of a process without those of its functions: loop, watch, writer, and one for whatever else.
    sessions: float = _from(4, "counted")
    #: Bytes of heap and indexes that a work leaves to VACUUM, and how many a second autovacuum cleans with its default cost limit.
    dead_bytes: float = _from(900, ASSUMED)
    vacuum_bytes_s: float = _from(5_000 * 8_192, "computed: 200 credits each 2 ms, 20 for a page")


def sources() -> dict[str, str]:
    """Return where each constant comes from."""
    return {one.name: one.metadata["source"] for one in fields(Constants)}


def share_of_one(constants: Constants, shards: int) -> Constants:
    """Return the constants of each of some databases that one server has: hints reach only sessions of their database."""
    return replace(
        constants,
        server_cores=max(1.0, constants.server_cores / shards),
        wal_mb_s=constants.wal_mb_s / shards,
        vacuum_bytes_s=constants.vacuum_bytes_s / shards,
    )
