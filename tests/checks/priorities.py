"""Higher priority first: one behind 10,000 others starts next, and half a million works of any priority that are due later cost nothing.

What they cost is the difference between two databases that are alike but for them. Each has a process that measures (``pace``), and the two
take turns: what the machine does besides, and what iterations leave behind in the tables, is the same for both.
"""

import argparse
import statistics

from .base import Check, another_database, run
from .pace import pace

#: Iterations measured on each database, and how many of them in a row.
ITERATIONS, ROUND = 200, 5
#: What an iteration may take beside works that are due later, against what it takes without them.
RATIO = 1.2
#: Seconds that each work of low priority takes.
NAP = 0.02


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=10_000, help="of low priority")
    parser.add_argument("--later", type=int, default=500_000, help="works due in a month, on one of the two databases; 0 shows the noise")


def check(check: Check) -> None:
    """Let one overtake; then measure iterations with and without works that are due later."""
    _one_overtakes(check)
    _later_ones_cost_nothing(check)


def _one_overtakes(check: Check) -> None:
    from django_workpool import Workpool, call
    from django_workpool.loop.memory import BUFFER_EVERY
    from django_workpool.models import Archive

    from ..works.tasks import nap, note

    pool = Workpool()
    pool.configure(max_parallelism=1)
    pool.using(priority=-50).enqueue_many(nap, [call(NAP)] * check.options.works)
    main = check.start("--threads", "1")
    check.wait(lambda: Archive.objects.count() >= 50, 60, "fifty have ended")
    high = pool.using(priority=50).enqueue(note, "high")
    check.wait(lambda: Archive.objects.filter(id=high).exists(), 60, "the one of high priority has ended")
    ended = Archive.objects.get(id=high)
    before = Archive.objects.filter(priority=-50, started__gt=ended.created, started__lt=ended.started).count()
    # A priority that lately had nothing due is found by the next look back. If one has just been: the iteration that made it starts one
    # of low priority, and so does each that follows until it is time to look again.
    most = 1 + int(BUFFER_EVERY / NAP)
    check.expect(before <= most, f"{before} of low priority were started before it")
    check.expect(Archive.objects.count() < check.options.works, "it came after all of them")
    check.figures["started_before_it"] = before
    main.terminate()
    main.wait(30)


def _later_ones_cost_nothing(check: Check) -> None:
    with (
        another_database(check.vendor) as plain,
        another_database(check.vendor) as crowded,
        pace(plain) as without,
        pace(crowded) as beside,
    ):
        if check.options.later:
            beside.ask("later", check.options.later)
        both = (without, beside)
        took: dict[object, list[float]] = {one: [] for one in both}
        for one in both:
            one.ask("pace", 2 * ROUND)
        for one in both:
            one.ask("settle")
        for one in both:
            # After a checkpoint the first change of a page costs more than the next.
            one.ask("pace", 2 * ROUND)
        for number in range(ITERATIONS // ROUND):
            # Neither always comes after the other.
            for one in both if number % 2 else reversed(both):
                took[one] += one.ask("pace", ROUND)
        ratio = _quick(took[beside]) / _quick(took[without])
        check.expect(ratio <= RATIO, f"an iteration takes {ratio:.2f} times as long")
        check.expect(beside.ask("waiting") == [check.options.later], "not all that is due later waits")
    check.figures.update(
        later=check.options.later,
        iteration_ms=f"{_quick(took[without]) * 1000:.2f}",
        beside_ms=f"{_quick(took[beside]) * 1000:.2f}",
        ratio=f"{ratio:.2f}",
    )


def _quick(seconds: list[float]) -> float:
    """Return the lower quartile: what else the machine does makes some of them longer, and none shorter."""
    return statistics.quantiles(seconds, n=4)[0]


if __name__ == "__main__":
    run("priorities", check, add_options=options)
