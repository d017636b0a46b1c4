"""Drills in which a process that runs works dies, or is held by one of them."""

import argparse
import time
from collections import defaultdict

from .drill import RESUMES_WITHIN, Drill, drill
from .evidence import conclude
from .history import History
from .journal import Run, read


def begun(drill: Drill, keys: set[str]) -> dict[str, list[Run]]:
    """Return the runs so far of each of the works."""
    found = defaultdict(list)
    for run in read(drill.folder):
        if run.key in keys:
            found[run.key].append(run)
    return found


def expect_once(drill: Drill, found: History, keys: set[str]) -> None:
    """Expect that each of the works has run once."""
    counts = {key: sum(run.key == key for run in found.runs) for key in keys}
    wrong = {key: number for key, number in counts.items() if number != 1}
    drill.expect(not wrong, f"not run once: {wrong}")


@drill("kill -9 of a process that does not lead, with 20 running actions: all run again elsewhere within 10 s", seconds=35, quick=())
def worker_killed(drill: Drill) -> None:
    """Kill one of two mains while it runs 20 actions that may be retried."""
    drill.set_limit(60)
    drill.fleet.start_many(2, "--threads", "45")
    (victim,) = drill.others()
    keys = {f"nap.{number}" for number in range(40)}
    for key in sorted(keys):
        drill.enqueue(key, 10.0, callback=True)
    drill.wait(lambda: drill.running_on(victim) >= 20 and len(begun(drill, keys)) == 40, 30, "20 works run on each")
    killed = victim.kill()
    lost = {key for key, (run,) in begun(drill, keys).items() if run.pid == victim.pid}
    drill.wait(lambda: all(len(runs) == 2 for runs in begun(drill, lost).values()), 30, "all that were lost run again")
    last = max(runs[1].begun for runs in begun(drill, lost).values()) - killed
    drill.expect(last <= RESUMES_WITHIN, f"the last one ran again {last:.1f} s after the kill")
    expect_once(drill, conclude(drill), keys - lost)
    drill.figures.update(killed_amid=len(lost), again_after_s=f"{last:.1f}")


def _processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", action="store_true", help="Run functions in child processes instead of threads.")


@drill(
    "a work that kills its process, beside 20 others: started three times, then failed; the others end",
    seconds=45,
    quick=("--processes",),
    options=_processes,
)
def poison(drill: Drill) -> None:
    """Run a poisonous work, and start the main again whenever it has ended, as an init system does."""
    drill.set_limit(4)
    arguments = ("--processes", "3") if drill.options.processes else ("--threads", "4")
    poisonous = {"poison.one"}
    drill.enqueue("poison.one", 0.3, callback=True, priority=1)
    for number in range(20):
        drill.enqueue(f"nap.{number}", 0.5, callback=True)
    main, starts = drill.fleet.start(*arguments), 1
    deadline = time.monotonic() + 120
    while not drill.ask(lambda: _all_ended(drill)):
        if not main.is_alive:
            main, starts = drill.fleet.start(*arguments), starts + 1
        if time.monotonic() > deadline:
            drill.problems.append("not all works had ended after 120 s")
            break
        time.sleep(0.1)
    conclude(drill, 30)
    runs = begun(drill, poisonous)["poison.one"]
    drill.expect(len(runs) == 3, f"the poisonous work was started {len(runs)} times")
    drill.expect(starts == (1 if drill.options.processes else 4), f"the main was started {starts} times")
    drill.figures.update(poison_starts=len(runs), main_starts=starts)


def _all_ended(drill: Drill) -> bool:
    from django_workpool.models import Work

    return not Work.objects.exists()


def _seconds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="How long each of them takes (default: %(default)s).")


@drill(
    "a computation and a call that holds the interpreter, for a minute each, in thread mode: each runs once, none is taken for lost",
    seconds=110,
    options=_seconds,
)
def gil(drill: Drill) -> None:
    """Hold two mains by their own functions; the pool must not take them for dead, and other works go on where there is room."""
    first, second = drill.fleet.start_many(2, "--threads", "8")
    seconds = drill.options.seconds
    keys = {"compute.one", "hold.one", *(f"nap.{number}" for number in range(6))}
    for key in sorted(keys):
        drill.enqueue(key, seconds if key in ("compute.one", "hold.one") else 5.0, callback=True)
    drill.wait(lambda: {"compute.one", "hold.one"} <= begun(drill, keys).keys(), 30, "both have begun")
    found = conclude(drill, 2 * seconds + 60)
    expect_once(drill, found, keys)
    recovered = [event for event in found.events if event.event in ("recovered", "worker_lost", "worker_given_up")]
    drill.expect(not recovered, f"{len(recovered)} times something was taken for lost: {recovered[:2]}")
    drill.figures.update(stale=sum(event.event == "stale" for event in found.events), mains_alive=first.is_alive + second.is_alive)
