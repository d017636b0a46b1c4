"""A periodic work each second, and kill -9 of the leader three times: each tick is enqueued once, and none is missing."""

import argparse
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from .base import Check, run

#: Processes that are there at any time.
PROCESSES = 3
#: Seconds until another process leads, at most.
TAKE_OVER = 10


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how long."""
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--kills", type=int, default=3)


def check(check: Check) -> None:
    """Schedule, kill the leader again and again, stop, count."""
    from django_workpool.models import Archive, Attempt, Lead, Periodic, Work, Worker
    from django_workpool.periodic import schedule, unschedule

    from ..live import left_over
    from ..works.models import Counter as Count
    from ..works.tasks import count_up

    seconds, kills = check.options.seconds, check.options.kills
    mains: dict[int, Any] = {}

    def start() -> None:
        started = check.start("--threads", "2")
        mains[started.process.pid] = started

    def leader() -> Any:
        process = Worker.objects.filter(process=Lead.objects.get().owner).first()
        return mains.get(process.pid) if process is not None else None

    def last() -> int:
        return Periodic.objects.get().last_ms or 0

    for _ in range(PROCESSES):
        start()
    check.wait(lambda: Worker.objects.count() == PROCESSES and leader(), 60, "the processes work, and one leads")
    schedule("tick", count_up, cron="* * * * * *", args=["tick"])
    check.wait(last, 30, "the first tick is enqueued", poll=0.02)
    begun = time.monotonic()
    for number in range(1, kills + 1):
        at = begun + seconds * number / (kills + 1)
        time.sleep(max(0.0, at - time.monotonic()))
        killed = leader()
        if killed is None:
            check.expect(False, f"nobody led before kill {number}")
            continue
        before, since = last(), time.monotonic()
        killed.kill()
        start()
        check.wait(lambda before=before: last() > before, 3 * TAKE_OVER, f"a tick after kill {number}", poll=0.02)
        check.figures[f"gap_{number}_s"] = f"{time.monotonic() - since:.1f}"
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    stop_ms = last()
    check.wait(lambda: last() > stop_ms, 3 * TAKE_OVER, "it still ticks at the end", poll=0.02)
    unschedule("tick")
    # What is enqueued ends; nothing new comes.
    check.wait(lambda: not left_over(), 60, "all that was enqueued has ended")
    works = list(Archive.objects.values_list("name", "kind"))
    names = Counter(name for name, _ in works)
    ticks = sorted(datetime.fromisoformat(name.partition(" @ ")[2]) for name in names)
    wanted = [ticks[0] + timedelta(seconds=number) for number in range(round((ticks[-1] - ticks[0]).total_seconds()) + 1)]
    twice = {name: number for name, number in names.items() if number > 1}
    missing = sorted(set(wanted) - set(ticks))
    check.expect(not twice, f"enqueued twice: {twice}")
    check.expect(not missing, f"missing: {[one.isoformat() for one in missing]}")
    check.expect(len(ticks) >= seconds, f"only {len(ticks)} ticks in {seconds} s")
    kinds = Counter(kind for _, kind in works)
    check.expect(set(kinds) == {"success"}, f"results: {dict(kinds)}")
    # A mutation: its effect is there once for each tick, whoever was killed while it ran.
    effect = Count.objects.get(name="tick").value
    check.expect(effect == len(ticks), f"{effect} effects of {len(ticks)} ticks")
    check.expect(not Work.objects.exists(), "works are left")
    terms = Lead.objects.get().term
    check.expect(terms >= kills + 1, f"{terms} leaders with {kills} kills")
    check.figures.update(ticks=len(ticks), twice=len(twice), missing=len(missing), effects=effect, leaders=terms)
    late = [(created - datetime.fromisoformat(name.partition(" @ ")[2])).total_seconds() for name, created in _created()]
    late.sort()
    check.figures.update(late_median_s=f"{late[len(late) // 2]:.3f}", late_max_s=f"{late[-1]:.1f}", lost_attempts=Attempt.objects.count())


def _created() -> list[tuple[str, datetime]]:
    from django_workpool.models import Archive

    return list(Archive.objects.values_list("name", "created"))


if __name__ == "__main__":
    run("periodic", check, add_options=options)
