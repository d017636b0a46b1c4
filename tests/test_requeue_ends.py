"""Finished works that run again: what is left of their earlier ends, and rows that cannot be read."""

import uuid
from datetime import timedelta

import pytest

from django_workpool import RetryBehavior, Workpool, archive, requeue
from django_workpool.loop import retries
from django_workpool.models import Archive, PendingStart, Work
from django_workpool.requeue import Refusal
from django_workpool.types import Lane

from .states import functions
from .states.driver import FAILED, SUCCESS, Loop, complete
from .states.functions import act
from .states.rows import POOL, S10, given, left_over, numbers, pass_time
from .test_requeue import perform_all, run_out

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


def test_a_work_whose_on_complete_waits_does_not_run_again_before_it_was_called(loop: Loop) -> None:
    """Else what is told of its new end could come first, and be undone by what was to be told of the last one."""
    work_id = Workpool().using(on_complete=functions.told).enqueue(act)
    Workpool().cancel(work_id)
    (callback,) = loop.settle()
    assert Archive.objects.get(id=work_id).callback == "pending"
    assert requeue.look(POOL, [work_id]).refused == requeue.requeue(POOL, [work_id]).refused == {work_id: Refusal.CALLBACK_WAITS}
    loop.perform(callback)
    assert Workpool().retry(work_id) is True
    run_out(loop, SUCCESS)
    assert [text.split()[0] for text in functions.effects(work_id)] == ["canceled", "success"]


def test_an_exhausted_callback_of_an_earlier_end_says_nothing_of_the_last_one(loop: Loop) -> None:
    work_id = Workpool().using(on_complete=functions.told_never).enqueue(act)
    (run,) = loop.settle()
    complete(run, FAILED)
    assert perform_all(loop) == 5
    (earlier,) = Archive.objects.filter(callback_of=work_id)
    assert Workpool().retry(work_id) is True
    # While it runs again, what it has come to is not known.
    assert Workpool().retry_callback(work_id) is False
    Work.objects.filter(id=work_id).update(on_complete=f"{functions.__name__}.told")
    run_out(loop, SUCCESS)
    assert Archive.objects.get(id=work_id).callback == "done"
    # By its own id it can be called again all the same: it was never called with success.
    assert Workpool().retry(earlier.id) is True
    assert Archive.objects.get(id=work_id).callback == "done"
    assert perform_all(loop) == 5
    assert (Archive.objects.get(id=work_id).callback, Archive.objects.get(id=work_id).callback_error) == ("done", "")
    assert Workpool().retry_callback(work_id) is False


def test_fates_that_are_told_together_lock_their_works_in_one_order(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lets many finished works run again locks them by their ids: the other way round the two would wait for each other."""
    ids = sorted(Workpool().using(on_complete=functions.told).enqueue(act) for _ in range(4))
    for run in loop.settle():
        complete(run, SUCCESS)
    for place, work_id in enumerate(reversed(ids)):
        # The callbacks' ids have another order than the works'.
        callback = given(S10, func="told")
        Work.objects.filter(id=callback).update(id=uuid.UUID(int=place + 1), callback_of=work_id)
        PendingStart.objects.filter(work_id=callback).update(work_id=uuid.UUID(int=place + 1))
    Work.objects.update(fn_type="callback", held_since=loop.db.moment(0), func_path="gone.away")
    PendingStart.objects.update(lane=Lane.CALLBACK)
    told: list[uuid.UUID] = []
    monkeypatch.setattr(archive, "callback_fate", lambda using, work_id, *args, **more: told.append(work_id))
    loop.settle()
    assert told == ids
