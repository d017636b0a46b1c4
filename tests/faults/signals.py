"""Drills with SIGTERM."""

import argparse
import random
import time

from .drill import Drill, drill
from .evidence import conclude
from .fleet import Main

#: What is promised of an idle process that is told to end, and of whoever stands by.
ENDS_WITHIN = LEADS_WITHIN = 2.0
#: Mains that are ready or begin: one that begins takes longer than a round.
COMING = 3


def _idle_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=50)


@drill("SIGTERM of an idle main: exit code 0 within 2 s, 50 of 50, and a standby leads within 2 s", seconds=130, options=_idle_rounds)
def sigterm_idle(drill: Drill) -> None:
    """Tell the leader to end at a random moment, again and again; another main stands by each time."""
    took, led = [], []
    for _ in range(drill.options.rounds):
        # What begins takes so much of a small machine that it would slow down what ends.
        _ready(drill, COMING)
        leader = drill.leader()
        drill.fleet.wait_for(leader, "process_started")
        time.sleep(random.uniform(0, 1.2))
        ended, taken = _end(drill, leader)
        took.append(ended)
        led.append(taken)
        code = leader.started.process.returncode
        drill.expect(code == 0, f"main {leader.number} ended with {code}")
    late = [f"{seconds:.2f}" for seconds in took if seconds > ENDS_WITHIN]
    drill.expect(not late, f"ended too late: {late}")
    late = [f"{seconds:.2f}" for seconds in led if seconds > LEADS_WITHIN]
    drill.expect(not late, f"the standby led too late: {late}")
    conclude(drill, 20)
    drill.figures.update(rounds=len(took), longest_end_s=f"{max(took):.2f}", longest_take_over_s=f"{max(led):.2f}")


def _end(drill: Drill, leader: Main) -> tuple[float, float]:
    """Tell the leader to end; return after how many seconds it has ended, and another one leads."""
    told, ended, led = leader.tell_to_end(), 0.0, 0.0

    def both() -> bool:
        nonlocal ended, led
        if not ended and not leader.is_alive:
            ended = time.monotonic() - told
        if not led and drill.ask(drill.leader_now) not in (None, leader):
            led = time.monotonic() - told
        return bool(ended and led)

    drill.wait(both, 30, f"main {leader.number} has ended, and another one leads", poll=0.01)
    return ended, led


def _race_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=300)


@drill(
    "SIGTERM within 50 ms of an enqueue, 300 times: no work is stuck, whether another main stays or the next one takes it",
    seconds=420,
    options=_race_rounds,
    quick=("--rounds", "8"),
)
def sigterm_race(drill: Drill) -> None:
    """Enqueue, and tell a main to end in the very moment; half of the rounds another one stays, half of them only the next one comes."""
    random.seed(0)
    for number in range(drill.options.rounds):
        ready = _ready(drill)
        for one in range(3):
            drill.enqueue(f"plain.round{number}-{one}", 0.0, callback=True)
        time.sleep(random.uniform(0, 0.05))
        # The eldest leads, or will; each fourth time nobody stays.
        for main in ready if number % 4 == 3 else ready[:1]:
            main.tell_to_end()
    drill.fleet.start()
    ended = conclude(drill, 60)
    codes = {main.number: main.wait(20) for main in drill.fleet.mains if main.expected_to_end}
    drill.expect(set(codes.values()) <= {0}, f"exit codes: { {number: code for number, code in codes.items() if code != 0} }")
    drill.figures.update(rounds=drill.options.rounds, told_to_end=len(codes), runs=len(ended.runs))


def _ready(drill: Drill, at_least: int = 2) -> list[Main]:
    """Return the mains that are ready and not told to end, as soon as there are enough; others are on their way meanwhile."""
    while True:
        staying = [main for main in drill.fleet.alive if not main.expected_to_end]
        ready = [main for main in staying if "event=process_started" in main.output()]
        if len(staying) < COMING:
            drill.fleet.start()
        elif len(ready) >= at_least:
            return ready
        else:
            time.sleep(0.02)
