"""Who is given the works: full, dead and leaving workers, functions that no worker knows, and the room for callbacks."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from django_workpool import Workpool, call
from django_workpool.execution import workers
from django_workpool.loop import holds, starts
from django_workpool.loop.context import PAUSED_CALLBACKS
from django_workpool.loop.fleet import CALLBACK_CAPACITY
from django_workpool.loop.memory import Depth
from django_workpool.models import Archive, Attempt, PendingStart, RunningWork, Work, Worker
from django_workpool.runner.intake import Intake
from django_workpool.runner.process import Options
from django_workpool.types import Lane, Run

from .states import functions
from .states.driver import SUCCESS, Loop, complete
from .states.functions import RETRY
from .states.rows import POOL, S1, S2, S7, USING, finished, given, observe, pass_time, run_of, running

pytestmark = pytest.mark.django_db


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_row_passed_over_because_its_workers_are_full_is_not_lost_behind_the_cursor(loop: Loop) -> None:
    """The coroutine's row comes first and cannot be placed; those behind it are, and it still is when there is room."""
    Worker.objects.update(capacity=10, async_capacity=1)
    taken, blocked = given(S1, func="act_async", due_in=-9), given(S1, func="act_async", due_in=-8)
    behind = given(S1, due_in=-7)
    loop.iterate()
    assert running() == {taken, behind}
    complete(run_of(taken), SUCCESS)
    loop.iterate(Depth.EXACT)
    assert running() == {behind, blocked}


def test_works_go_to_the_least_loaded_worker_and_no_worker_gets_more_than_it_has_room_for() -> None:
    loop = Loop(threads=2)
    other = loop.add_worker()
    Workpool().enqueue_many(functions.act, [call(i) for i in range(6)])
    it = loop.iterate()
    assert {worker: len(runs) for worker, runs in it.runs.items()} == {loop.worker.id: 2, other.id: 2}
    assert not it.again


def test_the_room_of_what_has_ended_is_given_out_in_the_same_iteration() -> None:
    """Also where the workers are what is full, and not the pool."""
    loop = Loop(threads=2)
    ids = Workpool().enqueue_many(functions.act, [call(i) for i in range(4)])
    loop.iterate()
    for work_id in ids[:2]:
        complete(run_of(work_id), SUCCESS)
    loop.iterate()
    assert running() == set(ids[2:])


def test_a_new_leader_knows_how_full_each_worker_is_in_its_first_iteration() -> None:
    loop = Loop(threads=2)
    Workpool().enqueue_many(functions.act, [call(i) for i in range(6)])
    loop.iterate()
    loop.take_over()
    loop.iterate()
    assert RunningWork.objects.count() == 2


def test_nothing_is_given_to_a_worker_that_is_dead_leaves_or_serves_other_pools(loop: Loop) -> None:
    loop.kill()
    leaving, elsewhere = loop.add_worker(), loop.add_worker()
    Worker.objects.filter(id=leaving.id).update(accepting=False)
    Worker.objects.filter(id=elsewhere.id).update(pools='["imports"]')
    work_id = given(S1)
    it = loop.iterate()
    assert observe(work_id) == S1
    assert it.saturated
    Worker.objects.filter(id=elsewhere.id).update(pools=f'["imports", "{POOL}"]')
    assert set(loop.iterate().runs) == {elsewhere.id}


def test_what_was_placed_with_a_worker_that_had_just_left_was_never_begun(loop: Loop) -> None:
    """The leader did not know yet: no attempt is counted, though the action may not be retried, and another worker gets it."""
    work_id = given(S1)
    loop.iterate()
    workers.leave(USING, loop.worker.id)
    other = loop.add_worker()
    it = loop.iterate()
    assert [(event, fields["status"]) for event, _, fields in it.events if event == "recovered"] == [("recovered", "returned")]
    loop.settle()
    assert RunningWork.objects.get(work_id=work_id).worker_id == other.id
    assert Work.objects.values_list("attempts", "returns").get(id=work_id) == (0, 0)
    assert not Attempt.objects.exists()


def test_a_worker_that_ends_without_having_written_all_has_not_left(loop: Loop) -> None:
    """Its death will be observed: what it had begun counts as lost."""
    intake = Intake(USING, "worker", Options(threads=1, pools=None, drain=False, grace=0), lambda: True)
    given(S1)
    loop.iterate()
    begun = workers.assigned(USING, loop.worker.id)
    intake.refuse()
    intake.submit(begun)
    intake.closed = True
    assert not intake.has_written(workers.assigned(USING, loop.worker.id))
    other = Intake(USING, "worker", Options(threads=1, pools=None, drain=False, grace=0), lambda: True)
    other.closed = True
    assert other.has_written(workers.assigned(USING, loop.worker.id))
    # And from now on it takes nothing.
    other.submit(begun)
    assert not other.assignments.has_any(begun)


# Functions that no worker knows -----------------------------------------------------------------------------------------


def test_work_that_no_live_worker_knows_is_put_back_uncounted_and_does_not_block_the_queue(loop: Loop) -> None:
    unknown, known = given(S1, func="tests.states.functions.renamed", priority=9), given(S1)
    it = loop.iterate()
    assert running() == {known}
    assert observe(unknown) == S1
    assert Work.objects.get(id=unknown).held_since is not None
    row = PendingStart.objects.get(work_id=unknown)
    assert it.now < row.segment <= it.now + 10
    assert [event for event, *_ in it.events] == ["held"]
    pass_time(10)
    it = loop.iterate()
    assert it.now + 10 < PendingStart.objects.get(work_id=unknown).segment <= it.now + 50


