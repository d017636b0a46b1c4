"""1,000 async actions of 1 s each, in one process with two threads and a limit of 1,000: all have ended in less than 5 s."""

import argparse
import time

import psutil

from .base import Check, run

SECONDS, AT_MOST = 1.0, 5.0


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=1_000)


def check(check: Check) -> None:
    """Enqueue them in one transaction, and look at what they return."""
    from django_workpool import Workpool, call
    from django_workpool.models import Archive, Worker

    from ..live import left_over
    from ..works.coroutines import nap_async

    number = check.options.works
    Workpool().configure(max_parallelism=number)
    main = check.start("--threads", "2")
    check.wait(lambda: "lead_taken" in main.output() and Worker.objects.exclude(function_set="").exists(), 60, "the worker is there")
    process = psutil.Process(main.process.pid)
    before = process.memory_info().rss
    began = time.time()
    ids = Workpool().enqueue_many(nap_async, [call(nap_async, SECONDS)] * number)
    enqueued = time.time() - began
    most_memory = 0

    def over() -> bool:
        nonlocal most_memory
        most_memory = max(most_memory, process.memory_info().rss)
        return Archive.objects.filter(id__in=ids[-1:]).exists() and not left_over()

    check.wait(over, 120, "all have ended", poll=0.05)
    took = time.time() - began
    check.expect(Archive.objects.filter(kind="success", attempts=1).count() == number, "not all succeeded at once")
    naps = [one.result.value for one in Workpool().status_many(ids).values() if one.result]
    starts, ends = sorted(nap[0] for nap in naps), sorted(nap[1] for nap in naps)
    at_once = max(index + 1 - sum(end < start for end in ends) for index, start in enumerate(starts))
    check.expect(took < AT_MOST, f"they took {took:.1f} s")
    check.figures.update(works=number, all_ended_s=f"{took:.2f}", enqueued_s=f"{enqueued:.2f}", last_began_s=f"{starts[-1] - began:.2f}")
    check.figures.update(at_once=at_once, rss_mb=most_memory >> 20, rss_before_mb=before >> 20)


if __name__ == "__main__":
    run("coroutines", check, add_options=options)
