"""Drills in which the database is away for long, locked, short of connections, or impatient."""

import argparse
import os
import shutil
import subprocess
import time

import psutil

from .connections import POSTGRESQL
from .drill import RESUMES_WITHIN, Drill, Skipped, drill
from .evidence import conclude
from .journal import read
from .proxy import Proxy
from .workers import expect_once

#: Lines of log that an outage of five minutes may cost each process.
LINES_IN_5_MINUTES = 50


def _outage_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", type=float, default=60.0, help="Seconds of outage at the start (default: %(default)s).")
    parser.add_argument("--outage", type=float, default=300.0, help="Seconds of outage later (default: %(default)s).")


@drill(
    "the database is away for a minute when mains start and for five minutes later: few lines of log, and everything goes on by itself",
    databases=POSTGRESQL,
    seconds=400,
    options=_outage_options,
)
def outage(drill: Drill) -> None:
    """Start without a server, then take it away again while works run."""
    drill.server.cluster.stop()
    mains = [drill.fleet.start() for _ in range(2)]
    time.sleep(drill.options.start)
    drill.server.cluster.start()
    for main in mains:
        drill.fleet.wait_for(main, "process_started", 40)
    drill.figures["started_after_s"] = f"{drill.probe('plain.start'):.1f}"
    drill.enqueue("nap.long", drill.options.outage / 2, callback=True)
    drill.wait(lambda: any(run.key == "nap.long" for run in read(drill.folder)), 20, "the long work has begun")
    before = [len(main.output().splitlines()) for main in mains]
    drill.server.cluster.stop()
    time.sleep(drill.options.outage)
    lines = [len(main.output().splitlines()) - number for main, number in zip(mains, before, strict=True)]
    drill.server.cluster.start()
    gap = drill.probe("plain.after")
    drill.expect(gap <= RESUMES_WITHIN, f"dispatch resumed after {gap:.1f} s")
    most = max(LINES_IN_5_MINUTES * drill.options.outage / 300, 15)
    drill.expect(max(lines) <= most, f"the outage cost {lines} lines of log")
    expect_once(drill, conclude(drill), {"nap.long"})
    drill.figures.update(lines="/".join(map(str, lines)), resumed_after_s=f"{gap:.1f}")


@drill(
    "somebody holds the lead's row for 30 s: the leader steps down before its lease ends, and afterwards one leads",
    databases=POSTGRESQL,
    seconds=60,
)
def lead_locked(drill: Drill) -> None:
    """Lock the row of the lead from a session of ours, for three leases."""
    from django_workpool.runner.lead import LEASE

    drill.fleet.start_many(2)
    leader = drill.leader()
    drill.enqueue("nap.long", 20.0, callback=True)
    drill.start_load(rate=10, mix={"plain": 5, "insert": 1})
    with drill.server.session() as session, session.transaction():
        session.execute("SELECT * FROM workpool_lead FOR UPDATE")
        began = time.monotonic()
        drill.fleet.wait_for(leader, "lead_lost", LEASE + 2)
        lost = time.monotonic() - began
        drill.expect(lost < LEASE, f"it stepped down after {lost:.1f} s")
        time.sleep(max(0.0, began + 3 * LEASE - time.monotonic()))
    gap = drill.probe("plain.after")
    drill.expect(gap <= RESUMES_WITHIN, f"dispatch resumed after {gap:.1f} s")
    expect_once(drill, conclude(drill), {"nap.long"})
    drill.figures.update(stepped_down_after_s=f"{lost:.1f}", resumed_after_s=f"{gap:.1f}")


#: Seconds in which a main that is told to end does so though its database is silent: its grace time and a few short waits.
ENDS_WITHIN = 8.0


@drill(
    "SIGTERM while the database takes statements and never answers: the main ends soon, and what it ran goes the way of the lost",
    databases=POSTGRESQL,
    seconds=40,
)
def silent_end(drill: Drill) -> None:
    """Let the way of one main swallow everything, and tell the main to end; another one is there."""
    with Proxy(drill.server.port) as proxy:
        leader = drill.fleet.start("--grace", "2", url=proxy.before(drill.database.url))
        drill.fleet.wait_for(leader, "lead_taken")
        drill.enqueue("nap.long", 60.0, callback=True)
        drill.wait(lambda: any(run.key == "nap.long" for run in read(drill.folder)), 20, "the work has begun")
        drill.fleet.start_many(1)
        proxy.swallow()
        told = leader.tell_to_end()
        code = leader.wait(60)
        took = time.monotonic() - told
        drill.expect(code == 0 and took < ENDS_WITHIN, f"it ended with {code} after {took:.1f} s")
        proxy.cut()
        proxy.normal()
        conclude(drill)
        drill.figures["ended_after_s"] = f"{took:.1f}"


#: What administrators set for roles and databases.
IMPATIENT = {
    "idle_session_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "statement_timeout": "200ms",
    "lock_timeout": "100ms",
}


