"""The list from which a soak takes its faults, with their weights."""

import json
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg

from .chaos import Chaos
from .server import FUNCTIONS


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: how often it is taken, and what does it and returns a word about it."""

    weight: int
    body: Callable[[Chaos, random.Random], str]
    #: Whether it needs a server.
    server: bool = False


FAULTS: dict[str, Fault] = {}


def faults_for(vendor: str) -> Mapping[str, Fault]:
    """Return the faults that a database can have."""
    return {name: fault for name, fault in FAULTS.items() if vendor == "postgresql" or not fault.server}


Body = Callable[[Chaos, random.Random], str]


def fault(weight: int, *, server: bool = False) -> Callable[[Body], Body]:
    """Enter a function into the list."""

    def enter(body: Body) -> Body:
        FAULTS[body.__name__] = Fault(weight, body, server)
        return body

    return enter


# Processes ----------------------------------------------------------------------------------------------------------


def _kill(chaos: Chaos, dice: random.Random, leads: bool) -> str:
    slot = chaos.pick(dice, leads)
    if slot is None or slot.main is None:
        return "nobody"
    slot.main.kill()
    return f"main {slot.main.number}"


@fault(8)
def kill_leader(chaos: Chaos, dice: random.Random) -> str:
    """Kill -9 of the leader."""
    return _kill(chaos, dice, True)


@fault(9)
def kill_other(chaos: Chaos, dice: random.Random) -> str:
    """Kill -9 of a main that stands by."""
    return _kill(chaos, dice, False)


@fault(8)
def kill_child(chaos: Chaos, dice: random.Random) -> str:
    """Kill -9 of a child process."""
    for slot in chaos.candidates():
        if "--processes" in slot.arguments and slot.main is not None:
            return f"child {slot.main.kill_child(dice.choice)} of main {slot.main.number}"
    return "nobody"


def _stop(chaos: Chaos, dice: random.Random, leads: bool) -> str:
    slot = chaos.pick(dice, leads)
    # A process stopped inside a write transaction blocks all writers of a SQLite file, which no design mends: not for long, then.
    seconds = dice.uniform(1, 20 if chaos.proxy else 6)
    if slot is None or slot.main is None:
        return "nobody"
    slot.main.stop(with_children=dice.random() < 0.5)
    chaos.later(seconds, slot.main.go_on)
    return f"main {slot.main.number} for {seconds:.1f} s"


@fault(5)
def stop_leader(chaos: Chaos, dice: random.Random) -> str:
    """SIGSTOP of the leader, and SIGCONT later."""
    return _stop(chaos, dice, True)


@fault(5)
def stop_other(chaos: Chaos, dice: random.Random) -> str:
    """SIGSTOP of a main that stands by, and SIGCONT later."""
    return _stop(chaos, dice, False)


@fault(7)
def terminate(chaos: Chaos, dice: random.Random) -> str:
    """SIGTERM; another one comes when it has ended."""
    slot = chaos.pick(dice)
    if slot is None or slot.main is None:
        return "nobody"
    slot.told = slot.main.tell_to_end()
    return f"main {slot.main.number}"


@fault(4)
def terminate_twice(chaos: Chaos, dice: random.Random) -> str:
    """SIGTERM, and again soon after: it is not to wait for its functions."""
    told = terminate(chaos, dice)
    main = next((slot.main for slot in chaos.slots if slot.main and told == f"main {slot.main.number}"), None)
    if main is not None:
        chaos.later(dice.uniform(0.1, 1.5), lambda: main.started.process.send_signal(signal.SIGTERM))
    return told


@fault(3)
def poison(chaos: Chaos, dice: random.Random) -> str:
    """Enqueue a work that kills its process, three times."""
    key = f"poison.{dice.random()}"
    return f"{key} {chaos.drill.enqueue.patiently(key, True)}"


# Works --------------------------------------------------------------------------------------------------------------


@fault(3)
def burst(chaos: Chaos, dice: random.Random) -> str:
    """Enqueue many at once."""
    name = f"{dice.random()}"
    return str(sum(chaos.drill.enqueue.patiently(f"plain.burst{name}-{number}", number % 2 == 0) for number in range(100)))


@fault(5)
def cancel(chaos: Chaos, dice: random.Random) -> str:
    """Cancel some of the last works."""
    from django_workpool import Workpool

    lines = chaos.drill.accepted_path.read_text().splitlines()[-200:]
    ids = [json.loads(line)["id"] for line in dice.sample(lines, min(20, len(lines)))]
    chaos.drill.canceled |= set(ids)
    return chaos.patiently(lambda: sum(Workpool().cancel(one) for one in ids))


@fault(2)
def cancel_all(chaos: Chaos, dice: random.Random) -> str:
    """Cancel all works created up to now."""
    from django_workpool import Workpool

    try:
        return chaos.patiently(Workpool().cancel_all)
    finally:
        chaos.drill.canceled_all.append(time.time())


@fault(6)
def change_limit(chaos: Chaos, dice: random.Random) -> str:
    """Lower or raise the limit for a while: nothing may run at all, or two, or more than before."""
    limit, seconds = dice.choice([0, 0, 1, 2, 8, 30]), dice.uniform(2, 6)
    told = chaos.patiently(lambda: chaos.drill.set_limit(limit))
    chaos.later(seconds, lambda: restore_limit(chaos))
    return f"{limit} for {seconds:.1f} s {told}"


def restore_limit(chaos: Chaos) -> None:
    """Bring the limit back, now or when the database can be had."""
    if chaos.patiently(lambda: chaos.drill.set_limit(chaos.limit)) != "None":
        chaos.later(1.0, lambda: restore_limit(chaos))


# The server ---------------------------------------------------------------------------------------------------------


@fault(5, server=True)
def restart_server(chaos: Chaos, dice: random.Random) -> str:
    """Crash and start the server."""
    away = dice.choice([0.0, 0.0, dice.uniform(0.5, 4)])
    chaos.drill.server.restart(away)
    return f"away for {away:.1f} s"


@fault(3, server=True)
def read_only(chaos: Chaos, dice: random.Random) -> str:
    """Let the server refuse writes for some seconds."""
    seconds = dice.uniform(1, 6)
    chaos.drill.server.set_read_only(True)
    chaos.later(seconds, lambda: chaos.drill.server.set_read_only(False))
    return f"for {seconds:.1f} s"


@fault(9, server=True)
def cut_sessions(chaos: Chaos, dice: random.Random) -> str:
    """Cut sessions of the pool: of one sort, all, or a share of them."""
    names = dice.choice(["workpool loop", "workpool watch", "workpool writer", "workpool%", FUNCTIONS, "%"])
    share = dice.choice([1.0, 0.5])
    return f"{chaos.drill.server.cut(names, share)} of {names!r}"


@fault(3, server=True)
def lock_fence(chaos: Chaos, dice: random.Random) -> str:
    """Hold the rows that the leader must lock, in another session."""
    seconds = dice.uniform(0.5, 12)
    try:
        chaos.lock_fence(seconds)
    except psycopg.Error as error:
        return type(error).__name__
    return f"for {seconds:.1f} s"


def _way(chaos: Chaos, what: str, seconds: float) -> str:
    assert chaos.proxy is not None
    getattr(chaos.proxy, what)()
    chaos.disturb_way(seconds)
    if seconds:
        chaos.later(seconds, chaos.proxy.normal)
    return f"main {chaos.cut_off.number if chaos.cut_off else None} for {seconds:.1f} s"


@fault(4, server=True)
def slow_way(chaos: Chaos, dice: random.Random) -> str:
    """Make the way to the server slow."""
    assert chaos.proxy is not None
    seconds, milliseconds = dice.uniform(2, 15), dice.choice([50, 200, 1000])
    chaos.proxy.delay(milliseconds)
    chaos.later(seconds, chaos.proxy.normal)
    return f"{milliseconds} ms for {seconds:.1f} s"


@fault(4, server=True)
def cut_way(chaos: Chaos, dice: random.Random) -> str:
    """Close all connections of one main."""
    return _way(chaos, "cut", 0.0)


@fault(4, server=True)
def swallow_way(chaos: Chaos, dice: random.Random) -> str:
    """Let everything vanish that one main sends or is sent."""
    return _way(chaos, "swallow", dice.uniform(1, 20))


@fault(3, server=True)
def hold_way(chaos: Chaos, dice: random.Random) -> str:
    """Hold back everything that one main sends or is sent, and then pass it on."""
    return _way(chaos, "hold", dice.uniform(1, 15))


@fault(2, server=True)
def refuse_way(chaos: Chaos, dice: random.Random) -> str:
    """Cut one main off, and let nothing through for a while."""
    assert chaos.proxy is not None
    chaos.proxy.cut()
    return _way(chaos, "refuse", dice.uniform(1, 12))
