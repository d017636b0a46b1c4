"""The clock, what is enqueued, assertions about it, and the eager mode."""

import dataclasses
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from django_workpool import InvalidWork, RetryBehavior, UnknownPool, UnregisteredFunction, Workpool, aenqueue, call, enqueue, testing
from django_workpool.database import database
from django_workpool.models import Archive, Attempt, PendingStart, RunningWork, Work
from django_workpool.testing import (
    EnqueuedWork,
    RanWork,
    WorkpoolTester,
    WorkpoolTestMixin,
    assert_enqueued,
    assert_not_enqueued,
    capture_work,
    eager,
    enqueued,
    run_work,
    travel,
)

from . import helped
from .helped import noted
from .works.models import Counter

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


# The clock -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [3600, 3600.0, timedelta(hours=1)])
def test_delayed_work_becomes_due(to: Any) -> None:
    work_id = Workpool().using(delay=timedelta(hours=1)).enqueue(helped.mark, "delayed")
    before = timezone.now()
    assert run_work() == []
    with travel(timedelta(minutes=59)):
        assert run_work() == []
    with travel(to):
        (one,) = run_work()
        kept = Archive.objects.get(id=work_id)
    assert one.work_id == work_id
    # The rows tell the pool's time.
    assert timedelta(hours=1) <= kept.finished - before < timedelta(hours=1, minutes=5)
    assert kept.started is not None and kept.created < kept.started <= kept.finished
    assert database("default").ahead_ms == 0


def test_a_moment_is_reached_whatever_its_fraction(settings: Any) -> None:
    for number in range(20):
        at = timezone.now() + DAY + timedelta(milliseconds=7 * number)
        Workpool().using(run_after=at).enqueue(helped.mark, number)
        with travel(at):
            assert len(run_work()) == 1
    settings.USE_TZ = False
    naive = datetime.now() + DAY
    with travel(naive):
        assert abs(database("default").clock_ms() - timezone.make_aware(naive).timestamp() * 1000) < 60_000


def test_moves_add_up_and_end() -> None:
    clock = database("default").clock_ms
    real = clock()
    with travel(60):
        with travel(DAY):
            assert 86_460_000 <= clock() - real < 86_500_000
            enqueue(helped.mark, "there")
            created = Work.objects.get().created
            assert timedelta(days=1) < created - timezone.now() < timedelta(days=1, minutes=2)
        assert 60_000 <= clock() - real < 100_000
        # What was written ahead is due then.
        assert run_work() == []
    assert 0 <= clock() - real < 40_000
    with pytest.raises(ZeroDivisionError), travel(60):
        raise ZeroDivisionError
    assert database("default").ahead_ms == 0


def test_retries_holds_and_statements_follow_the_clock() -> None:
    enqueue(helped.fail_until, 1)
    run_work()
    ended = Attempt.objects.get().ended
    with travel(timedelta(minutes=29)):
        assert run_work() == []
    with travel(timedelta(hours=2)):
        (one,) = run_work()
        assert (one.kind, one.attempts) == ("success", 2)
    assert Attempt.objects.get().ended == ended
    # Nobody knows this function any more: it is held, and fails after the pool's HOLD.
    work_id = enqueue(helped.mark, 1)
    Work.objects.filter(id=work_id).update(func_path="tests.helped.renamed")
    assert run_work() == []
    assert Work.objects.get().held_since is not None
    with travel(timedelta(minutes=11)):
        assert run_work() == []
        assert "no live worker knows" in Archive.objects.get(id=work_id).error


def test_cancel_all_covers_what_was_created_by_then() -> None:
    with travel(DAY):
        later = enqueue(helped.mark, "later")
    now = enqueue(helped.mark, "now")
    Workpool().cancel_all()
    run_work()
    assert (Archive.objects.get().id, Work.objects.get().id) == (now, later)


