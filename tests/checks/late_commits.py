"""20 transactions enqueue and commit 30 s later, the pool idle meanwhile: each work starts within a second of its commit."""

import argparse
import threading
import time
import uuid

from .base import Check, run

#: What the manual promises: with a kick the loop looks at once, without one at its next poll.
WITHIN = 1.0


def options(parser: argparse.ArgumentParser) -> None:
    """Declare the number, the time, and whether kicks are sent."""
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--hold", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--no-kick", action="store_true", help="Send no kick: the poll alone must find the works.")


def check(check: Check) -> None:
    """Hold the transactions, run others meanwhile, commit one by one, compare the times of the database."""
    if check.vendor == "sqlite":
        check.figures["skipped"] = "SQLite has one writer: nothing commits behind another"
        return
    from django.db import connection, transaction

    from django_workpool import Workpool, kick
    from django_workpool.models import Archive, RunStatus

    from ..live import database_clock, left_over
    from ..works.tasks import note

    if check.options.no_kick:
        kick.kick = lambda *args, **kwargs: None  # type: ignore[assignment]
    main = check.start()
    check.wait(lambda: "lead_taken" in main.output(), 30, "a process leads")
    committed: dict[uuid.UUID, float] = {}
    began = time.monotonic()

    def late(number: int) -> None:
        try:
            # Not a multiple of a second: they are to meet every phase of the poll.
            time.sleep(number * 1.53)
            with transaction.atomic():
                work_id = Workpool().enqueue(note, f"late {number}")
                time.sleep(check.options.hold)
            committed[work_id] = database_clock()
        finally:
            connection.close()

    threads = [threading.Thread(target=late, args=[number]) for number in range(check.options.rounds)]
    for thread in threads:
        thread.start()
    while time.monotonic() - began < check.options.hold * 0.8:
        # The cursor moves on, past the times and ids of those that are held.
        Workpool().enqueue_many(note, [])
        Workpool().enqueue(note, "other")
        time.sleep(0.5)
    check.wait(lambda: not left_over(), 10, "the pool is idle")
    check.expect(RunStatus.objects.get(pool="default").state == "idle", "the pool is not idle")
    for thread in threads:
        thread.join()
    check.wait(lambda: Archive.objects.filter(id__in=committed).count() == len(committed), 30, "all late works have ended")
    lags = sorted(one.started.timestamp() - committed[one.id] for one in Archive.objects.filter(id__in=committed) if one.started)
    in_time = sum(lag < WITHIN for lag in lags)
    check.expect(in_time == check.options.rounds, f"late starts: {[round(lag, 2) for lag in lags if lag >= WITHIN]}")
    check.figures.update(kicks="off" if check.options.no_kick else "on", in_time=f"{in_time}/{check.options.rounds}")
    check.figures.update(median_ms=round(lags[len(lags) // 2] * 1000), max_ms=round(lags[-1] * 1000))


if __name__ == "__main__":
    run("late_commits", check, add_options=options)
