"""What the tallies count: each way in which works end or go back, in the lane in which it happens."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_workpool import RetryBehavior, Workpool, batch, call, tallies
from django_workpool.execution import workers
from django_workpool.loop import fence, recovery, retries, state
from django_workpool.models import Attempt, PendingStart, RunningWork, Tally, Work
from django_workpool.settle import MAX_RETURNS
from django_workpool.testing import run_work
from django_workpool.types import Attempted, Lane, Outcome

from .states import functions
from .states.driver import FAILED, FINAL, NEVER_BEGUN, RETURNED, STOPPED, SUCCESS, Broken, Loop, complete, complete_alone
from .states.rows import POOL, S1, S7, given, left_over, pass_time, run_of
from .tallied import counted, kept
from .works.tasks import batch_ended

pytestmark = pytest.mark.django_db

ONCE = RetryBehavior(max_attempts=2, initial_backoff=timedelta(0))


@pytest.fixture
def loop() -> Loop:
    return Loop()


def started(loop: Loop, function: Any = functions.act, **options: Any) -> uuid.UUID:
    """Return a work that runs."""
    work_id = Workpool().using(**options).enqueue(function)
    again(loop)
    assert RunningWork.objects.filter(work_id=work_id).exists()
    return work_id


def again(loop: Loop) -> None:
    """Let the time of all that waits come."""
    loop.settle()
    pass_time(100_000)
    loop.settle()


def elsewhere(loop: Loop, work_id: uuid.UUID, outcome: Outcome) -> None:
    """Bring an attempt home as another process does."""
    assert complete(run_of(work_id), outcome)


def here(loop: Loop, work_id: uuid.UUID, outcome: Outcome) -> None:
    """Bring it home as the leader's own process does."""
    loop.results = [Attempted(run_of(work_id), outcome, "here")]
    loop.iterate()


Way = Callable[[Loop, uuid.UUID, Outcome], None]
ways = pytest.mark.parametrize("bring", [elsewhere, here])


def works() -> dict[str, int]:
    """Return all that was counted of works."""
    return counted(names=tallies.COUNTS).get((POOL, Lane.WORK), {})


def callbacks() -> dict[str, int]:
    """Return all that was counted of callbacks."""
    return counted(names=tallies.COUNTS).get((POOL, Lane.CALLBACK), {})


def agree() -> None:
    """Nothing is left, and the rows say the same as the tallies."""
    assert left_over() == {}
    assert counted() == kept()


# Attempts that come home --------------------------------------------------------------------------------------------------


@ways
@pytest.mark.parametrize(
    ("outcome", "ends"),
    [
        (SUCCESS, {"succeeded": 1}),
        (FAILED, {"failed": 1, "failed_attempts": 1}),
        # Nobody has canceled it.
        (STOPPED, {"failed": 1, "failed_attempts": 1}),
    ],
)
def test_an_attempt_that_ends_its_work(loop: Loop, bring: Way, outcome: Outcome, ends: dict[str, int]) -> None:
    bring(loop, started(loop), outcome)
    loop.settle()
    assert works() == {"started": 1, **ends}
    agree()


@ways
def test_an_attempt_that_is_followed_by_another_one(loop: Loop, bring: Way) -> None:
    work_id = started(loop, functions.act_retried)
    bring(loop, work_id, FAILED)
    loop.settle()
    assert works() == {"started": 1, "failed_attempts": 1, "retried": 1}
    again(loop)
    bring(loop, work_id, FINAL)
    loop.settle()
    assert works() == {"started": 2, "failed": 1, "failed_attempts": 2, "retried": 1}
    agree()


@ways
def test_a_success_after_a_failure(loop: Loop, bring: Way) -> None:
    work_id = started(loop, retry=ONCE)
    bring(loop, work_id, FAILED)
    again(loop)
    bring(loop, work_id, SUCCESS)
    loop.settle()
    assert works() == {"started": 2, "succeeded": 1, "failed_attempts": 1, "retried": 1}
    agree()


@ways
@pytest.mark.parametrize("outcome", [RETURNED, NEVER_BEGUN])
def test_a_run_that_is_given_back(loop: Loop, bring: Way, outcome: Outcome) -> None:
    work_id = started(loop)
    bring(loop, work_id, outcome)
    loop.settle()
    # It starts again at once.
    assert works() == {"started": 2, "returned": 1}
    bring(loop, work_id, SUCCESS)
    loop.settle()
    assert works() == {"started": 2, "returned": 1, "succeeded": 1}
    agree()


