"""on_complete: called once for each work whatever its end, and never lost, whatever it does."""

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from django_workpool import Workpool
from django_workpool.models import Archive, Attempt, PendingStart, Work
from django_workpool.types import Lane

from .states import functions
from .states.driver import FAILED, RETURNED, SUCCESS, Loop, complete
from .states.functions import RETRY, calls, effects
from .states.rows import (
    S1,
    S2,
    S3,
    S5,
    S7,
    S12,
    callback_work,
    finished,
    given,
    left_over,
    numbers,
    observe,
    pass_time,
    run_of,
    running,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def loop() -> Loop:
    return Loop()


def fate(work_id: uuid.UUID) -> tuple[str, str]:
    """Return what became of a finished work's callback, and its error."""
    archived = Archive.objects.get(id=work_id)
    return archived.callback, archived.callback_error


def run_callbacks(loop: Loop, rounds: int = 20) -> None:
    """Let the loop start callback work, and run it, until nothing is left or ``rounds`` are over."""
    for _ in range(rounds):
        pass_time(100_000)
        for run in loop.settle():
            loop.perform(run)
        if not left_over():
            return


# Called by the worker, with the end of its work -----------------------------------------------------------------------


def test_it_is_called_in_the_transaction_of_a_success_and_sees_the_work_finished(loop: Loop) -> None:
    pool = Workpool().using(on_complete=functions.told, on_complete_context={"user": 7})
    work_id = pool.enqueue(functions.act)
    (run,) = loop.settle()
    complete(run, SUCCESS)
    assert effects(work_id) == ["success 42 '' {'user': 7} finished success"]
    assert fate(work_id) == ("done", "")
    assert callback_work(work_id) is None
    loop.settle()
    assert left_over() == {}


def test_it_is_called_with_the_error_of_a_final_failure(loop: Loop) -> None:
    work_id = Workpool().using(on_complete=functions.told).enqueue(functions.act)
    (run,) = loop.settle()
    complete(run, FAILED)
    assert effects(work_id) == ["failed None 'it failed' None finished failed"]
    assert fate(work_id) == ("done", "")


@pytest.mark.parametrize("outcome", [FAILED, RETURNED], ids=lambda outcome: outcome.kind)
def test_it_is_not_called_while_the_work_goes_back(loop: Loop, outcome: Any) -> None:
    work_id = given(S2, worker_id=loop.worker.id, func="act_retried", retry=RETRY, callback="told")
    complete(run_of(work_id), outcome)
    assert effects(work_id) == []
    assert callback_work(work_id) is None


def test_a_second_completion_does_not_call_it_again(loop: Loop) -> None:
    work_id = given(S2, worker_id=loop.worker.id, callback="told")
    run = run_of(work_id)
    assert complete(run, SUCCESS) is not None
    assert complete(run, FAILED) is None
    assert len(effects(work_id)) == calls["told", str(work_id)] == 1


def test_a_mutation_calls_it_in_its_own_transaction(loop: Loop) -> None:
    work_id = Workpool().using(on_complete=functions.told).enqueue(functions.mutate, 5)
    (run,) = loop.settle()
    loop.perform(run)
    assert effects(work_id) == ["success 5 '' None finished success"]
    assert observe(work_id) == S3


# Work that the loop ends ------------------------------------------------------------------------------------------------


def lose(loop: Loop) -> None:
    loop.kill()
    loop.iterate()
    loop.add_worker()


@pytest.mark.parametrize(
    ("before", "act", "kind", "error"),
    [
        (S7, Loop.iterate, "canceled", "canceled"),
        (replace(S5, pending_cancelation=1), Loop.iterate, "canceled", "canceled"),
        (replace(S1, canceled=True), Loop.iterate, "canceled", "canceled"),
        (S2, lose, "failed", "worker lost: "),
        (S12, lose, "canceled", "canceled"),
    ],
    ids=["S7", "S6", "canceled and waiting", "S2 worker lost", "S12 worker lost"],
)
def test_work_ended_by_the_loop_has_it_called_as_callback_work(loop: Loop, before: Any, act: Any, kind: str, error: str) -> None:
    """The loop itself never calls it: it becomes work of its own in the transaction of the end."""
    work_id = given(before, worker_id=loop.worker.id, callback="told")
    act(loop)
    assert observe(work_id) == finished(kind)
    assert fate(work_id) == ("pending", "")
    assert effects(work_id) == []
    work = callback_work(work_id)
    assert work is not None and work.fn_type == "callback"
    if work.id not in running(Lane.CALLBACK):
        loop.iterate()
    loop.perform(run_of(work.id))
    (effect,) = effects(work_id)
    assert effect.startswith(f"{kind} None '{error}")
    assert effect.endswith(f"None finished {kind}")
    assert fate(work_id) == ("done", "")
    loop.settle()
    assert left_over() == {}
    assert Archive.objects.get(id=work.id).callback_of == work_id


@pytest.mark.parametrize("func", ["act", "renamed"])
def test_the_callback_of_work_that_ends_among_the_starts_is_started_soon(loop: Loop, settings: Any, func: str) -> None:
    """The iteration has been through the callbacks when it finds that the work is canceled, or known to nobody for too long."""
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "HOLD": timedelta(0)}}
    work_id = given(replace(S1, canceled=func == "act"), func=f"tests.states.functions.{func}", callback="told")
    if func == "renamed":
        loop.iterate()
        pass_time(100)
    (run,) = loop.settle()
    assert Work.objects.get(id=run.work_id).callback_of == work_id


