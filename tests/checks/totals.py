"""10,000 works of all kinds, two processes, kill -9 of the one that leads: the tallies are what the archive and the attempts are."""

import argparse
import random
import uuid
from collections import Counter
from datetime import timedelta

from .base import Check, run


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=10_000)


def enqueue(name: str, number: int) -> list[uuid.UUID]:
    """Enqueue works that succeed, fail, are retried and call back, some of them in a batch; return them."""
    from django_workpool import Workpool, call

    from ..works.tasks import SOON, batch_breaks, batch_ended, break_down, ended_once, fail, fail_once, join, note, slow_note

    pool, share = Workpool(name), number // 20
    retried = pool.using(retry=SOON)

    def calls(text: str, count: int) -> list[object]:
        return [call(f"{name} {text} {one}") for one in range(count)]

    ids = pool.enqueue_many(note, calls("note", number - 13 * share))
    ids += pool.enqueue_many(join, calls("join", 3 * share))
    ids += pool.enqueue_many(join, [call(f"{name} fails {one}", "fails") for one in range(share)])
    ids += pool.enqueue_many(slow_note, [call(f"{name} slow {one}", 0.02) for one in range(share)])
    ids += pool.using(on_complete=ended_once).enqueue_many(note, calls("told", 2 * share))
    ids += pool.enqueue_many(fail, calls("fail", 2 * share))
    ids += retried.enqueue_many(fail, calls("fail always", share))
    ids += retried.using(on_complete=ended_once).enqueue_many(fail_once, calls("fail once", share))
    ids += pool.using(on_complete=break_down).enqueue_many(note, calls("callback", share - 20))
    ids += pool.using(on_complete=break_down, on_complete_context="integrity").enqueue_many(note, calls("callback fails", 20))
    for callback in (batch_ended, batch_breaks):
        with pool.batch(on_complete=callback) as filled:
            ids += filled.enqueue_many(note, calls("batch", share // 2))
    later = pool.using(delay=timedelta(days=1), on_complete=ended_once).enqueue_many(note, calls("later", number - len(ids)))
    for work_id in later:
        pool.cancel(work_id)
    return ids + later


def check(check: Check) -> None:
    """Enqueue, run, cancel, kill, and compare the sums with the rows, before and after these are made fewer."""
    from django_workpool import Workpool, tallies
    from django_workpool.database import database
    from django_workpool.models import Archive, Attempt, RunningWork, Tally
    from django_workpool.types import Lane

    from ..live import left_over
    from ..tallied import counted, kept

    number = check.options.works // 2
    pools = ("default", "imports")
    for name in pools:
        Workpool(name).configure(max_parallelism=30)
    ids = {name: enqueue(name, number) for name in pools}
    mains = [check.start("--threads", "4")]
    check.wait(lambda: "lead_taken" in mains[0].output(), 60, "a process leads")
    mains.append(check.start("--threads", "4", "--prefetch", "8"))
    for name, works in ids.items():
        for work_id in random.sample(works, number // 20):
            Workpool(name).cancel(work_id)
    check.wait(lambda: Archive.objects.count() >= number, 300, "half of them have ended")
    mains[0].kill()
    ended, lost = Archive.objects.count(), RunningWork.objects.count()
    check.expect(ended < 2 * number and lost > 0, f"it was killed too late: {ended} had ended, {lost} ran")
    check.wait(lambda: not left_over(), 500, "nothing is left in the queues", poll=0.5)
    check.expect(mains[1].process.poll() is None, "the other process has died")
    check.expect(Archive.objects.exclude(fn_type="callback").count() == 2 * number, "a work is missing")
    check.figures.update(works=2 * number, ended_at_kill=ended, running_at_kill=lost, rows=Tally.objects.count())
    for when in ("", ", after its rows were made fewer"):
        check.expect(counted() == kept(), f"the tallies say {counted()}, the rows {kept()}{when}")
        # As if three minutes had passed.
        database("default").ahead_ms = 180_000
        tallies.compact("default")
    last = Counter(Archive.objects.filter(kind="failed", fn_type="callback").values_list("pool", flat=True))
    for name in pools:
        one = tallies.totals("default", lane=Lane.CALLBACK)[name]
        # Nobody cancels a callback: each failed attempt but the last one of those that failed for good is followed by another one.
        check.expect(one.retried == one.failed_attempts - last[name], f"{name}: {one.retried} callbacks were retried")
        one = tallies.totals("default")[name]
        check.expect(one.started == sum(one.lags), f"{name}: {one.started} starts, lags {one.lags}")
        least = one.failed_attempts - one.failed - one.canceled
        check.expect(least <= one.retried <= one.failed_attempts - one.failed, f"{name}: {one.retried} were retried")
        runs = one.succeeded + one.failed_attempts + one.returned
        check.expect(runs <= one.started <= runs + one.canceled, f"{name}: {one.started} were started, {runs} runs have ended")
    whole = [one for lane in Lane for one in tallies.totals("default", lane=lane).values()]
    for column in ("succeeded", "failed", "canceled", "retried", "returned"):
        check.figures[column] = sum(getattr(one, column) for one in whole)
    check.figures.update(attempts=Attempt.objects.count(), rows_after=Tally.objects.count())


if __name__ == "__main__":
    run("totals", check, add_options=options)