@drill(
    "a database whose sessions end after 5 s of idleness and whose statements after 200 ms: works that use it after 12 s succeed",
    databases=POSTGRESQL,
    seconds=80,
)
def impatient(drill: Drill) -> None:
    """Set the time-outs that administrators set, be idle, and run works that take longer than each of them."""
    for name, value in IMPATIENT.items():
        drill.server.fetch(f"ALTER DATABASE drill SET {name} = '{value}'")
    (main,) = drill.fleet.start_many(1, "--threads", "10")
    keys = {f"late-row.{number}" for number in range(20)}
    for round_ in range(2):
        # The second time on threads whose sessions were ended meanwhile.
        for number in range(10):
            _patiently(drill, f"late-row.{10 * round_ + number}", 12.0)
        drill.wait(lambda: drill.running_on(main) == 0 and _ended(drill) == 10 * round_ + 10, 60, "all have ended")  # noqa: B023
        time.sleep(7)
    found = conclude(drill)
    expect_once(drill, found, keys)
    drill.expect(all(end.attempts == 1 for end in found.ends), "a work needed a second attempt")


def _patiently(drill: Drill, key: str, seconds: float) -> None:
    from django.db import connection

    connection.close_if_unusable_or_obsolete()
    if connection.connection is not None and not connection.is_usable():
        connection.close()
    drill.enqueue(key, seconds, callback=True)


def _ended(drill: Drill) -> int:
    from django_workpool.models import Archive

    return Archive.objects.count()


@drill(
    "Django's connection pool is smaller than the threads: the lead and the beat do not wait behind the works",
    databases=POSTGRESQL,
    seconds=70,
)
def small_pool(drill: Drill) -> None:
    """Let ten works share two connections, each for 10 s; what finds none fails, and is tried again."""
    try:
        import psycopg_pool  # noqa: F401
    except ImportError:
        raise Skipped("psycopg_pool is not installed") from None
    options = '{"pool": {"min_size": 1, "max_size": 2, "timeout": 5}}'
    environment = {"DJANGO_SETTINGS_MODULE": "tests.faults.settings_pooled", "WORKPOOL_DRILL_OPTIONS": options}
    main = drill.fleet.start(env=environment)
    drill.fleet.wait_for(main, "process_started")
    drill.fleet.start_many(1, "--pool", "imports")
    for number in range(10):
        drill.enqueue(f"row.{number}", 10.0)
    found = conclude(drill)
    drill.expect(drill.leader() is main, "the lead has moved")
    wrong = [event.event for event in found.events if event.event in ("lead_lost", "worker_lost", "worker_given_up", "recovered")]
    drill.expect(not wrong, f"the pool itself has suffered: {wrong}")
    reasons = {failure.class_path for end in found.ends for failure in end.failures}
    drill.expect(reasons <= {"django.db.utils.OperationalError", "psycopg_pool.PoolTimeout"}, f"failed for {reasons}")
    drill.figures["attempts"] = sum(end.attempts for end in found.ends)


@drill(
    "encrypted connections and four child processes, whose functions start processes of their own: no session is shared or broken",
    databases=POSTGRESQL,
    seconds=60,
)
def encrypted(drill: Drill) -> None:
    """Let the server take TLS only from the mains, and run works that fork."""
    _encrypt(drill)
    main = drill.fleet.start("--processes", "4", url=f"{drill.database.url}?sslmode=require")
    drill.fleet.wait_for(main, "process_started")
    for number in range(40):
        drill.enqueue(f"row.{number}", 0.1, callback=number % 2 == 0)
    for number in range(10):
        drill.enqueue(f"fork.{number}")
    found = conclude(drill)
    secure = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name LIKE 'workpool%'"
    drill.expect(drill.server.fetch(secure)[0][0] >= 3, "the pool's own sessions are not encrypted")
    drill.expect(all(end.attempts == 1 for end in found.ends), "a work needed a second attempt")
    # Each has the resource tracker of its own multiprocessing, and no worker of a pool any more.
    kept = [child for child in psutil.Process(main.pid).children(recursive=True) if "resource_tracker" not in " ".join(child.cmdline())]
    drill.expect(len(kept) == 4, f"not the four children: {kept}")
    drill.expect("ssl error" not in main.output().lower(), "an error of TLS")


def _encrypt(drill: Drill) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Skipped("openssl is not installed")
    folder = drill.server.cluster.folder / "data"
    paths = {name: folder / f"drill.{name}" for name in ("key", "crt")}
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", paths["key"], "-out", paths["crt"]], check=True, capture_output=True)
    owner = folder.stat()
    for path in paths.values():
        path.chmod(0o600)
        os.chown(path, owner.st_uid, owner.st_gid)
    drill.server.fetch(f"ALTER SYSTEM SET ssl_key_file = '{paths['key']}'")
    drill.server.fetch(f"ALTER SYSTEM SET ssl_cert_file = '{paths['crt']}'")
    drill.server.fetch("ALTER SYSTEM SET ssl = on")
    drill.server.fetch("SELECT pg_reload_conf()")
    drill.wait(lambda: drill.server.fetch("SHOW ssl") == [("on",)], 10, "the server takes TLS")
