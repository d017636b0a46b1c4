"""Drills in which the leader dies, is paused, or is cut off."""

import argparse
import statistics
import time
from collections.abc import Callable

from .drill import RESUMES_WITHIN, Drill, drill
from .evidence import conclude
from .fleet import Main

#: Seconds that a lease lasts, and for which a leader is paused: three of them.
LEASE = 10.0
PAUSE = 3 * LEASE


def _rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="Kills, one after the other (default: %(default)s).")


@drill(
    "kill -9 of the leader: the next work starts within 10 s, nothing runs twice on the survivors",
    seconds=120,
    options=_rounds,
    quick=("--rounds", "1"),
)
def leader_killed(drill: Drill) -> None:
    """Kill the leader again and again while 50 works run on two other processes; measure the time until the next dispatch."""
    drill.set_limit(90)
    drill.fleet.start_many(2, "--threads", "30")
    gaps = []
    for number in range(drill.options.rounds):
        drill.fleet.start_many(3 - len(drill.fleet.alive), "--threads", "30")
        leader, others = drill.leader(), drill.others()
        # Spread evenly over the three.
        for index in range(80):
            drill.enqueue(f"nap.round{number}-{index}", 10.0, callback=True)
        drill.wait(lambda: sum(map(drill.running_on, others)) >= 50, 30, "50 works run on the two others")  # noqa: B023
        leader.kill()
        gaps.append(drill.probe(f"plain.after{number}"))
        print(f"round {number + 1}: {gaps[-1]:.1f} s", flush=True)
        drill.expect(gaps[-1] <= RESUMES_WITHIN, f"the next dispatch came {gaps[-1]:.1f} s after the kill")
        drill.wait(lambda: _none_runs(drill), 60, "the round's works end")
    conclude(drill)
    drill.figures.update(rounds=len(gaps), median_s=f"{statistics.median(gaps):.1f}", longest_s=f"{max(gaps):.1f}")


def _none_runs(drill: Drill) -> bool:
    from django_workpool.models import Work

    return not Work.objects.exists()


def _pause_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inside", action="store_true", help="Stop the leader inside its transaction (PostgreSQL).")
    parser.add_argument("--pause", type=float, default=PAUSE, help="Seconds (default: %(default)s).")


@drill(
    "SIGSTOP of the leader for three leases: one end each, the limit holds, and it writes nothing when it wakes",
    seconds=75,
    options=_pause_options,
)
def leader_paused(drill: Drill) -> None:
    """Pause the leader, with a limit of 1, and wake it when another process leads (on SQLite none does: its lock is held)."""
    drill.set_limit(1)
    first, second = drill.fleet.start_many(2)
    leader = drill.leader()
    standby = second if leader is first else first
    for number in range(12):
        drill.enqueue(f"nap.paused{number}", 2.0, callback=True)
    drill.wait(lambda: drill.running_on(first) + drill.running_on(second) == 1, 30, "a work runs")
    if drill.options.inside:
        _stop_inside(drill, leader)
    else:
        _stop_outside(drill, leader)
    took = _wait_for_take_over(drill, standby) if drill.vendor == "postgresql" else 0.0
    _sleep_until(time.monotonic() + drill.options.pause - took)
    leader.go_on()
    woken = time.time()
    # A leader whose transaction the server has ended loses its session with it, and the lead with its session.
    notice = "loop: the database is away" if drill.options.inside else "lead_lost"
    if drill.vendor == "postgresql":
        drill.fleet.wait_for(leader, notice, 20)
    for number in range(4):
        drill.enqueue(f"plain.woken{number}", callback=True)
    found = conclude(drill)
    if drill.vendor == "postgresql":
        again = [event.at for event in leader.events() if event.event == "lead_taken" and event.at > woken]
        wrote = [event for event in leader.events() if event.event == "started" and woken < event.at < min(again, default=float("inf"))]
        drill.expect(not wrote, f"the old leader started {len(wrote)} works after it woke")
        line = next(line for line in leader.output().splitlines() if notice in line)
        drill.figures.update(taken_over_after_s=f"{took:.1f}", old_leader=f"'{line}'")
    twice = [key for key in {run.key for run in found.runs} if sum(run.key == key for run in found.runs) > 1]
    drill.expect(not twice, f"run twice: {twice}")


def _stop_outside(drill: Drill, leader: Main) -> None:
    """Stop the leader while none of its sessions is in a transaction."""
    if drill.vendor == "sqlite":
        # A process stopped inside a write transaction blocks every writer of the file, which no design mends.
        _stop_where(drill, leader, lambda: not _sqlite_is_locked(drill))
        return
    _stop_where(
        drill,
        leader,
        lambda: (
            not drill.server.fetch(
                "SELECT 1 FROM pg_stat_activity WHERE application_name = 'workpool loop' AND (state <> 'idle' OR backend_xid IS NOT NULL)"
            )
        ),
    )


def _stop_where(drill: Drill, leader: Main, stands: Callable[[], bool]) -> None:
    """Stop the leader, and again until it has come to stand where it should."""
    for _ in range(200):
        leader.stop()
        time.sleep(0.05)
        if stands():
            return
        leader.go_on()
        time.sleep(0.02)
    raise AssertionError("the leader could not be stopped outside of its transactions")


def _sqlite_is_locked(drill: Drill) -> bool:
    import sqlite3

    try:
        connection = sqlite3.connect(drill.database.url.removeprefix("sqlite:///"), timeout=0.2, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        connection.close()
    except sqlite3.OperationalError:
        return True
    return False


def _stop_inside(drill: Drill, leader: Main) -> None:
    """Let an iteration wait for a table that another session has locked, stop the leader there, and give the table back."""
    # What has a transaction's number holds the fence's row already.
    loop = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'workpool loop' AND backend_xid IS NOT NULL"
    waits, inside = f"{loop} AND wait_event_type = 'Lock'", f"{loop} AND state LIKE 'idle in transaction%'"
    with drill.server.session() as session, session.transaction():
        session.execute("LOCK TABLE workpool_pendingcompletion IN ACCESS EXCLUSIVE MODE")
        drill.wait(lambda: drill.server.fetch(waits), 30, "an iteration waits inside its transaction", poll=0.005)
        leader.stop()
    drill.wait(lambda: drill.server.fetch(inside), 2, "the leader is stopped inside its transaction", poll=0.02)
    drill.figures["inside"] = True


def _wait_for_take_over(drill: Drill, standby: Main) -> float:
    """Wait until the standby leads; return how long that took."""
    began = time.monotonic()
    drill.fleet.wait_for(standby, "lead_taken", LEASE + 10)
    drill.expect(time.monotonic() - began <= LEASE + 3, "the standby took the lead too late")
    return time.monotonic() - began


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
