"""Finished works that run again, and waiting ones that run now, by the rows."""

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.db.models import Sum

from django_workpool import InvalidWork, RetryBehavior, Workpool, requeue
from django_workpool.loop.memory import OpenBatches
from django_workpool.models import Archive, PendingStart, RunningWork, Tally, Work
from django_workpool.requeue import Refusal
from django_workpool.types import Lane

from .states import functions
from .states.driver import FAILED, SUCCESS, Loop, complete
from .states.functions import act
from .states.rows import FINISHED, POOL, S1, S2, S3, S4, S10, S11, finished, given, numbers, observe, pass_time, snapshot
from .works.tasks import batch_breaks

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
    with pytest.raises(InvalidWork, match="'x' is not the id of a work"):
        Workpool().retry_many([work_id, "x"])
    assert Archive.objects.count() == 1
    assert requeue.requeue(POOL, [work_id, uuid.UUID(int=7)]).refused == {uuid.UUID(int=7): Refusal.GONE}
    assert requeue.requeue(POOL, [work_id]).refused == {work_id: Refusal.NOT_ENDED}


@pytest.mark.parametrize("state", [S3, S4, S11, finished("success"), FINISHED], ids=repr)
def test_each_refusal_is_told(state: Any) -> None:
    work_id = given(state if state is not S11 else replace(S11, archived="canceled"))
    if state in (S3, S4):
        Archive.objects.update(kind="failed")
    expected = {S3: Refusal.HOLDS_SLOT, S4: Refusal.CANCELING, S11: Refusal.CANCELING, finished("success"): Refusal.SUCCEEDED}
    told = requeue.look(POOL, [work_id]).refused
    assert told == {work_id: expected.get(state, Refusal.SUCCEEDED)}
    assert requeue.requeue(POOL, [work_id]).refused == told


def test_a_canceled_work_runs_again_and_a_cancel_all_that_waits_is_not_for_it(loop: Loop) -> None:
    work_id = Workpool().enqueue(act)
    Workpool().cancel(work_id)
    loop.iterate()
    Workpool().cancel_all()
    with transaction.atomic():
        assert Workpool().retry(work_id) is False
    loop.iterate()
    assert Workpool().retry(work_id) is True
    assert Workpool().cancel(work_id) is True
    loop.iterate()
    assert Workpool().retry(work_id) is True
    assert run_out(loop, SUCCESS) == 1
    assert (Archive.objects.get().kind, Archive.objects.get().attempts) == ("success", 1)


def test_it_belongs_to_no_batch_any_more(loop: Loop) -> None:
    with Workpool().batch() as batch:
        work_id = batch.enqueue(act)
    loop.memory.batches = OpenBatches(1, True)
    assert run_out(loop) == 1
    loop.iterate()
    before = batch.status()
    assert before and before.ended and before.failed == 1
    assert Workpool().retry(work_id)
    assert Work.objects.get().batch_id is None and batch.status() == before
    run_out(loop, SUCCESS)
    assert batch.status() == before


def test_its_on_complete_is_called_again_at_its_new_end(loop: Loop) -> None:
    work_id = Workpool().using(on_complete=functions.told, on_complete_context={"a": 1}).enqueue(act)
    run_out(loop)
    assert len(functions.effects(work_id)) == 1
    assert Workpool().retry(work_id)
    run_out(loop, SUCCESS)
    assert [text.split()[0] for text in functions.effects(work_id)] == ["failed", "success"]
    assert Archive.objects.get(id=work_id).callback == "done"


def perform_all(loop: Loop) -> int:
    """Run all that is due, its functions really called, until nothing is left; return how many runs that were."""
    runs = 0
    while Work.objects.exists() or RunningWork.objects.exists():
        for run in loop.settle():
            runs += 1
            loop.perform(run)
        pass_time(6_000)
    return runs


def test_an_exhausted_callback_is_called_again_from_its_work(loop: Loop) -> None:
    work_id = Workpool().using(on_complete=functions.told_never).enqueue(act)
    assert perform_all(loop) == 1 + 5
    (callback,) = Archive.objects.filter(callback_of=work_id)
    assert (callback.kind, callback.attempts, Archive.objects.get(id=work_id).callback) == ("failed", 5, "failed")
    # The work itself has succeeded.
    assert Workpool().retry(work_id) is False
    assert Workpool().retry_callback(work_id) is True
    assert (Archive.objects.get(id=work_id).callback, Archive.objects.get(id=work_id).callback_error) == ("pending", "")
    row = PendingStart.objects.get()
    assert (row.work_id, row.lane) == (callback.id, Lane.CALLBACK)
    assert Workpool().retry_callback(work_id) is False
    assert perform_all(loop) == 5
    assert Archive.objects.get(id=work_id).callback == "failed" and numbers(callback.id) == list(range(1, 11))
    # By its own id, too; and this time it succeeds.
    Archive.objects.filter(id=callback.id).update(func_path=f"{functions.__name__}.told")
    assert Workpool().retry(callback.id) is True
    assert perform_all(loop) == 1
    assert Archive.objects.get(id=work_id).callback == "done"
    assert Workpool().retry_callback(work_id) is False
    assert list(Tally.objects.filter(requeued__gt=0).values_list("lane", "requeued")) == [(Lane.CALLBACK, 1)] * 2
    # What has ended, without what runs again since, is what the archive holds.
    ended = Tally.objects.filter(lane=Lane.CALLBACK).aggregate(n=Sum("succeeded") + Sum("failed") - Sum("requeued"))["n"]
    assert ended == Archive.objects.filter(fn_type="callback").count() == 1


