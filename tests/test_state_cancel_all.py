"""cancel_all: one row, worked off in pages, over a crash, beside everything else."""

from dataclasses import replace

import pytest
from django.db.models import F

from django_workpool import Workpool, call
from django_workpool.exceptions import StaleGeneration
from django_workpool.loop.cancelations import PAGE
from django_workpool.models import Archive, PendingCancelation, PendingStart, RunningWork, Work
from django_workpool.types import Lane

from .states import functions
from .states.driver import FAILED, SUCCESS, Broken, Loop, complete
from .states.functions import RETRY
from .states.rows import (
    FINISHED,
    S1,
    S2,
    S10,
    S12,
    callback_work,
    finished,
    given,
    left_over,
    observe,
    pass_time,
    run_of,
    running,
    snapshot,
)

pytestmark = pytest.mark.django_db

WORKS = 200


@pytest.fixture
def loop() -> Loop:
    return Loop()


def enqueue(count: int) -> set[object]:
    return set(Workpool().enqueue_many(functions.act, [call()] * count))


def canceled() -> set[object]:
    return set(Archive.objects.filter(kind="canceled").values_list("id", flat=True))


def test_it_is_one_row_and_ends_all_waiting_works_in_pages(loop: Loop) -> None:
    """No page is larger than it may be, nothing covered is started meanwhile, and the row goes with the last page."""
    ids = enqueue(WORKS)
    Workpool().cancel_all()
    assert PendingCancelation.objects.count() == 1
    done, pages = 0, 0
    while PendingCancelation.objects.exists():
        it = loop.iterate()
        page = len(canceled()) - done
        assert page <= PAGE
        assert it.again or not PendingCancelation.objects.exists()
        assert it.runs == {}
        done, pages = done + page, pages + 1
    assert canceled() == ids
    assert 4 <= pages <= 5
    assert left_over() == {}


def test_a_page_counts_single_cancelations_and_running_works_too(loop: Loop) -> None:
    loop.configure(50)
    marked = enqueue(50)
    loop.iterate()
    single = enqueue(40)
    for work_id in single:
        Workpool().cancel(work_id)
    rest = enqueue(100)
    Workpool().cancel_all()
    done = 0
    while PendingCancelation.objects.exists():
        loop.iterate()
        now = len(canceled()) + Work.objects.filter(canceled=True).count()
        assert now - done <= PAGE
        done = now
    assert canceled() == single | rest
    assert set(Work.objects.filter(canceled=True).values_list("id", flat=True)) == marked


def test_works_created_later_are_not_canceled_and_do_not_wait_for_its_end(loop: Loop) -> None:
    ids = enqueue(WORKS)
    Workpool().cancel_all()
    loop.iterate()
    (later,) = enqueue(1)
    loop.iterate()
    assert PendingCancelation.objects.exists()
    assert running() == {later}
    loop.settle()
    assert canceled() == ids
    assert running() == {later}


def test_running_works_are_marked_and_go_on(loop: Loop) -> None:
    works = list(enqueue(3))
    loop.iterate()
    Workpool().cancel_all()
    (later,) = enqueue(1)
    loop.settle()
    assert [observe(work) for work in works] == [S12] * 3  # type: ignore[arg-type]
    assert Work.objects.get(id=later).canceled is False
    for work, outcome in zip(works, [SUCCESS, FAILED, SUCCESS], strict=True):
        complete(run_of(work), outcome)  # type: ignore[arg-type]
    loop.settle()
    assert sorted(Archive.objects.filter(id__in=works).values_list("kind", flat=True)) == ["failed", "success", "success"]


def test_more_running_works_than_a_page_are_all_marked(loop: Loop) -> None:
    loop.configure(1000)
    loop.threads = 1000
    loop.add_worker()
    ids = enqueue(WORKS)
    loop.iterate()
    waiting = enqueue(10)
    loop.configure(0)
    Workpool().cancel_all()
    loop.settle()
    assert not PendingCancelation.objects.exists()
    assert set(Work.objects.filter(canceled=True).values_list("id", flat=True)) == ids
    assert canceled() == waiting


