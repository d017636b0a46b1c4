"""Finished works that run again, and waiting ones that run now, by the rows."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_workpool import RetryBehavior, Workpool, requeue
from django_workpool.models import Archive, Attempt, PendingStart, RunningWork, Tally, UniqueKey, Work
from django_workpool.requeue import Refusal
from django_workpool.types import Lane

from .states.driver import FAILED, FINAL, SUCCESS, Loop, complete
from .states.functions import act
from .states.rows import POOL, S1, S2, S3, S4, S10, S11, finished, given, numbers, observe, pass_time

pytestmark = pytest.mark.django_db(transaction=True)

THRICE = RetryBehavior(max_attempts=3, initial_backoff=timedelta(0))


@pytest.fixture
def loop() -> Loop:
    return Loop()


def run_out(loop: Loop, outcome: Any = FAILED) -> int:
    """Let all that is due run to its end with an outcome; return how many runs that were."""
    runs = 0
    while Work.objects.exists() or RunningWork.objects.exists():
        for run in loop.settle():
            runs += 1
            assert complete(run, outcome)
        pass_time(10)
    return runs


def test_a_failed_work_runs_again_under_its_id_and_counts_on(loop: Loop) -> None:
    work_id = Workpool().using(retry=THRICE, timeout=timedelta(seconds=7), priority=3, name="n").enqueue(act)
    before = Work.objects.values().get(id=work_id)
    assert run_out(loop) == 3
    assert Archive.objects.get(id=work_id).kind == "failed"
    assert Workpool().retry(work_id) is True
    work = Work.objects.values().get(id=work_id)
    assert {name for name in before if work[name] != before[name]} == {"attempts", "retry"}
    assert (work["attempts"], Archive.objects.count()) == (3, 0)
    assert Workpool().status(work_id).previous_attempts == 3
    # Three more, and again three more: not six.
    assert run_out(loop) == 3
    assert Workpool().retry(work_id) is True
    assert run_out(loop) == 3
    assert numbers(work_id) == list(range(1, 10))
    assert Workpool().retry(work_id) is True
    assert run_out(loop, SUCCESS) == 1
    kept = Archive.objects.get(id=work_id)
    assert (kept.kind, kept.attempts) == ("success", 10)
    assert Workpool().retry(work_id) is False


def test_a_work_without_a_retry_behaviour_gets_one_attempt_more(loop: Loop) -> None:
    work_id = Workpool().enqueue(act)
    assert run_out(loop) == 1
    assert Workpool().retry(work_id)
    assert run_out(loop) == 1
    assert numbers(work_id) == [1, 2]
    assert Archive.objects.get(id=work_id).attempts == 2


@pytest.mark.parametrize("state", [S1, S2, S3, S4, S10, S11, finished("success")], ids=repr)
def test_what_has_not_ended_or_succeeded_is_left_as_it_is(state: Any) -> None:
    work_id = given(state)
    before = observe(work_id)
    with transaction.atomic():
        assert Workpool().retry(work_id) is False
    assert observe(work_id) == before


def test_what_is_no_work_of_the_pool_is_refused() -> None:
    work_id = given(finished("failed"))
    for wrong in (uuid.uuid4(), "no id", None, 7):
        assert Workpool().retry(wrong) is False
        assert Workpool().run_now(wrong) is False
        assert Workpool().retry_callback(wrong) is False
    assert Workpool("imports").retry(work_id) is False
    assert requeue.requeue(POOL, [work_id, uuid.UUID(int=7)]).refused == {uuid.UUID(int=7): Refusal.GONE}
    assert Attempt.objects.count() == 1 and UniqueKey.objects.count() == 0 and FINAL
    assert list(Tally.objects.values_list("pool", "lane", "requeued")) == [(POOL, Lane.WORK, 1)]
    assert PendingStart.objects.count() == 1
