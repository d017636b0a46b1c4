"""500 rounds in which two threads cancel a work in the millisecond in which it ends: one end and one callback each."""

import argparse
import random
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from .base import Check, run

AT_ONCE = 5


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--rounds", type=int, default=500)


def one_round(number: int, barrier: threading.Barrier, retried: bool) -> tuple[uuid.UUID, list[bool]]:
    """Enqueue a work that ends at a moment, and cancel it twice at that moment."""
    from datetime import timedelta

    from django.db import connection

    from django_workpool import RetryBehavior, Workpool

    from ..works.tasks import end_at, ended_once

    moment = time.time() + 0.25
    pool = Workpool().using(on_complete=ended_once)
    if retried:
        pool = pool.using(retry=RetryBehavior(max_attempts=2, initial_backoff=timedelta(0)))
    work_id = pool.enqueue(end_at, moment, retried)
    told = []

    def cancel() -> None:
        try:
            barrier.wait(30)
            time.sleep(max(0.0, moment + random.uniform(-0.002, 0.012) - time.time()))
            told.append(Workpool().cancel(work_id))
        finally:
            connection.close()

    threads = [threading.Thread(target=cancel) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if number % 10 == 0:
        told.append(Workpool().cancel(uuid.uuid4()))
        told.append(Workpool().cancel("garbage"))
        if any(told[2:]):
            raise AssertionError("what is not there was canceled")
        del told[2:]
    connection.close()
    return work_id, told


def check(check: Check) -> None:
    """Race, then count ends and callbacks."""
    from django_workpool.models import Archive, Attempt

    from ..live import left_over
    from ..works.models import Counter as Count

    rounds = check.options.rounds
    main = check.start("--threads", "12")
    check.wait(lambda: "lead_taken" in main.output(), 30, "a process leads")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        barriers = [threading.Barrier(2) for _ in range(rounds)]
        told = dict(threads.map(one_round, range(rounds), barriers, [number % 2 == 0 for number in range(rounds)]))
    check.wait(lambda: not left_over(), 60, "nothing is left in the queues")
    kinds = Counter(Archive.objects.filter(id__in=told).values_list("kind", flat=True))
    check.expect(kinds.total() == rounds, f"{kinds.total()} ends")
    for one in Archive.objects.filter(id__in=told):
        check.expect(one.kind != "canceled" or any(told[one.id]), f"{one.id} was canceled, and both were told that it was not")
    ends = {f"{one.id}:{one.kind}": 1 for one in Archive.objects.filter(id__in=told)}
    called = dict(Count.objects.values_list("name", "value"))
    check.expect(called == ends, "a callback was called twice, or never, or with another end")
    ran = Counter(Attempt.objects.values_list("work_id", flat=True))
    check.expect(all(number <= 2 for number in ran.values()), "a work had more attempts than it may")
    check.expect(main.process.poll() is None, "the process has died")
    check.expect("Traceback" not in main.output(), "something was raised")
    asked = Counter(sum(one) for one in told.values())
    check.figures.update(rounds=rounds, **kinds, callbacks=sum(called.values()), told_true=asked[1], told_true_twice=asked[2])


if __name__ == "__main__":
    run("cancel_races", check, add_options=options)
