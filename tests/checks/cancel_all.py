"""``cancel_all`` of 100,000 waiting works inside a request's transaction, with enqueues going on and a restart half way."""

import argparse
import threading
import time
from pathlib import Path

from .base import Check, run

RUNNING = 10
RATE = 100
MB = 1024 * 1024


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--works", type=int, default=100_000)


def memory(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)


class Client:
    """Enqueues works at a steady rate, and measures how long each enqueue takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors: list[str] = []
        self.ids: list[object] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        """Enqueue until it is stopped. The works are due in a day, so that they only wait."""
        from datetime import timedelta

        from django.db import connection

        from django_workpool import Workpool

        from ..works.tasks import note

        pool = Workpool().using(delay=timedelta(days=1))
        next_at = time.monotonic()
        try:
            while not self.stop.is_set():
                began = time.monotonic()
                try:
                    self.ids.append(pool.enqueue(note, "after"))
                except Exception as error:
                    self.errors.append(str(error))
                self.seconds.append(time.monotonic() - began)
                next_at = max(next_at + 1 / RATE, time.monotonic() - 1)
                self.stop.wait(max(0.0, next_at - time.monotonic()))
        finally:
            connection.close()


def check(check: Check) -> None:
    """Enqueue, cancel all, enqueue on, restart, count."""
    from django.db import transaction

    from django_workpool import Workpool, call
    from django_workpool.models import Archive, PendingStart

    from ..live import running
    from ..works.tasks import hold, note

    pool = Workpool()
    pool.configure(max_parallelism=RUNNING)
    pool.enqueue_many(hold, [call(str(check.start.folder), str(number)) for number in range(RUNNING)])
    main = check.start()
    check.wait(lambda: running() == RUNNING, 30, "10 works run")
    pool.enqueue_many(note, [call("canceled")] * check.options.works)
    before = memory(main.process.pid)
    with transaction.atomic():
        began = time.monotonic()
        pool.cancel_all()
    view = time.monotonic() - began
    (check.start.folder / "go").touch()
    client = Client()
    client.thread.start()
    canceled = Archive.objects.filter(kind="canceled")
    began, peak = time.monotonic(), before
    try:
        for goal, restart in ((check.options.works // 2, True), (check.options.works, False)):
            while canceled.count() < goal:
                peak = max(peak, memory(main.process.pid))
                if time.monotonic() - began > 600:
                    check.problems.append(f"only {canceled.count()} were canceled in 600 s")
                    return
                time.sleep(1)
            if restart:
                main.terminate()
                check.expect(main.wait(30) == 0, "SIGTERM was not obeyed")
                main = check.start()
        seconds = time.monotonic() - began
    finally:
        client.stop.set()
        client.thread.join()
    p95 = sorted(client.seconds)[int(len(client.seconds) * 0.95)]
    ended = Archive.objects.filter(func_path="tests.works.tasks.hold", kind="success").count()
    check.expect(ended == RUNNING, f"{ended} of the running works succeeded")
    check.expect(canceled.count() == check.options.works, f"{canceled.count()} were canceled")
    waiting = PendingStart.objects.filter(work_id__in=client.ids[:500]).count()
    check.expect(waiting == min(500, len(client.ids)), "a work enqueued afterwards was canceled")
    check.expect(not client.errors, f"errors of enqueue: {client.errors[:3]}")
    check.expect(view < 2, f"cancel_all took {view:.2f} s")
    check.expect(p95 < 0.2, f"95 % of the enqueues took up to {p95 * 1000:.0f} ms")
    check.expect(seconds < 300, f"it took {seconds:.0f} s")
    check.expect(peak - before < 100 * MB, f"memory grew by {(peak - before) // MB} MB")
    check.figures.update(canceled=canceled.count(), in_s=round(seconds), view_ms=round(view * 1000), enqueued_meanwhile=len(client.ids))
    check.figures.update(enqueue_p95_ms=round(p95 * 1000), enqueue_max_ms=round(max(client.seconds) * 1000), grown_mb=(peak - before) // MB)


if __name__ == "__main__":
    run("cancel_all", check, add_options=options)
