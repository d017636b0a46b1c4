"""``python -m tests.simulation``: run many histories and print one line, or replay one of them."""

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .crashes import Crashes
    from .world import World


@dataclass
class Tally:
    """What many histories came to."""

    seeds: int = 0
    works: int = 0
    take_overs: int = 0
    refused: int = 0

    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    def add(self, other: "Tally") -> None:
        """Add what another job came to."""
        for name in ("seeds", "works", "take_overs", "refused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def tick(self) -> float:
        """Return how long it has taken so far."""
        self.seconds = time.perf_counter() - self.began
        return self.seconds

    def __str__(self) -> str:
        return f"seeds={self.seeds} works={self.works} take_overs={self.take_overs} old_leaders_refused={self.refused}"


#: What a job came to, the commit points, and whether all is well.
Result = tuple[Tally, dict[str, tuple[int, int, int]], bool]
#: What jobs have of the process that they are copies of.
_inherited: list[Any] = []


def main(arguments: list[str]) -> int:
    """Run what the command line says; return 0 unless something does not hold."""
    options = _parse(arguments)
    _set_up()
    from . import plants
    from .crashes import Crashes

    crashes = Crashes(_connection())
    if options.plants:
        return sum(_find(name, crashes, options.seeds) for name in plants.PLANTS)
    with plants.PLANTS[options.plant]() if options.plant else nullcontext():
        if options.jobs == 1 or options.seed is not None:
            return _verdict(options, [_run(options, crashes, 0)])
        # The database is in memory: each copy of the process has its own.
        _inherited[:] = [options, crashes]
        with multiprocessing.get_context("fork").Pool(options.jobs) as jobs:
            return _verdict(options, jobs.map(_run_job, range(options.jobs), chunksize=1))


def _run_job(job: int) -> Result:
    return _run(*_inherited, job)


def _run(options: argparse.Namespace, crashes: "Crashes", job: int) -> Result:
    """Run every history of a job, until one of them fails; return what they came to, the commit points, and whether all is well."""
    tally = Tally()
    first, count = (options.seed, 1) if options.seed is not None else (options.first, options.seeds)
    for seed in range(first + job, first + count, options.jobs):
        world, problem = _history(seed, crashes, tally)
        if problem is not None or options.trace:
            print(_trace(world.ledger.lines, getattr(problem, "works", ()), options.trace))
        if options.digest:
            print(f"digest {seed} {world.digest()}")
        if problem is not None:
            if not isinstance(problem, AssertionError):
                traceback.print_exception(problem)
            print(f"simulation: FAILED seed={seed}: {problem} ({tally}; python -m tests.simulation --seed {seed} --trace)", flush=True)
            return tally, crashes.table(), False
        if tally.tick() > (float("inf") if options.seconds is None else options.seconds) and tally.seeds * options.jobs >= options.least:
            break
    return tally, crashes.table(), True


def _verdict(options: argparse.Namespace, jobs: list[Result]) -> int:
    """Print what all jobs came to, unless one of them has told that it failed."""
    if not all(well for _, _, well in jobs):
        return 1
    total, points = Tally(), Counter[tuple[str, int]]()
    for tally, table, _ in jobs:
        total.add(tally)
        points.update({(name, column): number for name, numbers in table.items() for column, number in enumerate(numbers)})
    names = sorted({name for name, _ in points})
    if options.points:
        for name in names:
            commits, before, after = (points[name, column] for column in range(3))
            print(f"point {name.replace(' ', '_')} commits={commits} before={before} after={after}")
    commits, before, after = (sum(points[name, column] for name in names) for column in range(3))
    figures = f"commits={commits} crashes_before={before} crashes_after={after} points={len(names)}"
    print(f"simulation: ok {total} {figures} seconds={max(tally.seconds for tally, _, _ in jobs):.1f}", flush=True)
    return 0


def _history(seed: int, crashes: "Crashes", tally: Tally) -> "tuple[World, BaseException | None]":
    """Run one history; return it, and what does not hold in it."""
    from .world import World

    world, problem = World(seed, crashes), None
    try:
        world.run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = error
    tally.seeds += 1
    tally.works += len(world.ledger.ids)
    tally.take_overs += world.take_overs
    tally.refused += world.troubles.refused

    return world, problem


def _find(name: str, crashes: "Crashes", seeds: int) -> int:
    """Plant a fault and run histories until one of them finds it; return 0 if one does."""
    from . import plants

    tally = Tally()
    with plants.PLANTS[name]():
        for seed in range(seeds):
            _, problem = _history(seed, crashes, tally)
            if problem is not None:
                print(f"plant {name}: found by seed {seed} in {tally.tick():.1f} s: {problem}", flush=True)
                return 0
    print(f"plant {name}: NOT FOUND by {seeds} seeds in {tally.tick():.1f} s", flush=True)
    return 1


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--jobs", type=int, default=1, help="processes among which the seeds are dealt out")
    parser.add_argument("--seconds", type=float, help="stop after so long, at the end of a history")
    parser.add_argument("--trace", action="store_true", help="print all lines of the histories")
    parser.add_argument("--digest", action="store_true", help="print a digest of each history")
    parser.add_argument("--points", action="store_true", help="print each commit point, and how often somebody crashed there")
    parser.add_argument("--least", type=int, default=1, help="histories to be run however long they take")
    parser.add_argument("--plants", action="store_true", help="plant each fault of plants.py, and look whether it is found")
    parser.add_argument("--plant", help="break the product on purpose: see plants.py")
    return parser.parse_args(arguments)


def _set_up() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.simulation.settings"
    import django

    django.setup()
    from django.core.management import call_command

    from django_workpool.database import database, sqlite

    from . import clock, network, quick

    sqlite.SQLite = network.Simulated  # type: ignore[misc]
    database.cache_clear()
    # What a history uses of the package must be there, to be given its clock.
    import_module("tests.simulation.world")
    clock.install()
    quick.install()
    call_command("migrate", run_syncdb=True, verbosity=0)
    connection = _connection()
    connection.connection.create_function("virtual_ms", 0, lambda: clock.clock.ms)
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 10, 100)


def _connection() -> Any:
    from django.db import connection

    return connection


def _trace(lines: list[str], works: tuple[str, ...], everything: bool) -> str:
    """Return the lines that a failure needs: those of its works, and what became of the processes."""
    if everything or not works:
        return "\n".join(lines if everything else lines[-60:])
    lives = ("starts", "dies", "dead", "stopped", "goes on", "calms", "rolls back", "loses", "at ")
    names = tuple(f"{work}{end}" for work in works for end in ("=", " "))
    return "\n".join(line for line in lines if any(name in line for name in names) or any(word in line[20:] for word in lives))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
