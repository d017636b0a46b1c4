"""What must change nothing, and what must be healed: the no-ops of the state machine, status() and cancel() in each state."""

import uuid
from dataclasses import replace

import pytest

from django_workpool import Workpool
from django_workpool.complete import complete_many
from django_workpool.models import Archive, Attempt, PendingCompletion, RunningWork
from django_workpool.types import Attempted, Outcome, Status, WorkState

from .states.driver import FAILED, RETURNED, SUCCESS, Loop, complete, complete_alone
from .states.functions import RETRY
from .states.rows import (
    ABSENT,
    FINISHED,
    S1,
    S2,
    S5,
    S7,
    S8,
    STATES,
    USING,
    CompositeState,
    finished,
    given,
    left_over,
    observe,
    run_of,
    running,
    snapshot,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.mark.parametrize("outcome", [SUCCESS, FAILED, RETURNED], ids=lambda outcome: outcome.kind)
@pytest.mark.parametrize("state", ["S3", "S4", "S5", "S6", "S9"])
def test_complete_is_a_no_op_where_a_completion_waits(loop: Loop, state: str, outcome: Outcome) -> None:
    work_id = given(STATES[state], worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    before = snapshot()
    assert complete(run_of(work_id), outcome) is None
    assert complete_alone(run_of(work_id), outcome) is None
    assert snapshot() == before


@pytest.mark.parametrize("outcome", [SUCCESS, FAILED, RETURNED], ids=lambda outcome: outcome.kind)
@pytest.mark.parametrize("state", ["S2", "S8", "S12"])
def test_complete_with_an_old_token_is_a_no_op(loop: Loop, state: str, outcome: Outcome) -> None:
    """A returned work runs again with the same number of attempts: only the token tells the runs apart."""
    work_id = given(STATES[state], worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    old = run_of(work_id)
    RunningWork.objects.filter(work_id=work_id).update(id=old.token + 1)
    before = snapshot()
    assert complete(old, outcome) is None
    assert complete_alone(old, outcome) is None
    assert snapshot() == before


def test_complete_with_the_token_of_another_work_is_a_no_op(loop: Loop) -> None:
    one, other = (given(S2, worker_id=loop.worker.id) for _ in range(2))
    before = snapshot()
    assert complete(run_of(one)._replace(token=run_of(other).token), SUCCESS) is None
    assert snapshot() == before


@pytest.mark.parametrize("state", ["S1", "S7", "S10"])
def test_complete_of_work_that_does_not_run_is_a_no_op(loop: Loop, state: str) -> None:
    work_id = given(S2, worker_id=loop.worker.id)
    run = run_of(work_id)._replace(work_id=given(STATES[state]))
    before = snapshot()
    assert complete(run, SUCCESS) is None
    assert complete_alone(run, SUCCESS) is None
    assert snapshot() == before


def test_complete_of_absent_work_is_a_no_op(loop: Loop) -> None:
    run = run_of(given(S2, worker_id=loop.worker.id))._replace(work_id=uuid.uuid4(), token=10**6)
    before = snapshot()
    assert complete(run, SUCCESS) is None
    assert complete_alone(run, FAILED) is None
    assert snapshot() == before


def test_completing_twice_in_one_batch_counts_once(loop: Loop) -> None:
    work_id = given(S2, worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    attempted = Attempted(run=run_of(work_id), outcome=FAILED, worker="here")
    assert len(complete_many(USING, [attempted, attempted])) == 1
    assert observe(work_id) == S5
    assert Attempt.objects.filter(work_id=work_id).count() == 1


#: Whether cancel() has anything to ask for.
CANCELS = {name: name in ("S1", "S2", "S5", "S10") for name in STATES}


@pytest.mark.parametrize("state", STATES)
def test_cancel_tells_whether_there_is_anything_to_cancel(loop: Loop, state: str) -> None:
    """It is False, and writes nothing, if the work is gone (S3: it has ended, only its slot is not free yet) or being canceled."""
    work_id = given(STATES[state], worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    before = snapshot()
    assert Workpool().cancel(work_id) is CANCELS[state]
    assert (snapshot() == before) is not CANCELS[state]
    after = snapshot()
    assert Workpool().cancel(work_id) is False
    assert snapshot() == after


@pytest.mark.parametrize("state", ["S1", "S2", "S5", "S10"])
def test_cancel_of_covered_work_is_a_no_op(loop: Loop, state: str) -> None:
    work_id = given(replace(STATES[state], covered=True), worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    before = snapshot()
    assert Workpool().cancel(work_id) is False
    assert snapshot() == before


def test_cancel_of_absent_work_or_of_another_pool_is_a_no_op(loop: Loop) -> None:
    work_id = given(S1)
    before = snapshot()
    assert Workpool().cancel(uuid.uuid4()) is False
    assert Workpool("imports").cancel(work_id) is False
    assert Workpool().cancel("not an id") is False
    assert snapshot() == before


@pytest.mark.parametrize("state", ["S2", "S12", "finished"])
def test_an_iteration_with_nothing_to_do_changes_nothing(loop: Loop, state: str) -> None:
    given(STATES[state], worker_id=loop.worker.id)
    loop.iterate()
    before = snapshot()
    it = loop.iterate()
    assert snapshot() == before
    assert (it.again, it.runs, it.events, it.next_segment) == (False, {}, [], None)


# status() ---------------------------------------------------------------------------------------------------------------

STATUS = {
    "S1": ("pending", 0),
    "S2": ("running", 0),
    "S3": ("finished", 0),
    "S4": ("finished", 0),
    "S5": ("pending", 1),
    "S6": ("pending", 1),
    "S7": ("pending", 0),
    "S8": ("running", 0),
    "S9": ("pending", 1),
    "S10": ("pending", 1),
    "S11": ("finished", 0),
    "S12": ("running", 0),
    "finished": ("finished", 0),
}


@pytest.mark.parametrize("state", STATES)
def test_status_tells_where_the_work_is(loop: Loop, state: str) -> None:
    """Work that will go back is pending before the loop has seen it, and gone work finished, with its result."""
    work_id = given(STATES[state], worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    status = Workpool().status(work_id)
    assert (status.state.value, status.previous_attempts) == STATUS[state]
    assert (status.result.kind.value if status.result else None) == ("success" if status.state is WorkState.FINISHED else None)


def test_status_of_a_work_that_is_returned_after_an_attempt_keeps_the_number_of_attempts(loop: Loop) -> None:
    work_id = given(replace(S5, follow="return"), worker_id=loop.worker.id)
    assert Workpool().status(work_id) == Status(state=WorkState.PENDING, previous_attempts=1)


def test_status_of_absent_work_is_finished_without_a_result(loop: Loop) -> None:
    assert Workpool().status(uuid.uuid4()) == Status(state=WorkState.FINISHED)


@pytest.mark.parametrize("kind", ["success", "failed", "canceled"])
def test_status_of_finished_work_has_the_kind_of_its_end(loop: Loop, kind: str) -> None:
    work_id = given(finished(kind))
    result = Workpool().status(work_id).result
    assert result is not None and result.kind.value == kind


# What must be healed ----------------------------------------------------------------------------------------------------


def test_a_pending_start_without_work_is_dropped(loop: Loop) -> None:
    """It is no error, and the works behind it start in the same iteration."""
    absent = given(replace(ABSENT, pending_start=True))
    behind = given(S1)
    it = loop.iterate()
    assert observe(absent) == ABSENT
    assert observe(behind) == S2
    assert it.report.completed == it.report.canceled == 0


def test_a_pending_start_of_canceled_work_ends_it_as_canceled(loop: Loop) -> None:
    work_id = given(replace(S1, canceled=True))
    it = loop.iterate()
    assert observe(work_id) == finished("canceled")
    assert it.report.canceled == 1
    assert it.runs == {}


def test_a_pending_start_of_running_work_goes_and_the_run_stays(loop: Loop) -> None:
    work_id = given(replace(S2, pending_start=True), worker_id=loop.worker.id)
    run = run_of(work_id)
    it = loop.iterate()
    assert observe(work_id) == S2
    assert it.runs == {}
    assert complete(run, SUCCESS) is not None
    loop.iterate()
    assert observe(work_id) == FINISHED


def test_a_pending_start_of_work_that_ended_is_dropped(loop: Loop) -> None:
    work_id = given(replace(FINISHED, pending_start=True))
    loop.iterate()
    assert observe(work_id) == FINISHED


def test_running_without_work_and_without_a_completion_is_dropped(loop: Loop) -> None:
    """The slot is free again, for the work that waits for it, in the same iteration."""
    loop.configure(1)
    absent = given(replace(ABSENT, running=True), worker_id=loop.worker.id)
    waiting = given(S1)
    loop.iterate()
    assert observe(absent) == ABSENT
    assert running() == {waiting}


@pytest.mark.parametrize("before", [S7, S8], ids=["S7", "S8"])
def test_two_cancelations_of_one_work_are_worked_off_as_one(loop: Loop, before: CompositeState) -> None:
    work_id = given(replace(before, pending_cancelation=2), worker_id=loop.worker.id)
    it = loop.iterate()
    assert observe(work_id) == (finished("canceled") if before is S7 else replace(S2, canceled=True))
    assert it.report.canceled == (before is S7)


def test_cancelations_of_absent_work_go(loop: Loop) -> None:
    given(replace(ABSENT, pending_cancelation=2))
    loop.iterate()
    assert left_over() == {}


@pytest.mark.parametrize("func", ["act_retried", "mutate"])
def test_running_work_of_a_worker_without_a_row_is_recovered(loop: Loop, func: str) -> None:
    work_id = given(S2, worker_id=loop.worker.id + 1000, func=func, retry=RETRY if func == "act_retried" else None)
    loop.iterate(limit=0)
    assert observe(work_id) == (replace(S1, attempts=1) if func == "act_retried" else S1)


def test_a_completion_without_work_and_without_a_running_row_goes(loop: Loop) -> None:
    work_id = given(replace(ABSENT, follow="retry"))
    loop.iterate()
    assert observe(work_id) == ABSENT


def test_a_retry_that_is_queued_already_is_queued_once(loop: Loop) -> None:
    work_id = given(replace(S5, pending_start=True), worker_id=loop.worker.id, func="act_retried", retry=RETRY, due_in=1000)
    loop.iterate()
    assert observe(work_id) == replace(S1, attempts=1)


def test_a_worker_row_that_is_gone_with_its_completions_waiting_frees_the_slots(loop: Loop) -> None:
    ended = given(replace(FINISHED, running=True, follow="end"), worker_id=loop.worker.id + 1000)
    loop.iterate()
    assert observe(ended) == FINISHED
    assert (PendingCompletion.objects.count(), RunningWork.objects.count()) == (0, 0)
    assert Archive.objects.get(id=ended).kind == "success"
