"""What is started, in which order, and what waits: the limit, priorities, due times, cursors."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db.models import F

from django_workpool import Workpool, call
from django_workpool.loop.memory import BUFFER_EVERY, Depth
from django_workpool.loop.starts import BATCH
from django_workpool.models import Archive, PendingCompletion, PendingStart, RunningWork, Worker
from django_workpool.types import Lane

from .states import functions
from .states.driver import FAILED, RETURNED, SUCCESS, Loop, complete
from .states.functions import RETRY
from .states.rows import S1, S2, S5, S12, finished, given, observe, pass_time, run_of, running, waiting

pytestmark = pytest.mark.django_db


@pytest.fixture
def loop() -> Loop:
    return Loop()


# The limit --------------------------------------------------------------------------------------------------------------


def test_no_more_run_than_the_limit_says_and_an_end_makes_room_for_one(loop: Loop) -> None:
    loop.configure(3)
    ids = Workpool().enqueue_many(functions.act, [call(i) for i in range(5)])
    it = loop.iterate()
    assert running() == set(ids[:3])
    assert (it.saturated, it.again) == (True, False)
    complete(run_of(ids[1]), SUCCESS)
    assert len(running()) == 3
    loop.iterate()
    assert running() == {ids[0], ids[2], ids[3]}
    assert waiting() == [ids[4]]


def test_a_lower_limit_stops_nothing_and_starts_nothing_until_enough_have_ended(loop: Loop) -> None:
    loop.configure(3)
    ids = Workpool().enqueue_many(functions.act, [call(i) for i in range(4)])
    loop.iterate()
    loop.configure(2)
    loop.iterate()
    assert running() == set(ids[:3])
    complete(run_of(ids[0]), SUCCESS)
    loop.iterate()
    assert running() == set(ids[1:3])
    complete(run_of(ids[1]), SUCCESS)
    loop.iterate()
    assert running() == set(ids[2:])


def test_a_paused_pool_starts_nothing_and_goes_on_with_what_runs(loop: Loop) -> None:
    loop.configure(1)
    first, second = Workpool().enqueue_many(functions.act, [call(), call()])
    loop.iterate()
    complete(run_of(first), SUCCESS)
    it = loop.iterate(limit=0)
    assert observe(first) == finished("success")
    assert observe(second) == S1
    assert it.saturated
    loop.iterate()
    assert observe(second) == S2


def test_work_that_waits_for_a_retry_or_was_canceled_while_it_runs_is_counted_by_its_running_row_only(loop: Loop) -> None:
    loop.configure(1)
    retried = given(S5, worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    other = given(S1)
    loop.iterate()
    assert observe(retried) == replace(S1, attempts=1)
    assert running() == {other}


def test_canceled_work_holds_its_slot_until_it_has_ended(loop: Loop) -> None:
    loop.configure(1)
    canceled = given(S12, worker_id=loop.worker.id)
    other = given(S1)
    loop.iterate()
    assert (observe(canceled), observe(other)) == (S12, S1)
    complete(run_of(canceled), SUCCESS)
    loop.iterate()
    assert observe(other) == S2


def test_a_new_leader_counts_what_runs_already(loop: Loop) -> None:
    loop.configure(2)
    ids = Workpool().enqueue_many(functions.act, [call(i) for i in range(4)])
    loop.iterate()
    loop.take_over()
    loop.iterate()
    assert running() == set(ids[:2])


def test_one_iteration_starts_at_most_a_batch(loop: Loop) -> None:
    loop.configure(10_000)
    Worker.objects.update(capacity=10_000)
    Workpool().enqueue_many(functions.act, [call()] * (BATCH + 5))
    assert loop.iterate().again
    assert RunningWork.objects.count() == BATCH
    assert not loop.iterate().again
    assert RunningWork.objects.count() == BATCH + 5


# Order and time ---------------------------------------------------------------------------------------------------------


def test_higher_priorities_start_first_then_what_was_due_first(loop: Loop) -> None:
    loop.configure(1)
    late, early = given(S1, priority=5, due_in=-2), given(S1, priority=5, due_in=-8)
    low, high, default = given(S1, priority=-3, due_in=-90), given(S1, priority=100), given(S1, due_in=-50)
    order = []
    for _ in range(5):
        loop.iterate()
        (work_id,) = running()
        order.append(work_id)
        complete(run_of(work_id), SUCCESS)
    assert order == [high, early, late, default, low]


def test_a_higher_priority_that_is_not_due_does_not_keep_others_waiting(loop: Loop) -> None:
    loop.configure(1)
    given(S1, priority=100, due_in=1000)
    low = given(S1, priority=-100)
    loop.iterate()
    assert running() == {low}


def test_nothing_starts_before_its_segment(loop: Loop) -> None:
    work_id = Workpool().using(delay=timedelta(seconds=60)).enqueue(functions.act)
    due = PendingStart.objects.get(work_id=work_id).segment
    it = loop.iterate()
    assert observe(work_id) == S1
    assert 600 <= due - it.now <= 601
    assert it.next_segment == due
    PendingStart.objects.update(segment=F("segment") - (due - it.now) + 20)
    loop.iterate()
    assert observe(work_id) == S1
    pass_time(20)
    loop.iterate()
    assert observe(work_id) == S2


def test_a_retry_waits_for_its_backoff_with_jitter_and_holds_no_slot(loop: Loop) -> None:
    """The second retry of a first wait of 1 s comes after 2 s, times a factor in [0.5, 1.5)."""
    works = [given(replace(S5, attempts=2), worker_id=loop.worker.id, func="act_retried", retry=RETRY) for _ in range(30)]
    it = loop.iterate()
    assert running() == set()
    waits = [PendingStart.objects.get(work_id=work_id).segment - it.now_ms / 100 for work_id in works]
    assert all(10 <= wait < 31 for wait in waits)
    assert len(set(waits)) > 5
    assert it.next_segment == min(PendingStart.objects.values_list("segment", flat=True))


def test_a_row_that_was_committed_behind_the_cursor_is_started_at_the_next_look_behind_it(loop: Loop) -> None:
    given(S1)
    loop.iterate()
    slow = given(S1, due_in=-6000)
    loop.iterate(Depth.EXACT)
    loop.iterate(Depth.BUFFER)
    assert observe(slow) == S1
    loop.iterate(Depth.BEHIND)
    assert observe(slow) == S2


def test_a_row_that_was_committed_a_little_late_is_in_the_buffer(loop: Loop) -> None:
    given(S1)
    loop.iterate()
    slow = given(S1, due_in=-5)
    loop.iterate(Depth.BUFFER)
    assert observe(slow) == S2


def test_a_priority_in_which_nothing_was_due_before_is_found_by_a_look_at_the_buffer(loop: Loop) -> None:
    given(S1)
    loop.iterate()
    other = given(S1, priority=7)
    loop.iterate(Depth.BUFFER)
    assert observe(other) == S2


def test_a_completion_that_was_committed_behind_another_one_is_in_the_buffer(loop: Loop) -> None:
    """Rows get their ids in one order and are committed in another: here the one with the smaller id comes later."""
    first, second = given(S2, worker_id=loop.worker.id), given(S2, worker_id=loop.worker.id)
    complete(run_of(first), SUCCESS)
    late = PendingCompletion.objects.get()
    PendingCompletion.objects.all().delete()
    complete(run_of(second), SUCCESS)
    loop.iterate()
    late.save(force_insert=True)
    loop.iterate(Depth.BUFFER)
    assert running() == set()


def test_what_an_exact_iteration_has_not_read_is_read_soon_before_the_loop_sleeps(loop: Loop) -> None:
    """Whatever it has found: the row that somebody woke the loop for may be another one, just behind a cursor."""
    loop.iterate()
    deep, exact = loop.iterate(Depth.BUFFER), loop.iterate(Depth.EXACT)
    loop.memory.read_buffer = loop.memory.read_behind = 100.0
    assert loop.memory.next_look(exact.depth) == 100.0 + BUFFER_EVERY
    assert loop.memory.next_look(deep.depth) == float("inf")


def test_rows_that_were_left_for_want_of_room_are_found_by_the_exact_cursor(loop: Loop) -> None:
    loop.configure(2)
    ids = [given(S1, due_in=i - 9) for i in range(6)]
    loop.iterate()
    for first in (0, 2):
        for work_id in ids[first : first + 2]:
            complete(run_of(work_id), SUCCESS)
        loop.iterate(Depth.EXACT)
        assert running() == set(ids[first + 2 : first + 4])


# What a worker is given -------------------------------------------------------------------------------------------------


def test_each_start_makes_a_new_token_and_a_returned_work_keeps_its_number_of_attempts(loop: Loop) -> None:
    work_id = Workpool().using(name="greeting", on_complete=functions.told).enqueue(functions.mutate, 7)
    (first,) = loop.settle()
    assert (first.work_id, first.name, first.fn_type, first.attempts, first.has_callback) == (work_id, "greeting", "mutation", 0, True)
    assert first.arguments == '{"args": [7], "kwargs": {}}' or '"args":[7]' in first.arguments
    complete(first, RETURNED)
    (second,) = loop.settle()
    assert second.attempts == 0
    assert second.token != first.token
    complete(second, FAILED)
    assert Archive.objects.get(id=work_id).attempts == 1
    assert running(Lane.WORK) == {work_id}