def test_a_crash_in_the_middle_changes_nothing(loop: Loop) -> None:
    """The new leader begins the pages again; the old one, which does not know it yet, is refused and writes nothing."""
    ids = enqueue(WORKS)
    Workpool().cancel_all()
    loop.iterate()
    loop.iterate()
    assert 0 < len(canceled()) < WORKS
    old = loop.take_over()
    before = snapshot()
    with pytest.raises(StaleGeneration):
        old.iterate()
    assert snapshot() == before
    (later,) = enqueue(1)
    loop.settle()
    assert canceled() == ids
    assert running() == {later}
    assert not PendingCancelation.objects.exists()


def test_an_iteration_that_fails_repeats_its_page(loop: Loop) -> None:
    ids = enqueue(WORKS)
    Workpool().cancel_all()
    loop.iterate()
    before = snapshot()
    with pytest.raises(Broken):
        loop.iterate(fail=True)
    assert snapshot() == before
    loop.settle()
    assert canceled() == ids


def test_two_of_them_and_single_cancelations_are_worked_off_together(loop: Loop) -> None:
    ids = enqueue(5)
    Workpool().cancel_all()
    more = enqueue(5)
    for work_id in sorted(more, key=str)[:2]:
        assert Workpool().cancel(work_id)
    Workpool().cancel_all()
    (later,) = enqueue(1)
    loop.settle()
    assert PendingCancelation.objects.count() == 0
    assert canceled() == ids | more
    assert running() == {later}


def test_a_second_one_does_not_wait_for_something_else_to_happen(loop: Loop) -> None:
    enqueue(1)
    Workpool().cancel_all()
    enqueue(1)
    Workpool().cancel_all()
    while loop.iterate().again:
        pass
    assert left_over() == {}


def test_a_retry_that_comes_back_meanwhile_ends_as_canceled(loop: Loop) -> None:
    """It was running when cancel_all was called, and the loop has not come to mark it yet."""
    enqueue(WORKS)
    work_id = given(S2, worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    Workpool().cancel_all()
    complete(run_of(work_id), FAILED)
    loop.iterate()
    assert observe(work_id) == replace(finished("canceled"), covered=True)


def test_works_that_wait_for_a_retry_or_for_their_time_are_canceled(loop: Loop) -> None:
    waiting = [given(S10), given(S1, due_in=10_000)]
    Workpool().cancel_all()
    loop.iterate()
    assert [observe(work_id) for work_id in waiting] == [finished("canceled")] * 2


def test_callback_work_is_untouched(loop: Loop) -> None:
    """Waiting, running, or waiting for a retry: what tells of the ends goes on."""
    first, second = (Workpool().using(on_complete=functions.told_never).enqueue(functions.act) for _ in range(2))
    for work_id in (first, second):
        Workpool().cancel(work_id)
    run, other = loop.settle()
    assert run.fn_type == "callback"
    loop.perform(other)
    loop.iterate()
    # The retry does not become due while this test goes on.
    PendingStart.objects.filter(work_id=other.work_id).update(segment=F("segment") + 600)
    work = callback_work(of=first)
    assert work is not None
    Workpool().cancel_all()
    assert Workpool().cancel(work.id) is False
    loop.settle()
    assert Work.objects.filter(canceled=True).count() == 0
    assert running(Lane.CALLBACK) == {run.work_id}
    assert PendingStart.objects.filter(lane=Lane.CALLBACK, work_id=other.work_id).exists()
    pass_time(1000)
    loop.iterate()
    assert running(Lane.CALLBACK) == {run.work_id, other.work_id}


def test_it_covers_its_own_pool_only(loop: Loop) -> None:
    enqueue(1)
    Workpool("imports").cancel_all()
    loop.settle()
    assert RunningWork.objects.count() == 1
    assert PendingCancelation.objects.get().pool == "imports"


def test_in_an_empty_pool_its_row_just_goes(loop: Loop) -> None:
    kept = given(FINISHED)
    Workpool().cancel_all()
    loop.iterate()
    assert left_over() == {}
    assert observe(kept) == FINISHED
