"""Several processes at once: nothing runs twice, nothing is lost, and the limit holds over all of them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.db import connection

from django_workpool import Workpool, call
from django_workpool.models import Archive

from .conftest import StartMain
from .live import PATIENCE, database_clock, left_over, results, running, wait_for_quiet, wait_until
from .works.models import Counter as Count
from .works.models import Event
from .works.tasks import ended_once, fail_together, nap

#: Works that each client enqueues; ``python -m tests.checks.parallelism`` does the same with thousands.
NUMBER = 100


@contextmanager
def sampled(samples: list[int]) -> Iterator[None]:
    """Count the running works on a connection of its own, again and again."""
    stop = threading.Event()

    def sample() -> None:
        try:
            while not stop.is_set():
                samples.append(running())
                stop.wait(0.003)
        finally:
            connection.close()

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        stop.set()
        sampler.join()


def test_works_of_many_processes_end_once_each_within_the_limit(main_process: StartMain) -> None:
    """3 processes enqueue, 2 run, the limit is 3: one result and one callback each, and never more than 3 running."""
    Workpool().configure(max_parallelism=3)
    mains = [main_process("--threads", "3") for _ in range(2)]
    for main in mains:
        # Else all may have ended before the second one is there.
        main.wait_for("process_started", PATIENCE)
    samples: list[int] = []
    with sampled(samples):
        clients = [main_process(str(NUMBER), f"client{number}", command="enqueue_notes") for number in range(3)]
        for client in clients:
            assert client.wait(PATIENCE) == 0, client.output()
        wait_until(lambda: Archive.objects.count() == 3 * NUMBER, 60)
    wait_for_quiet()
    assert max(samples) == 3
    assert Archive.objects.filter(kind="success", callback="done", attempts=1).count() == 3 * NUMBER
    notes = Counter(Event.objects.filter(name="note").values_list("key", flat=True))
    assert notes == Counter(f"client{client}-{index}" for client in range(3) for index in range(NUMBER))
    called = Counter(Event.objects.filter(name="ended").values_list("key", "text"))
    archived = Archive.objects.values_list("id", "value")
    assert called == Counter((str(work_id), f"success:{value.strip(chr(34)).split('-')[0]}") for work_id, value in archived)
    workers = {worker for (worker,) in Archive.objects.values_list("worker").distinct()}
    assert len(workers) == 2, "both processes took part"
    assert all(main.process.poll() is None for main in mains)


def test_callbacks_of_works_that_end_together_are_called_once_each(main_process: StartMain, tmp_path: Path) -> None:
    """10 works in 2 processes fail at the same moment, then succeed at the same moment: one callback each, with the success."""
    for _ in range(2):
        main_process("--threads", "5")
    pool = Workpool().using(on_complete=ended_once, retry=True)
    ids = pool.enqueue_many(fail_together, [call(str(tmp_path), str(number), 10) for number in range(10)])
    assert {(one.kind, one.attempts, one.callback) for one in results(ids)} == {("success", 2, "done")}
    assert dict(Count.objects.values_list("name", "value")) == {f"{one}:success": 1 for one in ids}


def test_limit_changed_while_works_run(main_process: StartMain) -> None:
    """10, then 3, then 0, then 5: never more starts than the limit in force, and what runs is not killed."""
    main_process("--threads", "12")
    pool = Workpool()
    ids = pool.enqueue_many(nap, [call(0.3)] * 26)
    wait_until(lambda: running() == 10)
    pool.configure(max_parallelism=3)
    wait_until(lambda: running() == 3)
    samples: list[int] = []
    with sampled(samples):
        before = Archive.objects.count()
        assert before >= 7, "what ran was not stopped"
        wait_until(lambda: Archive.objects.count() >= before + 3)
        pool.configure(max_parallelism=0)
        # An iteration that has read the limit before may still start some.
        time.sleep(0.2)
        wait_until(lambda: running() == 0 and "PendingCompletion" not in left_over())
    assert max(samples) <= 3
    ended = Archive.objects.count()
    assert pool.cancel(next(one for one in ids if not Archive.objects.filter(id=one).exists()))
    # At 0 nothing starts, but a cancelation is worked off.
    wait_until(lambda: Archive.objects.filter(kind="canceled").count() == 1)
    assert (Archive.objects.count(), running()) == (ended + 1, 0)
    for wrong in (-1, 10**7, True, "5", 2.0):
        with pytest.raises(ValueError, match="max_parallelism"):
            pool.configure(max_parallelism=wrong)  # type: ignore[arg-type]
    samples.clear()
    with sampled(samples):
        resumed = database_clock()
        pool.configure(max_parallelism=5)
        results(ids)
    assert max(samples) == 5
    assert Archive.objects.filter(kind="success").count() == 25
    first = Archive.objects.filter(kind="success", started__gt=datetime.fromtimestamp(resumed, UTC)).earliest("started").started
    assert first is not None and first.timestamp() - resumed < 1