@ways
def test_a_run_that_is_given_back_too_often(loop: Loop, bring: Way) -> None:
    work_id = started(loop, functions.mutate)
    for _ in range(MAX_RETURNS + 1):
        bring(loop, work_id, RETURNED)
        again(loop)
    assert works() == {"started": MAX_RETURNS + 1, "returned": MAX_RETURNS, "failed": 1, "failed_attempts": 1}
    agree()


# Cancelations -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("everything", [False, True])
def test_works_that_are_canceled_before_they_start(loop: Loop, everything: bool) -> None:
    loop.configure(0)
    ids = Workpool().enqueue_many(functions.act, [call()] * 3)
    if everything:
        Workpool().cancel_all()
    else:
        for work_id in ids:
            Workpool().cancel(work_id)
    loop.settle()
    assert works() == {"canceled": 3}
    agree()


@ways
def test_a_run_that_stops_for_its_cancelation(loop: Loop, bring: Way) -> None:
    work_id = started(loop, functions.act_retried)
    Workpool().cancel(work_id)
    loop.iterate()
    bring(loop, work_id, STOPPED)
    loop.settle()
    assert works() == {"started": 1, "canceled": 1, "failed_attempts": 1}
    agree()


@ways
@pytest.mark.parametrize(("outcome", "counts"), [(FAILED, {"failed_attempts": 1}), (RETURNED, {"returned": 1})])
@pytest.mark.parametrize("marked", [False, True])
def test_what_would_go_back_but_was_canceled(loop: Loop, bring: Way, outcome: Outcome, counts: dict[str, int], marked: bool) -> None:
    work_id = started(loop, functions.act_retried)
    Workpool().cancel(work_id)
    if marked:
        loop.iterate()
    bring(loop, work_id, outcome)
    loop.settle()
    assert works() == {"started": 1, "canceled": 1, **counts}
    agree()


def test_a_work_that_is_canceled_while_it_waits_for_its_retry(loop: Loop) -> None:
    work_id = started(loop, functions.act_retried)
    elsewhere(loop, work_id, FAILED)
    loop.settle()
    Workpool().cancel(work_id)
    loop.settle()
    assert works() == {"started": 1, "failed_attempts": 1, "retried": 1, "canceled": 1}
    agree()


def test_a_completion_whose_work_is_locked_is_counted_once_it_is_taken(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(loop, started(loop, functions.act_retried), FAILED)
    before = works()
    with monkeypatch.context() as patched:
        patched.setattr(retries, "lock_works", lambda *_, **__: {})
        loop.iterate()
        assert works() == before
    loop.settle()
    assert works() == {"started": 1, "failed_attempts": 1, "retried": 1}


# Recovery and holds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "counts"),
    [
        (functions.act, {"failed": 1, "failed_attempts": 1}),
        (functions.act_retried, {"failed_attempts": 1, "retried": 1}),
        (functions.mutate, {"returned": 1}),
    ],
)
@pytest.mark.parametrize("canceled", [False, True])
def test_a_run_whose_worker_is_lost(loop: Loop, function: Any, counts: dict[str, int], canceled: bool) -> None:
    work_id = started(loop, function)
    if canceled:
        Workpool().cancel(work_id)
        loop.iterate()
    loop.kill()
    loop.iterate()
    assert works() == {"started": 1, **({"canceled": 1} if canceled else counts)}
    assert counted() == kept()


def test_a_run_whose_worker_has_left(loop: Loop) -> None:
    started(loop, functions.act)
    workers.leave("default", loop.worker.id)
    loop.iterate()
    assert works() == {"started": 1, "returned": 1}


@pytest.mark.parametrize("ended", [False, True])
def test_a_function_that_nobody_knows(loop: Loop, settings: Any, ended: bool) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "HOLD": timedelta(seconds=30)}}
    given(S1, func="tests.states.functions.renamed")
    loop.iterate()
    assert works() == {}
    if ended:
        Work.objects.update(held_since=F("held_since") - timedelta(seconds=31))
        pass_time(1000)
        loop.iterate()
        assert works() == {"failed": 1, "failed_attempts": 1}
        agree()


def test_what_belongs_to_nothing_is_not_counted(loop: Loop) -> None:
    """A start without a work, one of a canceled work, and a running row without a work."""
    PendingStart.objects.create(work_id=uuid.uuid4(), pool=POOL, segment=1)
    work_id = given(S1)
    Work.objects.filter(id=work_id).update(canceled=True)
    run = RunningWork.objects.create(work_id=uuid.uuid4(), pool=POOL, worker_id=loop.worker.id, due=1, started=loop.db.moment(0))
    loop.memory.loaded = float("-inf")
    loop.settle()
    assert not RunningWork.objects.filter(id=run.id).exists()
    assert works() == {"canceled": 1}


