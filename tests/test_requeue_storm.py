"""Works that run again in a storm: processes are killed, works are canceled, pools paused, all at the same time. Then rows must agree."""

import random
import threading
import time
import uuid
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connections
from django.db.models import F, Sum

from django_workpool import RetryBehavior, Workpool, call
from django_workpool.models import Archive, Attempt, Tally
from django_workpool.types import Lane

from .conftest import MainProcess, StartMain
from .live import PATIENCE, left_over, wait_until
from .tallied import counted
from .works import tasks
from .works.models import Event

pytestmark = pytest.mark.django_db(transaction=True)

#: Works of each kind, and seconds of the storm.
NUMBER, SECONDS = 40, 8.0
TWICE = RetryBehavior(max_attempts=2, initial_backoff=timedelta(milliseconds=200))


def _operate(ids: list[uuid.UUID], until: float, requeued: Counter[uuid.UUID], errors: list[BaseException]) -> None:
    """Do whatever operators do, at random."""
    pool, chance = Workpool(), random.Random(7)
    try:
        while time.monotonic() < until:
            some = chance.sample(ids, 12)
            act = chance.randrange(6)
            if act <= 1:
                requeued.update(pool.retry_many(some))
            elif act == 2:
                requeued.update(some[:1] if pool.retry(some[0]) else [])
            elif act == 3:
                for work_id in some[:4]:
                    pool.run_now(work_id)
            elif act == 4:
                pool.cancel_many(some[:2])
            else:
                pool.pause()
                pool.resume()
            time.sleep(0.02)
    except BaseException as error:
        errors.append(error)
    finally:
        connections.close_all()


@pytest.mark.slow
def test_rows_and_figures_agree_after_a_storm_of_operators(main_process: StartMain) -> None:
    def start() -> MainProcess:
        return main_process("--threads", "4")

    mains = [start(), start()]
    mains[0].wait_for("process_started", PATIENCE)
    pool = Workpool()
    pool.configure(max_parallelism=8)
    with_end = pool.using(on_complete=tasks.ended, retry=TWICE)
    failing = [with_end.enqueue(tasks.fail) for _ in range(NUMBER)] + [pool.enqueue(tasks.fail) for _ in range(NUMBER)]
    others = with_end.enqueue_many(tasks.slow_note, [call(str(number), 0.02) for number in range(NUMBER)])
    joined = pool.enqueue_many(tasks.join, [call(str(number)) for number in range(NUMBER)])
    later = [pool.using(delay=timedelta(seconds=2)).enqueue(tasks.fail) for _ in range(NUMBER)]
    ids = [*failing, *others, *joined, *later]
    requeued: Counter[uuid.UUID] = Counter()
    both: Counter[uuid.UUID] = Counter()
    errors: list[BaseException] = []
    until = time.monotonic() + SECONDS
    threads = [threading.Thread(target=_operate, args=(ids, until, counter, errors)) for counter in (requeued, both)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        time.sleep(1.5)
        # Whichever leads is killed in turn with the other one.
        mains.pop(0).kill()
        mains.append(start())
    for thread in threads:
        thread.join()
    assert errors == []
    requeued += both
    pool.resume()
    wait_until(lambda: not left_over(), 4 * PATIENCE)
    assert requeued.total() > 0 and set(Archive.objects.filter(callback_of=None).values_list("id", flat=True)) == set(ids)
    # The figures are those of the rows, with what ran again.
    kinds = Counter(Archive.objects.filter(callback_of=None).values_list("kind", flat=True))
    names = ("succeeded", "failed", "canceled", "failed_attempts", "requeued")
    found = Counter(counted(names=names)["default", Lane.WORK])
    assert found["succeeded"] == kinds["success"] and found["requeued"] == requeued.total()
    assert found["failed"] + found["canceled"] - found["requeued"] == kinds["failed"] + kinds["canceled"]
    assert found["failed_attempts"] == Attempt.objects.filter(work_id__in=ids).count()
    for work_id in ids:
        numbers = list(Attempt.objects.filter(work_id=work_id).order_by("number").values_list("number", flat=True))
        assert numbers == list(range(1, len(numbers) + 1))
    assert Tally.objects.aggregate(total=Sum(F("requeued")))["total"] == requeued.total()
    # Each end was told once.
    told = Counter(Event.objects.filter(name="ended").values_list("key", flat=True))
    assert told == {str(work_id): 1 + requeued[work_id] for work_id in [*failing[:NUMBER], *others]}
