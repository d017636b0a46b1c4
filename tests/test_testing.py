"""``run_work`` inside a test: real rows, real iterations, on the test's own connection and thread."""

import sys
import threading
import uuid
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_workpool import InvalidWork, UnknownPool, Workpool, WorkpoolError, aenqueue, call, enqueue
from django_workpool.database import database
from django_workpool.models import (
    Archive,
    Attempt,
    Globals,
    InternalState,
    Lead,
    PendingCancelation,
    PendingCompletion,
    PendingStart,
    RunningWork,
    RunStatus,
    Work,
    Worker,
)
from django_workpool.testing import EndlessWork, RanWork, WorkFailed, WorkpoolTestMixin, arun_work, run_work, running, travel
from django_workpool.testing.clock import aliases

from . import helped
from .helped import noted
from .works.models import Counter

HOT = (Work, PendingStart, RunningWork, PendingCompletion, PendingCancelation)


def short(ran: list[RanWork]) -> list[tuple[Any, ...]]:
    return [(one.function.rpartition(".")[2], one.kind, one.value, one.error, one.attempts, one.ended) for one in ran]


def hot() -> list[int]:
    return [model._default_manager.count() for model in HOT]


class Common:
    """What holds in a TestCase's transaction and outside of one."""

    def test_it_runs_what_was_enqueued_through_the_real_rows(self) -> None:
        work_id = enqueue(helped.add, 1, second=2)
        assert Workpool().status(work_id).state == "pending"
        (one,) = run_work()
        assert (one.work_id, one.pool, one.function, one.kind) == (work_id, "default", "tests.helped.add", "success")
        assert (one.value, one.error, one.attempts, one.ended, one.is_callback, one.exception) == (3, "", 1, True, False, None)
        kept = Archive.objects.get(id=work_id)
        assert (kept.kind, kept.value, kept.attempts, kept.started is not None) == ("success", "3", 1, True)
        assert hot() == [0] * 5
        assert Worker.objects.count() == 0
        assert Lead.objects.values_list("owner", flat=True).get() is None
        assert run_work() == []

    def test_kinds_callbacks_and_coroutines(self) -> None:
        pool = Workpool().using(on_complete=helped.ended, on_complete_context="x")
        for func, args in ((helped.add, (1,)), (helped.aadd, (2,)), (helped.count_up, ("a",)), (helped.look, ())):
            pool.enqueue(func, *args)
        assert short(run_work()) == [
            ("add", "success", 2, "", 1, True),
            ("aadd", "success", 3, "", 1, True),
            ("count_up", "success", 1, "", 1, True),
            ("look", "success", 1, "", 1, True),
        ]
        assert noted("ended") == ["x:success:2:", "x:success:3:", "x:success:1:", "x:success:1:"]
        assert (noted("aadd"), set(Archive.objects.values_list("callback", flat=True))) == (["2"], {"done"})

    def test_failures_are_kept_and_not_raised(self) -> None:
        ids = [
            Workpool().using(on_complete=helped.ended).enqueue(func, *args)
            for func, args in (
                (helped.write_and_fail, ("action",)),
                (helped.count_and_fail, ("mutation",)),
                (helped.write_in_a_query, ()),
                (helped.afail, ()),
                (helped.return_a_set, ()),
                (helped.exit_quietly, ()),
            )
        ]
        ran = run_work()
        assert [(one.work_id, one.kind, one.ended) for one in ran] == [(work_id, "failed", True) for work_id in ids]
        assert [one.error[:20] for one in ran[:2]] == ["after a change"] * 2
        assert [type(one.exception).__name__ for one in ran][3:] == ["LookupError", "NoneType", "SystemExit"]
        # An action's changes stay, as outside of a test; a mutation's and a query's go.
        assert list(Counter.objects.values_list("name", flat=True)) == ["action"]
        assert Attempt.objects.count() == 6
        assert "write_and_fail" in Attempt.objects.get(work_id=ids[0]).traceback
        assert len(noted("ended")) == 6
        assert hot() == [0] * 5

    def test_the_first_failure_is_raised_if_asked(self) -> None:
        enqueue(helped.write_and_fail, "x")
        second = enqueue(helped.add, 1)
        with pytest.raises(ValueError, match="after a change") as caught:
            run_work(raises=True)
        assert caught.traceback[-1].name == "write_and_fail"
        assert Archive.objects.get().kind == "failed"
        # The other one had its place already, and has not begun.
        assert short(run_work(raises=True)) == [("add", "success", 2, "", 1, True)]
        assert Archive.objects.get(id=second).attempts == 1
        assert (hot(), Worker.objects.count()) == ([0] * 5, 0)
        enqueue(helped.return_a_set)
        with pytest.raises(WorkFailed, match="return_a_set failed: .*set"):
            run_work(raises=True)

    def test_what_is_meant_for_the_test_goes_through(self) -> None:
        work_id = enqueue(helped.interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_work()
        assert Archive.objects.get(id=work_id).kind == "failed"

    def test_retries_wait_for_their_time_or_for_being_asked(self) -> None:
        work_id = enqueue(helped.fail_until, 2)
        (one,) = run_work()
        assert (one.kind, one.error, one.attempts, one.ended) == ("failed", "attempt 1", 1, False)
        assert Work.objects.get().attempts == 1
        assert run_work() == []
        assert short(run_work(retries=True, raises=True)) == [
            ("fail_until", "failed", None, "attempt 2", 2, False),
            ("fail_until", "success", "at last", "", 3, True),
        ]
        assert Archive.objects.get(id=work_id).attempts == 3
        assert list(Attempt.objects.order_by("number").values_list("text", flat=True)) == ["attempt 1", "attempt 2"]

    def test_retries_end_with_the_last_attempt(self) -> None:
        enqueue(helped.fail_until, 5)
        Workpool().using(delay=timedelta(days=300)).enqueue(helped.mark, "later")
        with pytest.raises(ValueError, match="attempt 3"):
            run_work(retries=True, raises=True)
        enqueue(helped.give_up)
        assert short(run_work(retries=True)) == [("give_up", "failed", None, "for good", 1, True)]
        assert sorted(Archive.objects.values_list("kind", "attempts")) == [("failed", 1), ("failed", 3)]
        assert (run_work(retries=True), Work.objects.count()) == ([], 1)

    def test_a_callback_that_fails_becomes_work_with_retries(self) -> None:
        Workpool().using(on_complete=helped.ended_badly).enqueue(helped.add, 1)
        ran = run_work()
        assert [(one.function.rpartition(".")[2], one.kind, one.is_callback) for one in ran] == [
            ("add", "success", False),
            ("ended_badly", "failed", True),
        ]
        assert Archive.objects.get().callback == "pending"
        assert [one.attempts for one in run_work(retries=True)] == [2, 3, 4, 5]
        assert Archive.objects.filter(callback_of=None).get().callback == "failed"
        with pytest.raises(RuntimeError, match="the callback fails"):
            Workpool().using(on_complete=helped.ended_badly).enqueue(helped.add, 1)
            run_work(raises=True)

    def test_canceled_work_does_not_run_but_its_callback_does(self) -> None:
        pool = Workpool().using(on_complete=helped.ended, on_complete_context="c")
        work_id = pool.enqueue(helped.mark, 1)
        assert pool.cancel(work_id)
        (one,) = run_work()
        assert (one.function, one.is_callback) == ("tests.helped.ended", True)
        assert noted("ended") == ["c:canceled:None:canceled"]
        pool.enqueue_many(helped.mark, [call(number) for number in range(150)])
        pool.cancel_all()
        assert len(run_work()) == 150
        assert (noted("ran"), hot()) == ([], [0] * 5)
        enqueue(helped.fail_until, 5)
        run_work()
        Workpool().cancel_all()
        assert run_work(retries=True) == []
        assert Archive.objects.filter(kind="canceled").count() == 152

    def test_priorities_limits_and_pools(self) -> None:
        Workpool().configure(max_parallelism=1)
        enqueue(helped.order_more, [1, 5, -3])
        Workpool("imports").using(priority=9).enqueue(helped.mark, "other pool")
        run_work("default")
        assert noted("ran") == ["order", "5", "1", "-3"]
        run_work(["imports"])
        assert noted("ran")[-1] == "other pool"
        Workpool().configure(max_parallelism=0)
        enqueue(helped.mark, "paused")
        assert run_work(retries=True) == []
        assert Work.objects.count() == 1

    def test_a_paused_pool_is_not_waited_for(self) -> None:
        enqueue(helped.fail_until, 5)
        run_work()
        Workpool().configure(max_parallelism=0)
        assert run_work(retries=True) == []
        assert Work.objects.get().attempts == 1

    def test_functions_are_known_as_soon_as_their_modules_are_imported(self) -> None:
        def forget() -> None:
            sys.modules.pop("tests.helped_late", None)

        self.addCleanup(forget)  # type: ignore[attr-defined]
        forget()
        enqueue(helped.order_late)
        assert [one.value for one in run_work()] == [None, "enqueued by a work"]
        enqueue("tests.helped_late.late", "enqueued before")
        forget()
        assert [one.value for one in run_work()] == ["enqueued before"]

    def test_it_goes_on_only_so_long(self) -> None:
        enqueue(helped.go_on_for_ever, 0)
        with pytest.raises(EndlessWork, match=r"50 attempts have run, of tests.helped.go_on_for_ever \(50 times\), and still due is"):
            run_work(most=50)
        assert Archive.objects.count() == 50
        Workpool().enqueue_many(helped.mark, [call(1)] * 50)
        Work.objects.filter(func_path__endswith="ever").delete()
        assert len(run_work(most=50)) == 50

    def test_retries_go_on_only_so_long(self) -> None:
        enqueue(helped.fail_until, 9)
        with pytest.raises(EndlessWork, match=r"2 attempts have run, of tests.helped.fail_until \(2 times\), and a retry still waits"):
            run_work(retries=True, most=2)
        assert (len(noted("attempt")), Work.objects.get().attempts, RunningWork.objects.count()) == (2, 2, 0)
        with travel(timedelta(days=3)):
            assert [(one.attempts, one.ended) for one in run_work(retries=True, most=1)] == [(3, True)]

    def test_bad_calls_are_refused(self) -> None:
        with pytest.raises(UnknownPool):
            run_work("nowhere")
        with pytest.raises(ValueError, match="most"):
            run_work(most=0)
        enqueue(helped.run_inside)
        with pytest.raises(WorkpoolError, match="called by a work"):
            run_work(raises=True)

    def test_another_leader_is_not_disturbed(self) -> None:
        run_work()
        owner, later = uuid.uuid4(), database("default").clock_ms() + 60_000
        Lead.objects.update(owner=owner, expires_ms=int(later))
        if not database("default").leases:
            return
        with pytest.raises(WorkpoolError, match="another process"):
            run_work()
        assert Lead.objects.get().owner == owner
        Lead.objects.update(owner=None, expires_ms=None)

    def test_missing_rows_of_pools_are_made(self) -> None:
        for model in (Globals, InternalState, RunStatus, Lead):
            model._default_manager.all().delete()
        enqueue(helped.add, 1)
        assert short(run_work()) == [("add", "success", 2, "", 1, True)]
        assert InternalState.objects.filter(pool="default").exists()

    def test_hooks_of_functions_are_called_at_their_commit(self) -> None:
        enqueue(helped.hook_and_enqueue, False)
        enqueue(helped.hook_and_enqueue, True)
        assert len(run_work()) == 3
        assert noted("ran") == ["hook"]

    def test_hooks_may_register_hooks_and_close_connections(self) -> None:
        enqueue(helped.hook_in_a_hook)
        assert short(run_work()) == [("hook_in_a_hook", "success", None, "", 1, True)]
        assert noted("hook") == ["outer", "inner", "next"]
        assert hot() == [0] * 5

    def test_a_coroutine_that_waits_for_ever_ends_at_its_timeout(self) -> None:
        Workpool().using(timeout=timedelta(milliseconds=50)).enqueue(helped.wait_for_ever)
        assert short(run_work()) == [("wait_for_ever", "failed", None, "it took longer than 0.05 s", 1, True)]

    def test_a_retry_that_becomes_due_at_the_very_end_is_waited_for(self) -> None:
        """On a loaded machine its time comes after the last look at what is due, and before that at what waits."""
        run_due, ahead = running._run_due, {alias: database(alias).ahead_ms for alias in aliases()}

        def late(stages: Any, *args: Any, **kwargs: Any) -> None:
            run_due(stages, *args, **kwargs)
            for stage in stages:
                stage.db.ahead_ms += 3 * 86_400_000

        enqueue(helped.fail_until, 2)
        try:
            with mock.patch.object(running, "_run_due", late):
                ran = run_work(retries=True)
        finally:
            for alias, ms in ahead.items():
                database(alias).ahead_ms = ms
        assert [(one.kind, one.attempts, one.ended) for one in ran] == [("failed", 1, False), ("failed", 2, False), ("success", 3, True)]
        assert hot() == [0] * 5

    def test_connections_stay_usable_whatever_functions_do(self) -> None:
        connection.ensure_connection()
        raw = connection.connection
        with transaction.atomic():
            Counter.objects.create(name="uncommitted")
            for how in ("one", "all"):
                enqueue(helped.close_connections, how)
            enqueue(helped.swallow_in_a_mutation, "m")
            enqueue(helped.leave_a_block_open)
            enqueue(helped.break_the_database, "b")
            enqueue(helped.leave_a_block_open_in_an_action)
            ran = run_work()
            assert connection.connection is raw
            assert Counter.objects.filter(name="uncommitted").exists()
        assert [one.kind for one in ran] == ["success", "success", "failed", "failed", "failed", "success"]
        assert not Counter.objects.filter(name="open").exists()
        assert hot() == [0] * 5

    def test_an_inner_transaction_takes_it_all_back(self) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            enqueue(helped.count_up, "inner")
            run_work()
            assert (Counter.objects.count(), Archive.objects.count()) == (1, 1)
            raise ZeroDivisionError
        assert (Counter.objects.count(), Archive.objects.count(), run_work()) == (0, 0, [])


class InATestCase(Common, TestCase):
    def test_nothing_is_committed_and_no_thread_is_started(self) -> None:
        raw, threads = connection.connection, threading.active_count()
        enqueue(helped.count_up, "x")
        with self.captureOnCommitCallbacks() as callbacks:
            run_work()
        assert (connection.connection, threading.active_count()) == (raw, threads)
        assert connection.in_atomic_block
        assert Counter.objects.count() == 1
        assert callbacks == []

    def test_hooks_after_the_commit_do_no_harm(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            enqueue(helped.add, 1)
            enqueue(helped.add, 2)
        assert len(callbacks) == 1
        assert len(run_work()) == 2

    def test_enqueue_takes_the_same_few_queries_as_ever(self) -> None:
        enqueue(helped.add, 0)
        with CaptureQueriesContext(connection) as first:
            enqueue(helped.add, 1)
        run_work()
        Workpool().enqueue_many(helped.add, [call(number) for number in range(50)])
        with self.assertNumQueries(len(first)):
            enqueue(helped.add, 2)
        assert len(first) <= 2

    async def test_an_async_test(self) -> None:
        await aenqueue(helped.aadd, 1)
        await Workpool().using(delay=timedelta(hours=1)).aenqueue(helped.add, 1)
        self.enterContext(travel(3600))
        assert short(await arun_work()) == [("aadd", "success", 2, "", 1, True), ("add", "success", 2, "", 1, True)]

    def test_what_the_last_test_did_is_gone(self) -> None:
        assert [model._default_manager.count() for model in (*HOT, Archive, Attempt, Worker)] == [0] * 8

    def test_an_action_that_swallows_an_error_of_the_database(self) -> None:
        enqueue(helped.swallow, "s")
        assert short(run_work()) == [("swallow", "success", "swallowed", "", 1, True)]
        # Outside of a test's transaction the first of the two rows would stay.
        assert Counter.objects.count() == 0

    def test_bad_arguments_are_refused_as_ever(self) -> None:
        with pytest.raises(InvalidWork):
            enqueue(helped.add, {1})
        assert hot() == [0] * 5


class InATransactionTestCase(Common, TransactionTestCase):
    def test_it_commits_as_outside_of_tests(self) -> None:
        enqueue(helped.count_up, "x")
        run_work()
        assert not connection.in_atomic_block
        assert Counter.objects.count() == 1

    def test_an_action_that_leaves_a_block_open_does_not_spoil_the_next_test(self) -> None:
        enqueue(helped.leave_a_block_open_in_an_action)
        enqueue(helped.leave_a_block_open)
        enqueue(helped.count_up, "next")
        assert [one.kind for one in run_work()] == ["success", "failed", "success"]
        assert (connection.in_atomic_block, connection.savepoint_ids) == (False, [])
        assert list(Counter.objects.values_list("name", flat=True)) == ["next"]

    def test_the_tables_are_flushed_and_the_pools_rows_are_there_again(self) -> None:
        assert [model._default_manager.count() for model in (*HOT, Archive, Attempt, Worker)] == [0] * 8
        assert set(InternalState.objects.values_list("pool", flat=True)) == {"default", "imports"}
        assert Lead.objects.count() == 1


class WithTheMixin(WorkpoolTestMixin, TestCase):
    def test_the_helpers_are_methods(self) -> None:
        self.travel(60)
        with self.capture_work() as captured:
            enqueue(helped.add, 1)
        assert [one.args for one in captured] == [[1]]
        self.assert_enqueued(helped.add, 1)
        self.assert_not_enqueued(helped.mark)
        assert len(self.run_work()) == 1
        self.eager()
        enqueue(helped.mark, 2)
        assert (noted("ran"), len(self.enqueued())) == (["2"], 2)

    def test_time_and_mode_end_with_the_test(self) -> None:
        assert database("default").ahead_ms == 0
        enqueue(helped.mark, 1)
        assert noted("ran") == []


class EagerWithTheMixin(WorkpoolTestMixin, TestCase):
    workpool_eager = True

    def test_enqueue_runs(self) -> None:
        enqueue(helped.mark, 1)
        assert noted("ran") == ["1"]
