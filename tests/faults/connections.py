"""Drills in which the database, or the way to it, fails."""

import argparse
import random
import time

from .drill import RESUMES_WITHIN, Drill, drill
from .evidence import conclude
from .fleet import Disturbance, Main
from .journal import read
from .proxy import Proxy
from .workers import expect_once

POSTGRESQL = ("postgresql",)


def _restart_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=100.0, help="Enqueues a second (default: %(default)s).")
    parser.add_argument("--restarts", type=int, default=3)


@drill(
    "PostgreSQL restarted at once three times in 60 s under 100 enqueues/s: what was accepted ends, dispatch resumes within 10 s, "
    "20 long actions are not run again",
    databases=POSTGRESQL,
    seconds=110,
    options=_restart_options,
)
def restarts(drill: Drill) -> None:
    """Crash the server under load, with 20 actions that outlast all of it."""
    drill.set_limit(40)
    drill.fleet.start_many(3, "--threads", "20")
    long = {f"nap.long{number}" for number in range(20)}
    for key in sorted(long):
        drill.enqueue(key, 70.0, callback=True)
    drill.wait(lambda: long <= {run.key for run in read(drill.folder)}, 30, "the 20 long works have begun")
    drill.start_load(rate=drill.options.rate, mix={"plain": 8, "insert": 1, "row": 1})
    began, gaps = time.monotonic(), []
    for number in range(drill.options.restarts):
        time.sleep(max(0.0, began + 60 * (number + 0.5) / drill.options.restarts - time.monotonic()))
        drill.server.restart(away=random.uniform(0, 1.5))
        gaps.append(drill.probe(f"plain.after{number}"))
        drill.expect(gaps[-1] <= RESUMES_WITHIN, f"dispatch resumed {gaps[-1]:.1f} s after start {number + 1}")
    time.sleep(max(0.0, began + 60 - time.monotonic()))
    expect_once(drill, conclude(drill), long)
    drill.figures["resumed_after_s"] = "/".join(f"{gap:.1f}" for gap in gaps)


def _works(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--works", type=int, default=200)


@drill(
    "all sessions of a main cut at random while 200 short works end: each function is called once",
    databases=POSTGRESQL,
    seconds=50,
    quick=("--works", "60"),
    options=_works,
)
def sessions_cut(drill: Drill) -> None:
    """Cut all sessions again and again while completions are written."""
    random.seed(0)
    (main,) = drill.fleet.start_many(1)
    kinds = ["plain", "nap", "row", "coroutine", "insert"]
    keys = {f"{kinds[number % 5]}.{number}" for number in range(drill.options.works)}
    for number, key in enumerate(sorted(keys)):
        drill.enqueue(key, random.uniform(0.1, 0.5), callback=number % 2 == 0)
    cuts, sessions = 0, 0
    while drill.ask(_something_waits) is not False:
        # All that it needs to go on is there again.
        drill.wait(lambda: _sessions(drill) >= 3, 20, "the main has its sessions again", poll=0.02)
        time.sleep(random.uniform(0, 0.6))
        cuts, sessions = cuts + 1, sessions + drill.server.cut()
        drill.expect(cuts < 100, "it takes more than 100 cuts")
        if cuts == 100:
            break
    found = conclude(drill)
    # What uses the database itself fails with its session, and is tried again.
    expect_once(drill, found, {key for key in keys if not key.startswith(("insert", "row"))})
    drill.expect(main.is_alive, "the main has died")
    drill.expect(found.calls, "no on_complete was called")
    drill.figures.update(cuts=cuts, sessions=sessions)


def _something_waits() -> bool:
    from django_workpool.models import PendingStart

    return PendingStart.objects.exists()


def _sessions(drill: Drill) -> int:
    row = drill.server.fetch("SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('workpool loop', 'workpool watch', 'main')")
    return int(row[0][0])


def _proxied_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--delay", type=float, default=60.0, help="Seconds of delay (default: %(default)s).")


@drill(
    "the leader's way to the server is slow for a minute (it keeps the lead), cut, and silent for 20 s (another leads, results come later)",
    databases=POSTGRESQL,
    seconds=130,
    options=_proxied_options,
)
def proxied(drill: Drill) -> None:
    """Put a proxy before the server for the leader only, and let it fail in three ways."""
    with Proxy(drill.server.port) as proxy:
        leader = drill.fleet.start(url=proxy.before(drill.database.url))
        drill.fleet.wait_for(leader, "lead_taken")
        (standby,) = drill.fleet.start_many(1)
        drill.start_load(rate=5, mix={"plain": 5, "nap": 2, "insert": 1})
        _slow(drill, proxy, leader)
        proxy.cut()
        drill.figures["after_cut_s"] = f"{drill.probe('plain.cut'):.1f}"
        if drill.leader() is not leader:
            raise TimeoutError("a cut alone has moved the lead")
        _silent(drill, proxy, leader, standby)
        conclude(drill)


def _slow(drill: Drill, proxy: Proxy, leader: Main) -> None:
    before = sum(event.event == "lead_taken" for event in drill.fleet.events())
    proxy.delay(200)
    time.sleep(drill.options.delay)
    changes = sum(event.event == "lead_taken" for event in drill.fleet.events()) - before
    drill.expect(changes == 0 and drill.leader() is leader, f"{changes} take-overs while the way was slow")
    proxy.normal()


def _silent(drill: Drill, proxy: Proxy, leader: Main, standby: Main) -> None:
    keys = {f"nap.silent{number}" for number in range(16)}
    for key in sorted(keys):
        drill.enqueue(key, 6.0, callback=True)
    drill.wait(lambda: drill.running_on(leader) >= 5 and keys <= {run.key for run in read(drill.folder)}, 30, "all of them run")
    since = time.monotonic()
    proxy.swallow()
    drill.fleet.wait_for(standby, "lead_taken", 18)
    drill.figures["taken_over_after_s"] = f"{time.monotonic() - since:.1f}"
    drill.probe("plain.silent")
    time.sleep(max(0.0, since + 20 - time.monotonic()))
    proxy.normal()
    # Its sessions were open at the server all the time: it was never dead, and what it ran is not run again.
    drill.fleet.disturbances.append(Disturbance("cut off", 0, since, time.monotonic()))
    drill.wait(lambda: _ended(keys), 40, "what was ready is written")
    counts = [sum(run.key == key for run in read(drill.folder)) for key in keys]
    drill.expect(set(counts) == {1}, f"runs of what was ready: {counts}")


def _ended(keys: set[str]) -> bool:
    from ..works.models import Event

    return Event.objects.filter(name="called", text__in=[f"success:{key}" for key in keys]).count() == len(keys)


@drill("fail-over to a server that is read-only for 15 s, and back: nothing is lost, dispatch resumes", databases=POSTGRESQL, seconds=60)
def read_only(drill: Drill) -> None:
    """Let the server refuse writes for a while, under load."""
    drill.fleet.start_many(2)
    drill.start_load(rate=20, mix={"plain": 6, "nap": 2, "insert": 1, "row": 1})
    time.sleep(5)
    long = {f"nap.long{number}" for number in range(3)}
    for key in sorted(long):
        drill.enqueue(key, 20.0, callback=True)
    drill.wait(lambda: long <= {run.key for run in read(drill.folder)}, 30, "the long works have begun")
    with drill.server.read_only():
        time.sleep(15)
    gap = drill.probe("plain.after")
    drill.expect(gap <= RESUMES_WITHIN, f"dispatch resumed {gap:.1f} s after the end")
    expect_once(drill, conclude(drill), long)
    drill.figures["resumed_after_s"] = f"{gap:.1f}"
