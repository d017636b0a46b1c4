"""4 processes enqueue 10,000 works with callbacks, 2 processes run them, the limit is 7: each ends once, and never more than 7 run."""

import argparse
import threading
from collections import Counter

from .base import Check, run

LIMIT, CLIENTS, MAINS = 7, 4, 2


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=10_000)


def check(check: Check) -> None:
    """Enqueue, run, sample, count."""
    from django.db import connection

    from django_workpool import Workpool
    from django_workpool.models import Archive

    from ..live import left_over, running
    from ..works.models import Event

    Workpool().configure(max_parallelism=LIMIT)
    samples: Counter[int] = Counter()
    stop = threading.Event()

    def sample() -> None:
        try:
            while not stop.wait(0.005):
                samples[running()] += 1
        finally:
            connection.close()

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        for _ in range(MAINS):
            check.start()
        clients = [check.start(str(check.options.works // CLIENTS), f"client{one}", command="enqueue_notes") for one in range(CLIENTS)]
        check.wait(lambda: all(client.process.poll() is not None for client in clients), 600, "all is enqueued")
        check.expect(all(client.process.returncode == 0 for client in clients), "a client failed")
        check.wait(lambda: not left_over(), 800, "nothing is left in the queues", poll=0.5)
    finally:
        stop.set()
        sampler.join()
    works = check.options.works // CLIENTS * CLIENTS
    kinds = Counter(Archive.objects.values_list("kind", "attempts", "callback"))
    check.expect(kinds == {("success", 1, "done"): works}, f"results: {dict(kinds)}")
    runs = Counter(Event.objects.filter(name="note").values_list("key", flat=True))
    check.expect(len(runs) == works and set(runs.values()) == {1}, "a work ran twice, or never")
    called = Counter(Event.objects.filter(name="ended").values_list("key", flat=True))
    ids = {str(one) for one in Archive.objects.values_list("id", flat=True)}
    check.expect(set(called) == ids and set(called.values()) == {1}, "a callback was called twice, or never")
    check.expect(max(samples) <= LIMIT, f"{max(samples)} works ran at once")
    workers = set(Archive.objects.values_list("worker", flat=True))
    check.expect(len(workers) == MAINS, f"run by {workers}")
    check.figures.update(works=works, results=sum(kinds.values()), callbacks=sum(called.values()))
    check.figures.update(max_running=max(samples), samples=sum(samples.values()), full=samples[LIMIT])


if __name__ == "__main__":
    run("parallelism", check, add_options=options)
