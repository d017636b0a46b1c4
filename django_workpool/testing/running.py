"""``run_work``: run what was enqueued, here and now."""

import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from asgiref.sync import sync_to_async
from django.db.models import Min, Q

from .. import conf
from ..exceptions import WorkpoolError
from ..models import PendingStart, Work
from ..segments import segment_ms
from .clock import aliases
from .records import EndlessWork, RanWork, WorkFailed
from .stage import Stage

#: Attempts of one call, unless told otherwise: more is an endless chain.
MOST = 1_000
#: Turns without a start: a cancel_all is worked off in pages, and a turn in which nothing can be done is the last.
TURNS_MAX = 10_000

_turn = threading.RLock()
_here = threading.local()


def is_running() -> bool:
    """Return whether this thread is inside ``run_work``: in a function that it has called."""
    return bool(getattr(_here, "running", False))


def run_work(pool: str | Iterable[str] | None = None, *, retries: bool = False, raises: bool = False, most: int = MOST) -> list[RanWork]:
    """Run all works that are due, and those that they enqueue, on this thread and on its connections, until none is left.

    Rows, limits, priorities, cancelations, retries and callbacks are the real ones; inside a transaction, a TestCase's, nothing is
    committed. What is due later stays: see ``travel``.

    Args:
        pool: The pool, or several; if it is left out, all that are in a database which the test may use.
        retries: Whether to run retries, too, as if the time until each had passed.
        raises: Whether to raise what the first work raises that fails for good (or, without ``retries``, for now), once its
            failure is written; what is still due then stays.
        most: Attempts after which works are taken to enqueue each other for ever.

    Returns:
        The attempts, in the order in which they ran.

    Raises:
        UnknownPool: the settings do not name a pool.
        EndlessWork: ``most`` attempts have run, and more works are due, or with ``retries`` wait for another attempt.
        WorkFailed: with ``raises``, for a failure without an exception.
        WorkpoolError: called by a work, or a workpool_main leads the pools of this database.
    """
    if is_running():
        raise WorkpoolError("run_work() was called by a work that it runs: what a work enqueues is run when it has ended.")
    if type(most) is not int or most < 1:
        raise ValueError(f"most must be a whole number from 1 on, not {most!r}.")
    names = None if pool is None else {conf.pool(name).name for name in ([pool] if isinstance(pool, str) else pool)}
    stages = [Stage(using, found) for using, found in aliases(names).items()]
    ran: list[RanWork] = []
    with _turn, _running(), ExitStack() as stack:
        for stage in stages:
            stack.enter_context(stage.open())
        goes_on = True
        while goes_on:
            # A retry that becomes due while the last ones run, or thereafter, is one that is waited for, too.
            began = [stage.db.segment() for stage in stages]
            _run_due(stages, ran, raises=raises, retries=retries, most=most)
            goes_on = retries and _wait(stages, began, stack)
            if goes_on and len(ran) >= most:
                raise _endless(ran, most, "a retry still waits: are they to be so many?")
    return ran


async def arun_work(
    pool: str | Iterable[str] | None = None, *, retries: bool = False, raises: bool = False, most: int = MOST
) -> list[RanWork]:
    """Async twin of ``run_work``."""
    return await sync_to_async(run_work)(pool, retries=retries, raises=raises, most=most)


@contextmanager
def _running() -> Iterator[None]:
    _here.running = True
    try:
        yield
    finally:
        _here.running = False


def _run_due(stages: list[Stage], ran: list[RanWork], *, raises: bool, retries: bool, most: int) -> None:
    """Run what is due until nothing is."""
    turns, goes_on = 0, True
    while goes_on:
        goes_on, turns = False, turns + 1
        if turns > TURNS_MAX:
            raise EndlessWork(f"After {TURNS_MAX} iterations there still is something to do.")
        for one in (one for stage in stages for one in stage.turn()):
            goes_on = True
            if one is None:
                continue
            turns = 0
            ran.append(one)
            if raises and one.kind == "failed" and (one.ended or not retries):
                raise one.exception or WorkFailed(f"{one.function} failed: {one.error}")
            if len(ran) >= most:
                _refuse_endless(stages, ran, most)


def _refuse_endless(stages: list[Stage], ran: list[RanWork], most: int) -> None:
    for stage in stages:
        due = Work.objects.using(stage.using).filter(
            id__in=PendingStart.objects.using(stage.using).filter(pool__in=stage.names, segment__lte=stage.db.segment()).values("work_id")
        )
        paths = due.values_list("func_path", flat=True).order_by("func_path").distinct()[:10]
        if paths:
            raise _endless(ran, most, f"still due is {', '.join(paths)}: does a work enqueue itself for ever?")


def _endless(ran: list[RanWork], most: int, left: str) -> EndlessWork:
    often = ", ".join(f"{path} ({count} times)" for path, count in Counter(one.function for one in ran).most_common(3))
    return EndlessWork(f"{most} attempts have run, of {often}, and {left} If so many are meant, pass most=.")


def _wait(stages: list[Stage], began: list[int], stack: ExitStack) -> bool:
    """Move the time on to the next retry, until the end of the call; return whether there is one that was not due at ``began``."""
    found = [(stage, _next_retry(stage, since)) for stage, since in zip(stages, began, strict=True)]
    waits = [segment_ms(segment) - stage.db.clock_ms() for stage, segment in found if segment is not None]
    if not waits:
        return False
    ms = max(0, math.ceil(min(waits)))
    for stage in stages:
        stage.db.ahead_ms += ms
        stack.callback(_back, stage, ms)
    return True


def _back(stage: Stage, ms: int) -> None:
    stage.db.ahead_ms -= ms


def _next_retry(stage: Stage, since: int) -> int | None:
    """Return the segment of the next work that has run before, and waits for its next attempt."""
    tried = Work.objects.using(stage.using).filter(Q(attempts__gt=0) | Q(returns__gt=0), pool__in=stage.names)
    waits = PendingStart.objects.using(stage.using).filter(work_id__in=tried.values("id"), segment__gt=since)
    found: int | None = waits.aggregate(first=Min("segment"))["first"]
    return found