def test_a_canceled_works_callback_has_its_context_and_priority(loop: Loop) -> None:
    pool = Workpool().using(on_complete=functions.told, on_complete_context=["x", 1.5], priority=7, delay=timedelta(hours=1))
    work_id = pool.enqueue(functions.act)
    pool.cancel(work_id)
    (run,) = loop.settle()
    work = Work.objects.get(id=run.work_id)
    assert (work.priority, work.pool, work.callback_of) == (7, "default", work_id)
    loop.perform(run)
    assert effects(work_id) == ["canceled None 'canceled' ['x', 1.5] finished canceled"]


# Callbacks that fail ----------------------------------------------------------------------------------------------------


def test_one_that_raises_leaves_the_work_ended_and_is_called_again_as_callback_work(loop: Loop) -> None:
    work_id = given(S2, worker_id=loop.worker.id, callback="told_at_second")
    completed = complete(run_of(work_id), SUCCESS)
    assert completed is not None and completed.callback_failure is not None
    assert observe(work_id) == S3
    assert effects(work_id) == []
    assert fate(work_id) == ("pending", "the callback fails at first")
    run_callbacks(loop)
    assert effects(work_id) == ["success"]
    assert calls["told_at_second", str(work_id)] == 2
    assert fate(work_id) == ("done", "")
    assert left_over() == {}


def test_callback_work_that_raises_is_retried_after_a_backoff(loop: Loop) -> None:
    work_id = given(S7, callback="told_at_second")
    (run,) = loop.settle()
    loop.perform(run)
    it = loop.iterate()
    assert numbers(run.work_id) == [1]
    assert observe(run.work_id) == replace(S1, attempts=1)
    assert 1.25 <= PendingStart.objects.get(work_id=run.work_id).segment - it.now_ms / 100 < 4.75
    run_callbacks(loop)
    assert effects(work_id) == ["canceled"]
    assert fate(work_id) == ("done", "")


@pytest.mark.parametrize("retention", [timedelta(0), timedelta(days=1), None], ids=str)
def test_an_exhausted_one_stays_in_the_archive_whatever_the_retention(loop: Loop, settings: Any, retention: timedelta | None) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETENTION": retention}}
    work_id = given(S7, callback="told_never")
    run_callbacks(loop)
    assert left_over() == {}
    assert effects(work_id) == []
    assert calls["told_never", str(work_id)] == 5
    kept = Archive.objects.get(callback_of=work_id)
    assert (kept.kind, kept.fn_type, kept.attempts, kept.error) == ("failed", "callback", 5, "the callback fails always")
    assert str(work_id) in kept.arguments
    assert numbers(kept.id) == [1, 2, 3, 4, 5]
    if retention == timedelta(0):
        assert Archive.objects.count() == 1
    else:
        assert fate(work_id) == ("failed", "the callback fails always")


def test_a_dead_worker_returns_callback_work(loop: Loop) -> None:
    work_id = given(S7, callback="told")
    (run,) = loop.settle()
    loop.kill()
    loop.add_worker()
    (again,) = loop.settle()
    assert (again.work_id, again.attempts) == (run.work_id, 0)
    loop.perform(again)
    loop.perform(run)
    assert len(effects(work_id)) == 1


def test_one_whose_function_is_gone_is_kept_as_failed(loop: Loop) -> None:
    work_id = given(S2, worker_id=loop.worker.id, callback="renamed")
    assert complete(run_of(work_id), SUCCESS) is not None
    state, error = fate(work_id)
    assert state == "pending"
    assert "renamed" in error
    assert callback_work(work_id) is not None


@pytest.mark.django_db(transaction=True)
def test_a_dangling_reference_of_one_does_not_undo_the_end_of_the_work(loop: Loop) -> None:
    """The database finds it at the end of the transaction only, where the savepoint no longer protects the work."""
    work_id = given(S2, worker_id=loop.worker.id, callback="told_dangling")
    assert complete(run_of(work_id), SUCCESS) is not None
    assert observe(work_id) == S3
    assert effects(work_id) == []
    assert fate(work_id)[0] == "pending"
    run_callbacks(loop)
    assert (fate(work_id)[0], effects(work_id), left_over()) == ("failed", [], {})
    assert Attempt.objects.filter(work_id=Archive.objects.get(callback_of=work_id).id).count() == 5


@pytest.mark.django_db(transaction=True)
def test_a_dangling_reference_of_a_mutations_callback_does_not_undo_the_mutation(loop: Loop) -> None:
    work_id = given(S2, worker_id=loop.worker.id, func="mutate", callback="told_dangling")
    loop.perform(run_of(work_id))
    assert observe(work_id) == S3
    assert fate(work_id)[0] == "pending"
    assert callback_work(work_id) is not None