@pytest.mark.parametrize("to", [-1, "1 h", None, True, float("nan"), float("inf"), timedelta(seconds=-1), datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_bad_time_is_refused(to: Any) -> None:
    with pytest.raises(ValueError, match="travel"), travel(to):
        pass
    assert database("default").ahead_ms == 0


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="naive"), travel(datetime(2100, 1, 1)):
        pass


# What is enqueued ----------------------------------------------------------------------------------------------------


def test_enqueued_reads_the_rows() -> None:
    at = datetime(2027, 5, 1, 12, tzinfo=UTC)
    pool = Workpool("imports").using(
        priority=7, name="label", run_after=at, on_complete=helped.ended, on_complete_context=[1], retry=RetryBehavior()
    )
    first = pool.enqueue(helped.add, (1, 2), second=None)
    second, third = Workpool().enqueue_many(helped.mark, [call("a"), call("b")])
    one, *others = enqueued()
    assert (one.work_id, one.pool, one.function, one.args, one.kwargs) == (first, "imports", "tests.helped.add", [[1, 2]], {"second": None})
    assert (one.priority, one.name, one.due, one.ended) == (7, "label", at, False)
    assert (one.on_complete, one.on_complete_context) == ("tests.helped.ended", [1])
    assert [two.work_id for two in others] == [second, third]
    assert [two.args for two in enqueued(helped.mark)] == [["a"], ["b"]]
    assert [two.args for two in enqueued(pool="imports")] == [[[1, 2]]]
    run_work()
    assert [(two.ended, two.due is None) for two in enqueued()] == [(False, False), (True, True), (True, True)]
    with pytest.raises(UnknownPool):
        enqueued(pool="nowhere")


def test_calls_of_on_complete_are_not_what_was_enqueued() -> None:
    work_id = Workpool().using(on_complete=helped.ended_badly).enqueue(helped.add, 1)
    run_work()
    assert Work.objects.get().callback_of == work_id
    assert [one.work_id for one in enqueued()] == [work_id]
    run_work(retries=True)
    assert Archive.objects.count() == 2
    assert [one.work_id for one in enqueued()] == [work_id]


def test_capture_takes_what_the_block_enqueues() -> None:
    enqueue(helped.mark, "before")
    with capture_work() as captured:
        enqueue(helped.mark, "inside")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            enqueue(helped.mark, "rolled back")
            raise ZeroDivisionError
        Workpool("imports").enqueue(helped.mark, "elsewhere")
        with capture_work("imports") as inner:
            Workpool("imports").enqueue(helped.mark, "inner")
            enqueue(helped.mark, "outer")
    assert [one.args[0] for one in captured] == ["inside", "elsewhere", "inner", "outer"]
    assert [one.args[0] for one in inner] == ["inner"]
    assert noted("ran") == []
    with capture_work(execute=True) as captured:
        enqueue(helped.count_up, "x")
    assert [one.function for one in captured] == ["tests.helped.count_up"]
    assert (Counter.objects.count(), len(noted("ran"))) == (1, 5)
    with pytest.raises(ValueError, match="after a change"), capture_work(execute=True, raises=True):
        enqueue(helped.write_and_fail, "y")


def test_bad_arguments_are_refused_in_a_capture_as_ever() -> None:
    with capture_work() as captured:
        for bad in (datetime.now(), date.today(), DAY, uuid.uuid4(), Decimal(1), {1}, b"x", {1: "a"}, float("nan")):
            with pytest.raises(InvalidWork):
                enqueue(helped.add, bad)
    assert captured == []


def test_assert_enqueued_finds_calls_however_they_were_written() -> None:
    work_id = enqueue(helped.add, 1, second=2)
    Workpool("imports").using(priority=5).enqueue(helped.add, (1, (2,)))
    assert assert_enqueued(helped.add, 1, 2).work_id == work_id
    assert assert_enqueued(helped.add, first=1, second=2).work_id == work_id
    assert assert_enqueued(helped.add, ANY, second=ANY).work_id == work_id
    assert assert_enqueued("tests.helped.add").work_id == work_id
    assert assert_enqueued(helped.add, call(1, 2)).work_id == work_id
    # A default that was left out, tuples that have become lists.
    assert assert_enqueued(helped.add, [1, [2]], 1, pool="imports", priority=5).priority == 5
    assert_enqueued(helped.add, (1, (2,)))
    assert_not_enqueued(helped.add, 1, 3)
    assert_not_enqueued(helped.add, 1, 2, pool="imports")
    assert_not_enqueued(helped.add, priority=1)
    assert_not_enqueued(helped.mark)
    run_work()
    assert assert_enqueued(helped.add, 1, 2).ended
    enqueue(helped.takes_pool, "x", priority=3)
    assert_enqueued(helped.takes_pool, call(pool="x", priority=3))
    assert_not_enqueued(helped.takes_pool, call(pool="y", priority=3))
    enqueue(helped.look)
    assert_enqueued(helped.look, call())
    assert_not_enqueued(helped.takes_pool, call())


def test_a_failed_assertion_lists_what_is_there() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(helped.add, 1, second="two", pool="imports", priority=5)
    assert str(caught.value) == (
        "tests.helped.add(1, second='two') in pool 'imports' with priority 5 was not enqueued. Nothing was enqueued."
    )
    Workpool().using(delay=DAY).enqueue(helped.add, 1, second="two")
    enqueue(helped.mark, "x")
    run_work()
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(helped.add, 2)
    text, head, *lines = str(caught.value).replace("Enqueued:", "\nEnqueued:").splitlines()
    assert (text.strip(), head) == ("tests.helped.add(2) was not enqueued.", "Enqueued:")
    assert lines[0].startswith("  tests.helped.add(1, second='two') in pool 'default', priority 0, due 20")
    assert lines[1:] == ["  tests.helped.mark('x') in pool 'default', priority 0, ended"]
    with pytest.raises(AssertionError, match=r"tests.helped.mark was enqueued. Enqueued:\n  tests.helped.mark\('x'\)"):
        assert_not_enqueued(helped.mark)
    Workpool().enqueue_many(helped.add, [call(number) for number in range(30)])
    with pytest.raises(AssertionError, match="... and 12 more"):
        assert_enqueued(helped.look)
    with pytest.raises(UnregisteredFunction):
        assert_enqueued(noted)


# Eager ---------------------------------------------------------------------------------------------------------------


def test_eager_runs_through_the_rows_before_enqueue_returns() -> None:
    with eager():
        work_id = Workpool().using(on_complete=helped.ended, on_complete_context=(1, 2)).enqueue(helped.add, (1,), second=(2,))
        status = Workpool().status(work_id)
        # Tuples arrive as lists, as they always do.
        assert (status.state, status.result and status.result.value) == ("finished", [1, 2])
        assert noted("ended") == ["[1, 2]:success:[1, 2]:"]
        failed = enqueue(helped.return_a_set)
        assert Archive.objects.get(id=failed).kind == "failed"
        many = Workpool("imports").enqueue_many(helped.mark, [call(1), call(2)])
        assert (noted("ran"), Workpool("imports").status(many[1]).state) == (["1", "2"], "finished")
        assert enqueue("tests.helped.look") and Workpool().enqueue_many(helped.look, []) == []
        for bad in (datetime.now(), {1}, b"x", {1: 2}):
            with pytest.raises(InvalidWork):
                enqueue(helped.add, bad)
    enqueue(helped.mark, 3)
    assert noted("ran") == ["1", "2"]
    assert RunningWork.objects.count() == 0


@pytest.mark.parametrize("value", [(1, [2]), {"a": None}, -0.0, 1e22, 2**70, "\\u0000", "é🎉"])
def test_a_value_takes_the_same_form_in_each_mode(value: Any) -> None:
    first = Workpool().using(on_complete=helped.ended, on_complete_context=value).enqueue(helped.takes_pool, value)
    run_work()
    with eager():
        second = Workpool().using(on_complete=helped.ended, on_complete_context=value).enqueue(helped.takes_pool, value)
    stored = list(Archive.objects.order_by("id").values_list("id", "arguments", "value", "on_complete_context"))
    assert [row[0] for row in stored] == [first, second]
    assert stored[0][1:] == stored[1][1:]
    assert noted("ended")[0] == noted("ended")[1]


def test_eager_errors_are_kept_and_raised_if_asked() -> None:
    with eager():
        work_id = enqueue(helped.write_and_fail, "x")
        assert Archive.objects.get(id=work_id).error == "after a change"
    with eager(raises=True), pytest.raises(ValueError, match="after a change"):
        enqueue(helped.count_and_fail, "y")
    assert Archive.objects.filter(kind="failed").count() == 2
    with eager(retries=True, raises=True):
        enqueue(helped.fail_until, 2)
    assert Archive.objects.latest("finished").attempts == 3
    with eager():
        enqueue(helped.fail_until, 9)
    assert PendingStart.objects.count() == 1


def test_the_innermost_eager_mode_holds() -> None:
    with eager():
        with pytest.raises(ValueError, match="after a change"), eager(raises=True):
            enqueue(helped.count_and_fail, "x")
        with eager(retries=True):
            enqueue(helped.fail_until, 1)
        enqueue(helped.count_and_fail, "y")
    assert noted("attempt") == ["", ""]
    assert enqueued()[-1].ended
    enqueue(helped.add, 1)
    assert not enqueued()[-1].ended


def test_eager_works_enqueue_others_that_run_after_them() -> None:
    Workpool().configure(max_parallelism=1)
    with eager():
        enqueue(helped.order_more, [1, 2])
    assert noted("ran") == ["order", "2", "1"]
    with eager():
        enqueue(helped.hook_and_enqueue, False)
    assert noted("ran")[-1] == "hook"


def test_eager_leaves_what_is_due_later() -> None:
    with eager():
        Workpool().using(delay=DAY).enqueue(helped.mark, "later")
        assert noted("ran") == []
        with travel(2 * DAY):
            enqueue(helped.mark, "now")
    assert noted("ran") == ["later", "now"]


def test_eager_runs_in_the_callers_transaction() -> None:
    with eager(), pytest.raises(ZeroDivisionError), transaction.atomic():
        Counter.objects.create(name="caller")
        enqueue(helped.look)
        enqueue(helped.close_connections, "all")
        assert list(Archive.objects.order_by("id").values_list("value", flat=True)) == ["1", "1"]
        assert connection.in_atomic_block
        raise ZeroDivisionError
    assert (Counter.objects.count(), Archive.objects.count()) == (0, 0)


class EagerOutsideOfTransactions(TransactionTestCase):
    def test_rows_and_effects_are_committed(self) -> None:
        connection.ensure_connection()
        raw = connection.connection
        with eager():
            enqueue(helped.count_up, "x")
        assert (connection.connection, connection.in_atomic_block) == (raw, False)
        assert (Counter.objects.count(), Archive.objects.count()) == (1, 1)

    async def test_coroutines(self) -> None:
        with eager():
            work_id = await aenqueue(helped.aadd, 1)
            assert (await Workpool().astatus(work_id)).state == "finished"


def test_the_tester_undoes_what_it_did() -> None:
    with WorkpoolTester() as tester:
        tester.travel(60)
        tester.eager()
        enqueue(helped.mark, 1)
        assert (noted("ran"), database("default").ahead_ms >= 60_000) == (["1"], True)
    enqueue(helped.mark, 2)
    assert (noted("ran"), database("default").ahead_ms) == (["1"], 0)


def test_the_fixture(workpool: WorkpoolTester) -> None:
    enqueue(helped.mark, 1)
    assert [one.kind for one in workpool.run_work()] == ["success"]
    workpool.assert_enqueued(helped.mark, 1)


def test_the_manual_names_each_helper() -> None:
    manual = (Path(__file__).parents[1] / "README.md").read_text()
    for name in testing.__all__:
        assert f"`{name}" in manual or name in ("WorkFailed", "RanWork", "EnqueuedWork", "WorkpoolTester"), name
    for record in (RanWork, EnqueuedWork):
        for field in dataclasses.fields(record):
            assert f"`{field.name}`" in manual, field.name
    for name in ("run_work", "arun_work", "capture_work", "enqueued", "assert_enqueued", "assert_not_enqueued", "travel", "eager"):
        assert hasattr(WorkpoolTester, name) and hasattr(WorkpoolTestMixin, name)


def test_what_a_pool_does_not_keep_is_told_all_the_same(settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETENTION": timedelta(0)}}
    enqueue(helped.add, 1)
    enqueue(helped.count_and_fail, "x")
    enqueue(helped.return_a_set)
    ran = run_work()
    assert [(one.kind, one.value, one.error) for one in ran[:2]] == [("success", 2, ""), ("failed", None, "after a change")]
    assert (ran[2].kind, bool(ran[2].error)) == ("failed", True)
    assert (Archive.objects.count(), Attempt.objects.count(), enqueued()) == (0, 0, [])
