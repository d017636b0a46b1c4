"""How long works take from ``enqueue`` to the function's first line, at several paces."""

import random
import time
from collections.abc import Iterator

from django_workpool import Workpool, call, enqueue

from . import tasks
from .course import Course, case, last_began
from .measure import Figures, milliseconds

#: Seconds between two works of an idle pool: irregular, so that nothing periodic hides.
PAUSE = (0.15, 0.30)
RATE = 100
BURST = 200
BURST_EVERY = 2.0


def _paced(course: Course, moments: Iterator[float], n: int) -> Figures:
    """Enqueue a work at each of the moments (monotonic clock), and tell how late their functions began."""
    asked = []
    with course.workers() as workers:
        course.warm_up(workers)
        for number in range(n):
            time.sleep(max(next(moments) - time.monotonic(), 0))
            asked.append(time.time())
            enqueue(tasks.noop, number)
        course.wait_for_runs(n, workers)
        course.wait_for_ends()
    course.verify(n)
    late = [stamp.began - asked[stamp.number] for stamp in course.stamps()]
    return {**milliseconds(late), "asked_per_s": round((n - 1) / max(asked[-1] - asked[0], 1e-9), 1)}


def _irregular() -> Iterator[float]:
    while True:
        yield time.monotonic() + random.uniform(*PAUSE)


def _regular(rate: float) -> Iterator[float]:
    begin, number = time.monotonic(), 0
    while True:
        yield begin + number / rate
        number += 1


@case(n=200)
def latency(course: Course, n: int) -> Figures:
    """An idle pool gets a work now and then: from the call of enqueue to the function's first line."""
    return _paced(course, _irregular(), n)


@case(n=2_000)
def sustained(course: Course, n: int) -> Figures:
    """The same with 100 works a second."""
    return _paced(course, _regular(RATE), n)


@case(n=10, unit="bursts")
def bursty(course: Course, n: int) -> Figures:
    """Bursts of 200 works, every two seconds: from the call of enqueue_many to the last function's first line."""
    moments, asked = _regular(1 / BURST_EVERY), []
    with course.workers() as workers:
        course.warm_up(workers)
        for burst in range(n):
            time.sleep(max(next(moments) - time.monotonic(), 0))
            asked.append(time.time())
            Workpool().enqueue_many(tasks.noop, [call(burst * BURST + number) for number in range(BURST)])
        course.wait_for_runs(n * BURST, workers)
        course.wait_for_ends()
    course.verify(n * BURST)
    stamps = course.stamps()
    ends = [last_began(stamp for stamp in stamps if stamp.number // BURST == burst) - asked[burst] for burst in range(n)]
    return milliseconds(ends)