def test_many_works_that_nobody_knows_leave_looks_to_those_behind_them(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an iteration looks at is bounded; a queue of them that are due again and again must not take all of it."""
    monkeypatch.setattr(starts, "LOOK_MAX", 400)
    for priority in (9, 8):
        Workpool().using(priority=priority).enqueue_many(functions.act, [call()] * 300)
    Work.objects.update(func_path="tests.states.functions.renamed")
    known = given(S1)
    assert loop.iterate().again
    assert running() == {known}


def test_many_works_that_nobody_knows_are_put_back_for_longer(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the loop would have no time but for them: up to half a minute, while a few wait for five seconds."""
    monkeypatch.setattr(holds, "CROWD", 4)
    works = [given(S1, func="tests.states.functions.renamed") for _ in range(6)]
    loop.iterate()
    pass_time(10)
    it = loop.iterate()
    assert set(PendingStart.objects.filter(work_id__in=works).values_list("segment", flat=True)) == {it.now + 2 * holds.HOLD}
    pass_time(200)
    works += [given(S1, func="tests.states.functions.renamed") for _ in range(40)]
    loop.iterate()
    pass_time(200)
    it = loop.iterate()
    assert max(PendingStart.objects.filter(work_id__in=works).values_list("segment", flat=True)) == it.now + 6 * holds.HOLD


def test_held_work_fails_after_the_hold_naming_the_path(loop: Loop, settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "HOLD": timedelta(seconds=30)}}
    work_id = given(S1, func="tests.states.functions.renamed", retry=RETRY)
    loop.iterate()
    Work.objects.update(held_since=F("held_since") - timedelta(seconds=29))
    pass_time(1000)
    loop.iterate()
    assert observe(work_id) == S1
    Work.objects.update(held_since=F("held_since") - timedelta(seconds=2))
    pass_time(1000)
    it = loop.iterate()
    assert observe(work_id) == finished("failed")
    assert "tests.states.functions.renamed" in Archive.objects.get(id=work_id).error
    assert Attempt.objects.get(work_id=work_id).number == 1
    assert (it.report.completed, it.report.failed) == (1, 1)


def test_held_work_starts_when_a_worker_that_knows_it_comes(loop: Loop) -> None:
    loop.kill()
    knowing = loop.worker
    Worker.objects.filter(id=knowing.id).update(function_set="")
    loop.fleet.dead.clear()
    work_id = given(S1)
    loop.iterate()
    assert Work.objects.get(id=work_id).held_since is not None
    newcomer = loop.add_worker()
    pass_time(10)
    assert set(loop.iterate().runs) == {newcomer.id}
    assert observe(work_id) == S2
    assert Work.objects.get(id=work_id).held_since is None


def test_without_any_worker_nothing_is_held(loop: Loop) -> None:
    Worker.objects.all().delete()
    work_id = given(S1)
    it = loop.iterate()
    assert observe(work_id) == S1
    assert Work.objects.get(id=work_id).held_since is None
    assert it.saturated


def test_held_work_can_be_canceled(loop: Loop) -> None:
    work_id = given(S7, func="tests.states.functions.renamed")
    loop.iterate()
    assert observe(work_id) == finished("canceled")


# Callback work has a limit and room of its own ----------------------------------------------------------------------------


def ended_by_the_loop(count: int) -> None:
    pool = Workpool().using(on_complete=functions.told)
    for work_id in pool.enqueue_many(functions.act, [call()] * count):
        pool.cancel(work_id)


@pytest.mark.parametrize(("limit", "most"), [(0, PAUSED_CALLBACKS), (3, 3), (11, 11)])
def test_they_have_a_limit_of_their_own_that_a_pause_does_not_lower_to_nothing(loop: Loop, limit: int, most: int) -> None:
    for _ in range(3):
        loop.add_worker()
    loop.configure(limit)
    ended_by_the_loop(14)
    runs: list[Run] = loop.settle()
    assert len(runs) == len(running(Lane.CALLBACK)) == most
    loop.perform(runs[0])
    assert len(loop.settle()) == 1
    assert len(running(Lane.CALLBACK)) == most


def test_they_take_no_slot_of_the_pools_works_and_wait_for_none(loop: Loop) -> None:
    loop.configure(1)
    busy, other = given(S1, due_in=-5), given(S1)
    ended_by_the_loop(1)
    runs = loop.settle()
    assert running(Lane.WORK) == {busy}
    assert len(running(Lane.CALLBACK)) == 1
    complete(run_of(busy), SUCCESS)
    loop.settle()
    assert running(Lane.WORK) == {other}
    assert len(runs) == 2


def test_one_worker_takes_a_few_at_once_however_full_it_is() -> None:
    loop = Loop(threads=1)
    given(S1)
    ended_by_the_loop(CALLBACK_CAPACITY + 3)
    loop.settle()
    assert len(running(Lane.CALLBACK)) == CALLBACK_CAPACITY
    assert len(running(Lane.WORK)) == 1
