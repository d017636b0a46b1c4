"""Drills behind pgbouncer in transaction mode, where nothing of a session lasts longer than a transaction."""

import argparse
import json
import time

from .connections import POSTGRESQL
from .drill import RESUMES_WITHIN, Drill, drill
from .evidence import conclude
from .fleet import SEEN, Main
from .pooler import pooler
from .workers import begun, expect_once

#: What is promised where a worker's beat alone tells of its death.
KNOWN_BY_BEAT_WITHIN = 40.0
#: Server sessions that all processes share.
SIZE = 2
OPTIONS = {"plain": {}, "binding": {"server_side_binding": True}, "preparing": {"prepare_threshold": 0}}


def start(drill: Drill, url: str, *arguments: str, options: str = "plain", direct: str = "") -> Main:
    """Start a main behind the pooler, and wait until it has begun."""
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.faults.settings_pooled",
        "WORKPOOL_DRILL_OPTIONS": json.dumps(OPTIONS[options]),
        "WORKPOOL_DRILL_DIRECT": direct,
    }
    main = drill.fleet.start(*arguments, env=environment, url=url)
    drill.fleet.wait_for(main, "process_started")
    return main


def _works(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--works", type=int, default=1000)


@drill(
    "behind pgbouncer in transaction mode with two server sessions: all works end with the documented options, a wrong one is warned of",
    databases=POSTGRESQL,
    seconds=60,
    quick=("--works", "200"),
    options=_works,
)
def pooled(drill: Drill) -> None:
    """Run works of all kinds in four mains behind a pooler, two of them binding at the server, and a fifth that prepares statements."""
    with pooler(drill.database.url, size=SIZE) as before:
        mains = [start(drill, before.url, options=name) for name in ("plain", "plain", "binding", "binding")]
        told = [[event for event in main.events() if event.event == "pooled"] for main in mains]
        drill.expect(all(len(events) == 1 for events in told), f"mains have told {list(map(len, told))} times of the pooler")
        kinds = ("plain", "insert", "row", "look", "coroutine", "fails-once")
        for number in range(drill.options.works):
            drill.enqueue(f"{kinds[number % len(kinds)]}.{number}", 0.0, callback=number % 2 == 0)
        conclude(drill)
        output = "".join(main.output() for main in mains)
        for error in ("DuplicatePreparedStatement", "InvalidSqlStatementName"):
            drill.expect(error not in output, f"{error} in the documented configuration")
        preparing = start(drill, before.url, options="preparing")
        warned = [event.fields["text"] for event in preparing.events() if event.event == "pooled"]
        drill.expect(any("prepare_threshold" in text for text in warned), "prepared statements were not warned of")
        drill.figures["warned"] = len(warned)


@drill(
    "kill -9 of a process with 20 running actions behind a pooler: all run again within 40 s; with a DIRECT alias within 10 s",
    databases=POSTGRESQL,
    seconds=90,
)
def pooled_worker_killed(drill: Drill) -> None:
    """Where no lock can be held, a worker's beat alone tells of its death; past the pooler the lock does."""
    drill.set_limit(60)
    with pooler(drill.database.url, size=10) as before:
        for name, direct, within in (("beat", "", KNOWN_BY_BEAT_WITHIN), ("direct", drill.database.url, RESUMES_WITHIN)):
            keys = {f"nap.{name}{number}" for number in range(40)}
            mains = [start(drill, before.url, "--threads", "45", direct=direct) for _ in range(2)]
            # Nobody can tell the leader of the second one: it reads the workers once a second.
            time.sleep(SEEN)
            victim = next(main for main in mains if main is not drill.leader())
            for key in sorted(keys):
                drill.enqueue(key, 50.0 if name == "beat" else 15.0, callback=True)
            drill.wait(lambda: drill.running_on(victim) >= 20 and len(begun(drill, keys)) == 40, 30, "20 works run on each")  # noqa: B023
            killed = victim.kill()
            lost = {key for key, (run,) in begun(drill, keys).items() if run.pid == victim.pid}
            drill.wait(lambda: all(len(runs) == 2 for runs in begun(drill, lost).values()), 60, "what was lost runs again")  # noqa: B023
            last = max(runs[1].begun for runs in begun(drill, lost).values()) - killed
            drill.expect(last <= within, f"{name}: the last one ran again {last:.1f} s after the kill")
            drill.figures[f"{name}_again_after_s"] = f"{last:.1f}"
            expect_once(drill, conclude(drill), keys - lost)
            for main in drill.fleet.alive:
                main.tell_to_end()
                drill.expect(main.wait() == 0, f"main {main.number} did not end in time")


@drill(
    "one main behind a pooler and one that is not: what holds the interpreter of the first for 20 s is not taken for its death",
    databases=POSTGRESQL,
    seconds=50,
)
def pooled_beside_direct(drill: Drill) -> None:
    """Hold the interpreter of a main that can hold no lock, under the eyes of one that sees locks."""
    with pooler(drill.database.url, size=10) as before:
        (direct,) = drill.fleet.start_many(1, "--pool", "imports")
        start(drill, before.url)
        drill.leader()
        keys = {"hold.one", "nap.one"}
        drill.enqueue("nap.one", 12.0, callback=True)
        drill.enqueue("hold.one", 20.0, callback=True)
        found = conclude(drill)
        expect_once(drill, found, keys)
        lost = [event.event for event in found.events if event.event in ("recovered", "worker_lost", "worker_given_up")]
        drill.expect(not lost, f"something was taken for lost: {lost}")
        drill.expect(direct.is_alive, "the direct main has died")