def test_held_work_that_is_canceled(loop: Loop) -> None:
    given(S7, func="tests.states.functions.renamed")
    loop.iterate()
    assert works() == {"canceled": 1}
    agree()


# Callbacks ----------------------------------------------------------------------------------------------------------------


def test_callbacks_are_counted_by_themselves(loop: Loop) -> None:
    """In the transaction of their work they are no works; that of a work which the loop ends is, and so is one that has failed."""
    elsewhere(loop, started(loop, on_complete=functions.told), SUCCESS)
    loop.settle()
    assert (works(), callbacks()) == ({"started": 1, "succeeded": 1}, {})
    loop.configure(0)
    Workpool().cancel(Workpool().using(on_complete=functions.told).enqueue(functions.act))
    for run in loop.settle():
        loop.perform(run)
    loop.settle()
    assert (works(), callbacks()) == ({"started": 1, "succeeded": 1, "canceled": 1}, {"started": 1, "succeeded": 1})
    agree()


def test_a_callback_that_fails_always(loop: Loop) -> None:
    complete_alone(run_of(started(loop, on_complete=functions.told_never)), SUCCESS)
    for _ in range(10):
        # What has failed is queued; then its time has come.
        for run in loop.settle():
            loop.perform(run)
        pass_time(100_000)
    assert works() == {"started": 1, "succeeded": 1}
    assert callbacks() == {"started": 5, "failed": 1, "failed_attempts": 5, "retried": 4}
    agree()


def test_a_callback_whose_worker_is_lost(loop: Loop) -> None:
    complete_alone(run_of(started(loop, on_complete=functions.told_never)), SUCCESS)
    loop.settle()
    loop.kill()
    loop.iterate()
    assert callbacks() == {"started": 1, "returned": 1}


def test_the_callback_of_a_batch() -> None:
    with batch(on_complete=batch_ended) as filled:
        filled.enqueue_many(functions.act, [call()] * 2)
    assert len(run_work()) == 3
    assert works() == {"started": 2, "succeeded": 2}
    assert callbacks() == {"started": 1, "succeeded": 1}
    agree()


def test_works_that_a_projects_tests_run_are_counted_like_others() -> None:
    Workpool().enqueue_many(functions.act, [call()] * 3)
    run_work()
    assert works() == {"started": 3, "succeeded": 3}
    agree()


# The rows -----------------------------------------------------------------------------------------------------------------


def test_an_iteration_writes_one_statement_for_all_lanes_and_none_if_nothing_happens(loop: Loop) -> None:
    loop.configure(0)
    Workpool().cancel(Workpool().using(on_complete=functions.told).enqueue(functions.act))
    with CaptureQueriesContext(connection) as captured:
        for run in loop.settle():
            loop.perform(run)
        loop.settle()
    written = [one["sql"] for one in captured if "workpool_tally" in one["sql"]]
    # The cancelation; the start of its callback; the end of that. Both lanes are in one.
    assert len(written) <= Tally.objects.count() == 3
    assert all(one.startswith("INSERT") for one in written)
    before = list(Tally.objects.values())
    with CaptureQueriesContext(connection) as captured:
        for _ in range(3):
            loop.iterate()
    assert not [one["sql"] for one in captured if "workpool_tally" in one["sql"]]
    assert list(Tally.objects.values()) == before


def test_both_lanes_are_one_statement(loop: Loop) -> None:
    complete_alone(run_of(started(loop, on_complete=functions.told_never)), SUCCESS)
    Workpool().enqueue(functions.act)
    before = Tally.objects.count()
    with CaptureQueriesContext(connection) as captured:
        loop.iterate()
    assert len([one["sql"] for one in captured if "workpool_tally" in one["sql"]]) == 1
    assert sorted(Tally.objects.order_by("id").values_list("lane", flat=True)[before:]) == [0, 1]


def test_an_iteration_that_fails_has_counted_nothing(loop: Loop) -> None:
    elsewhere(loop, started(loop), SUCCESS)
    before = list(Tally.objects.values())
    with pytest.raises(Broken):
        loop.iterate(fail=True)
    assert list(Tally.objects.values()) == before
    loop.iterate()
    assert works() == {"started": 1, "succeeded": 1}


