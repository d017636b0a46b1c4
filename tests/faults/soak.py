"""``python -m tests.faults.soak --minutes N --seed S``: a fleet under load, and a fault from a list every few seconds.

The same seed gives the same sequence of faults. At the end everything is as it should be again, all is waited for, and the whole
history is checked. One line tells the verdict; the exit code is 1 if something is not as promised.
"""

import argparse
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack

from .chaos import Chaos
from .drill import BOTH, Drill, Entry, run
from .evidence import conclude
from .kinds import MIX
from .memory import Memory
from .menu import faults_for
from .proxy import Proxy

#: Seconds between two faults.
EVERY = (4.5, 7.5)
#: Mains: their arguments; the last one goes through the proxy, where there is one.
FLEET = (("--threads", "12"), ("--processes", "3"), ("--threads", "4"), ("--threads", "8"))
LIMIT = 20
#: Works a second that the load offers.
RATES = {"postgresql": 40.0, "sqlite": 20.0}
#: Seconds of load before the first fault, and after the last one.
CALM = 5.0


def soak(drill: Drill) -> None:
    """Load, faults, rest, verdict."""
    options = drill.options
    dice = random.Random(options.seed)
    drill.set_limit(LIMIT)
    with ExitStack() as stack:
        url = drill.database.url
        proxy = stack.enter_context(Proxy(drill.server.port)) if drill.vendor == "postgresql" else None
        chaos = Chaos(drill, dice, FLEET, proxy.before(url) if proxy else url, proxy, LIMIT)
        chaos.start()
        memory = stack.enter_context(Memory(drill.fleet))
        drill.start_load(rate=options.rate or RATES[drill.vendor], mix=dict(MIX), seed=options.seed)
        time.sleep(CALM)
        done = _rage(drill, chaos, dice, time.monotonic() + options.minutes * 60)
        drill.fleet.end_loads()
        chaos.restore()
        time.sleep(CALM)
        found = conclude(drill)
    drill.figures["faults"] = done.total()
    drill.figures["by_kind"] = ",".join(f"{name}:{number}" for name, number in sorted(done.items()))
    drill.figures.update(memory.figures(found))
    drill.expect(drill.figures["accepted"], "nothing was accepted")


def _rage(drill: Drill, chaos: Chaos, dice: random.Random, end: float) -> Counter[str]:
    """Do one fault after the other until the end; return how many of each."""
    faults = faults_for(drill.vendor)
    names, weights = list(faults), [fault.weight for fault in faults.values()]
    done: Counter[str] = Counter()
    due = time.monotonic()
    while time.monotonic() < end:
        name = dice.choices(names, weights)[0]
        # Each fault has dice of its own: how often it throws them must not change what comes next.
        own = random.Random(dice.random())
        began = time.monotonic()
        told = faults[name].body(chaos, own)
        done[name] += 1
        print(
            f"{time.strftime('%H:%M:%S')} {done.total():4} {name}: {told} ({time.monotonic() - began:.1f} s)", file=sys.stderr, flush=True
        )
        due = max(due + dice.uniform(*EVERY), time.monotonic() + 1)
        while time.monotonic() < min(due, end):
            chaos.tend()
            time.sleep(0.2)
    return done


def main(arguments: list[str]) -> int:
    """Read the command line, soak, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.0, help="Works a second (default: 40 on PostgreSQL, 20 on SQLite).")
    parser.add_argument("--database", choices=BOTH, default="postgresql")
    parser.add_argument("--keep", metavar="FOLDER", help="Copy logs and journals to this folder.")
    options = parser.parse_args(arguments)
    limit = int(options.minutes * 60 + 900)
    entry = Entry(name="soak", body=soak, shows=__doc__ or "", databases=BOTH, seconds=0, quick=None, options=None, limit=limit)
    return run(entry, options.database, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
