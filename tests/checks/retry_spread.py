"""1,000 works that fail together, twice: their second and third starts are spread over half to one and a half of the wait."""

import argparse
from collections import defaultdict
from datetime import timedelta

from .base import Check, run

WAIT, BASE, LIMIT = 10.0, 2, 100


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=1_000)


def check(check: Check) -> None:
    """Let them fail, and look when each attempt began."""
    from django_workpool import RetryBehavior, Workpool, call
    from django_workpool.models import Attempt

    from ..live import left_over
    from ..works.tasks import fail

    number = check.options.works
    Workpool().configure(max_parallelism=LIMIT)
    retry = RetryBehavior(max_attempts=3, initial_backoff=timedelta(seconds=WAIT), base=BASE)
    ids = Workpool().using(retry=retry).enqueue_many(fail, [call(str(one)) for one in range(number)])
    check.start("--threads", "20")
    check.wait(lambda: not left_over(), 300, "all have failed three times", poll=0.5)
    starts: defaultdict[object, dict[int, tuple[float, float]]] = defaultdict(dict)
    for attempt in Attempt.objects.filter(work_id__in=ids):
        assert attempt.started is not None
        starts[attempt.work_id][attempt.number] = (attempt.started.timestamp(), attempt.ended.timestamp())
    check.expect(len(starts) == number and all(len(one) == 3 for one in starts.values()), "not three attempts each")
    for tries, wait in ((2, WAIT), (3, WAIT * BASE)):
        # From the end of the attempt before to the start of this one; the start is late when threads are busy, never early.
        waits = sorted(one[tries][0] - one[tries - 1][1] for one in starts.values())
        check.expect(waits[0] >= 0.5 * wait - 0.001, f"attempt {tries} began after {waits[0]:.2f} s")
        check.expect(waits[-1] <= 1.5 * wait + 3, f"attempt {tries} began after {waits[-1]:.2f} s")
        spread = waits[int(number * 0.95)] - waits[int(number * 0.05)]
        check.expect(spread > 0.6 * wait, f"90 % of attempts {tries} lie within {spread:.1f} s")
        tenths: defaultdict[int, int] = defaultdict(int)
        for one in starts.values():
            tenths[int(one[tries][0] * 10)] += 1
        most = max(tenths.values())
        check.expect(most < number * 0.1, f"{most} attempts {tries} began within 100 ms")
        check.figures.update({f"start{tries}_s": f"{waits[0]:.1f}-{waits[-1]:.1f}", f"start{tries}_most_in_100ms": most})


if __name__ == "__main__":
    run("retry_spread", check, add_options=options)
