"""kill -9 of the only process in the middle of 1,000 actions that are retried, and a new one: all end, none twice, nothing is left."""

import argparse
from collections import Counter

from .base import Check, run


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=1_000)


def check(check: Check) -> None:
    """Enqueue, run, kill, run again, count."""
    from django_workpool import Workpool, call
    from django_workpool.models import Archive, Attempt, RunningWork, Worker

    from ..live import left_over
    from ..works.models import Counter as Count
    from ..works.tasks import ended_once, slow_note

    number = check.options.works
    pool = Workpool().using(on_complete=ended_once)
    ids = pool.enqueue_many(slow_note, [call(str(one), 0.05) for one in range(number)])
    first = check.start()
    check.wait(lambda: Archive.objects.count() >= number // 2, 120, "half of them have ended", poll=0.02)
    first.kill()
    ended = Archive.objects.count()
    lost = RunningWork.objects.count()
    check.expect(ended < number and lost > 0, f"it was killed too late: {ended} had ended, {lost} ran")
    check.start()
    check.wait(lambda: not left_over(), 300, "nothing is left in the queues")
    kinds = Counter(Archive.objects.filter(id__in=ids).values_list("kind", flat=True))
    check.expect(kinds == {"success": number}, f"results: {dict(kinds)}")
    called = dict(Count.objects.values_list("name", "value"))
    check.expect(called == {f"{one}:success": 1 for one in ids}, "a callback was called twice, or never")
    classes = Counter(Attempt.objects.values_list("class_path", flat=True))
    check.expect(set(classes) <= {"django_workpool.WorkerLost"}, f"failed attempts: {dict(classes)}")
    check.expect(classes.total() <= lost, "more attempts were lost than works ran")
    recovered = [one.ended for one in Attempt.objects.all()]
    alive = Worker.objects.get().started
    seconds = max(((one - alive).total_seconds() for one in recovered), default=0.0)
    check.expect(seconds < 10, f"recovered {seconds:.1f} s after the new process came to life")
    check.figures.update(works=number, results=kinds.total(), callbacks=len(called), ended_before=ended, running_at_kill=lost)
    check.figures.update(lost_attempts=classes.total(), recovered_after_s=f"{seconds:.1f}", running_rows=RunningWork.objects.count())


if __name__ == "__main__":
    run("killed", check, add_options=options)