@pytest.mark.parametrize(("late", "column"), [(0, 0), (1, 1), (4, 2), (9, 3), (19, 4), (49, 5), (99, 6), (599, 7), (5_999, 8), (6_001, 9)])
def test_starts_are_counted_by_their_lag(loop: Loop, monkeypatch: pytest.MonkeyPatch, late: int, column: int) -> None:
    loop.configure(0)
    Workpool().enqueue_many(functions.act, [call()] * 2)
    segment = loop.db.segment() - late
    PendingStart.objects.update(segment=segment)
    loop.configure(10)

    def check(it: Any, *rest: Any) -> None:
        original(it, *rest)
        it.now_ms = (segment + late) * 100 + 50.0

    original = fence.check
    monkeypatch.setattr(fence, "check", check)
    loop.iterate()
    (row,) = Tally.objects.filter(started__gt=0).values()
    assert row["started"] == 2
    assert {name: row[name] for name in tallies.LAGS if row[name]} == {tallies.LAGS[column]: 2}


def test_the_bounds_belong_to_the_interval_below() -> None:
    assert [tallies.bucket(one) for one in (0, 99, 100, 101, 200, 600_000, 600_001)] == [0, 0, 0, 1, 1, 8, 9]
    assert len(tallies.LAGS) == len(tallies.LAG_BOUNDS_MS) + 1


def test_the_minutes_report_brings_what_the_pool_holds(loop: Loop) -> None:
    given(S1, due_in=1000)
    loop.iterate()
    assert not Tally.objects.exists()
    loop.memory.report_ms = loop.db.clock_ms() - state.REPORT_EVERY_MS
    started(loop)
    loop.memory.report_ms = loop.db.clock_ms() - state.REPORT_EVERY_MS
    given(S1, due_in=1000)
    loop.iterate()
    rows = list(Tally.objects.exclude(waiting=None).order_by("id").values_list("lane", "waiting", "running"))
    assert rows[-1] == (0, 1, 2)
    assert rows[0][0] == 0


def test_a_pool_that_holds_nothing_tells_nothing(loop: Loop) -> None:
    loop.iterate()
    loop.memory.report_ms = loop.db.clock_ms() - state.REPORT_EVERY_MS
    it = loop.iterate()
    assert it.reported
    assert not Tally.objects.exists()


def test_a_work_that_is_lost_while_somebody_ends_it_keeps_its_slot_until_that_is_taken(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locked by its completion when recovery looks, gone right afterwards: its lane is still known when the completion is taken."""
    work_id = started(loop)
    loop.kill()

    def ends_now(*arguments: Any) -> set[uuid.UUID]:
        assert complete(run_of(work_id), SUCCESS)
        return locked(*arguments)

    locked = retries.locked
    with monkeypatch.context() as patched:
        patched.setattr(loop.db, "durable", False)
        patched.setattr(recovery, "lock_works", lambda *_, **__: {})
        patched.setattr(retries, "locked", ends_now)
        loop.iterate()
    assert RunningWork.objects.filter(work_id=work_id).exists()
    loop.settle()
    assert works() == {"started": 1, "succeeded": 1}
    agree()


def test_the_report_is_of_works_only_and_counts_attempts(loop: Loop) -> None:
    elsewhere(loop, started(loop, functions.act_retried), FAILED)
    elsewhere(loop, started(loop), SUCCESS)
    stopped = started(loop)
    Workpool().cancel(stopped)
    loop.iterate()
    elsewhere(loop, stopped, STOPPED)
    loop.settle()
    report = loop.memory.report
    assert (report.completed, report.succeeded, report.failed, report.retries, report.canceled) == (3, 1, 0, 1, 1)
    assert Attempt.objects.count() == works()["failed_attempts"] == 2


def test_a_pool_whose_due_works_have_all_been_placed_does_not_wait_for_room() -> None:
    """What an iteration has chosen is no backlog, though its rows are still there when that is asked."""
    loop = Loop(threads=2)
    for function in (functions.act, functions.act_async):
        Workpool().enqueue_many(function, [call()] * 2)
    assert (loop.iterate().starved, RunningWork.objects.count()) == (False, 4)
    Workpool().enqueue(functions.act)
    assert loop.iterate().starved


def test_works_of_several_priorities_are_begun_by_one_statement(loop: Loop) -> None:
    ids = {number: Workpool().using(priority=number).enqueue(functions.act) for number in (5, -5, 0)}
    with CaptureQueriesContext(connection) as captured:
        it = loop.iterate()
    assert len([one for one in captured if "INSERT" in one["sql"] and "workpool_runningwork" in one["sql"]]) == 1
    assert [run.work_id for run in it.runs[loop.worker.id]] == [ids[5], ids[0], ids[-5]]
    assert sorted(one.token for one in it.started) == [one.token for one in it.started]
