"""Finished works that run again: what is left of their earlier ends, and rows that cannot be read."""

from datetime import timedelta

import pytest

from django_workpool import RetryBehavior, Workpool
from django_workpool.loop import retries
from django_workpool.models import Archive, PendingStart, Work

from .states.driver import FAILED, Loop, complete
from .states.functions import act
from .states.rows import left_over, numbers, pass_time
from .test_requeue import run_out

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_the_waits_of_a_retried_work_begin_anew(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attempts go on counting, but not how long it waits before them."""
    monkeypatch.setattr(retries.random, "uniform", lambda low, high: 1.0)
    behavior = RetryBehavior(max_attempts=3, initial_backoff=timedelta(seconds=1), base=10)
    work_id = Workpool().using(retry=behavior).enqueue(act)
    for _ in range(3):
        waits = []
        while Work.objects.exists():
            for run in loop.settle():
                assert complete(run, FAILED)
            before = loop.db.segment()
            loop.settle()
            waits += [round((row.segment - before) / 10) for row in PendingStart.objects.all()]
            pass_time(1_000)
        assert waits == [1, 10]
        assert Workpool().retry(work_id)
    assert numbers(work_id) == list(range(1, 10))


def test_a_damaged_retry_behaviour_makes_a_failure_final_and_stops_nobody(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    ids = [Workpool().using(retry=RetryBehavior(max_attempts=2, initial_backoff=timedelta(0))).enqueue(act) for _ in range(3)]
    for damaged, text in zip(ids, ('{"max_attempts": 3', '{"base": 2}'), strict=False):
        Work.objects.filter(id=damaged).update(retry=text)
    assert run_out(loop) == 4
    assert sorted(Archive.objects.values_list("attempts", flat=True)) == [1, 1, 2]
    assert "retry behaviour" in caplog.text
    assert Workpool().retry_many(ids) == sorted(ids)
    assert run_out(loop) == 4
    assert left_over() == {}