def test_a_batchs_exhausted_callback_is_called_again_by_the_batchs_id(loop: Loop) -> None:
    with Workpool().batch(on_complete=batch_breaks) as batch:
        pass
    assert perform_all(loop) == 5
    assert Workpool().retry_callback(batch.id) is True
    assert perform_all(loop) == 5


def test_each_work_that_runs_again_is_counted_once() -> None:
    ids = [given(finished("failed")) for _ in range(3)]
    assert Workpool().retry_many([*ids[:2], *ids[:2]]) == ids[:2]
    assert Workpool().retry(ids[2])
    assert list(Tally.objects.order_by("id").values_list("pool", "lane", "requeued")) == [(POOL, Lane.WORK, 2), (POOL, Lane.WORK, 1)]


def test_a_key_is_its_own_again_unless_somebody_has_taken_it(loop: Loop) -> None:
    work_id = Workpool().using(unique="k").enqueue(act)
    run_out(loop)
    assert Workpool().retry(work_id)
    assert Workpool().using(unique="k").enqueue(act) == work_id
    run_out(loop)
    other = Workpool().using(unique="k").enqueue(act)
    assert other != work_id
    assert Workpool().retry(work_id)
    assert Workpool().using(unique="k").enqueue(act) == other


def test_nothing_is_left_of_a_retry_that_is_rolled_back(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(10, logger="django_workpool.events")
    work_id = given(finished("failed"))
    before = snapshot()
    with pytest.raises(RuntimeError), transaction.atomic():
        assert Workpool().retry(work_id)
        raise RuntimeError
    assert snapshot() == before and Tally.objects.count() == 0
    assert "requeued" not in caplog.text
    assert Workpool().retry(work_id)
    assert f"event=requeued pool={POOL} works=1 work_id={work_id}" in caplog.text


def test_a_waiting_work_runs_now(loop: Loop) -> None:
    work_id = Workpool().using(delay=timedelta(days=1), priority=7).enqueue(act)
    assert loop.settle() == []
    before = PendingStart.objects.get()
    assert Workpool().run_now(work_id) is True
    row = PendingStart.objects.get()
    assert row.segment <= loop.db.segment() and row.id != before.id
    assert (row.work_id, row.pool, row.lane, row.priority) == (work_id, POOL, Lane.WORK, 7)
    # It is due: nothing more is to be done for it.
    assert Workpool().run_now(str(work_id)) is True
    assert PendingStart.objects.get() == row
    (run,) = loop.settle()
    assert run.work_id == work_id
    assert Workpool().run_now(work_id) is False
    complete(run, SUCCESS)
    assert Workpool().run_now(work_id) is False


def test_a_backoff_ends_by_run_now_and_a_cancelation_does_not(loop: Loop) -> None:
    work_id = Workpool().using(retry=RetryBehavior(initial_backoff=timedelta(hours=1))).enqueue(act)
    (run,) = loop.settle()
    complete(run, FAILED)
    assert loop.settle() == []
    assert Workpool().run_now(work_id) is True
    assert [one.attempts for one in loop.settle()] == [1]
    other = Workpool().using(delay=timedelta(days=1)).enqueue(act)
    assert Workpool().cancel(other)
    assert Workpool().run_now(other) is False
    third = Workpool().using(delay=timedelta(days=1)).enqueue(act)
    Workpool().cancel_all()
    assert Workpool().run_now(third) is False


def test_the_async_twins_do_the_same() -> None:
    pool, ids = Workpool(), [given(finished("failed")) for _ in range(2)]

    async def ask() -> list[Any]:
        told = [await pool.aretry(ids[0]), await pool.aretry_many(ids), await pool.arun_now(ids[1]), await pool.aretry_callback(ids[1])]
        told += [await pool.apause(), await pool.aresume(), await pool.awake(), await pool.acancel_many(ids)]
        # The thread of synchronous code has a connection of its own.
        await sync_to_async(connections.close_all)()
        return told

    assert asyncio.run(ask()) == [True, [ids[1]], True, False, True, True, None, 2]
