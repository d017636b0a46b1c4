"""The leader's own part: deposed, failing and new leaders, and what is counted and reported."""

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from django_workpool import Workpool, call
from django_workpool.exceptions import StaleGeneration
from django_workpool.execution.assignments import Assignments
from django_workpool.execution.writer import Writer
from django_workpool.loop import completions
from django_workpool.models import InternalState
from django_workpool.runner.turns import Turns
from django_workpool.types import Attempted, Outcome

from .states import functions
from .states.driver import FAILED, FINAL, SUCCESS, Broken, Loop, complete
from .states.functions import RETRY
from .states.rows import (
    FINISHED,
    S1,
    S2,
    S3,
    S5,
    S10,
    S12,
    USING,
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


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_deposed_leader_writes_nothing(loop: Loop) -> None:
    """Whatever it would do: start, retire, cancel, recover."""
    given(S1)
    given(S3, worker_id=loop.worker.id)
    given(S5, worker_id=loop.worker.id)
    given(replace(S12, pending_cancelation=1), worker_id=loop.worker.id)
    old = loop.take_over()
    before, state = snapshot(), list(InternalState.objects.values())
    for _ in range(2):
        with pytest.raises(StaleGeneration):
            old.iterate()
    assert (snapshot(), list(InternalState.objects.values())) == (before, state)


def test_the_generation_alone_or_the_owner_alone_is_not_enough(loop: Loop) -> None:
    given(S1)
    before = snapshot()
    right = loop.owner
    loop.owner = uuid.uuid4()
    with pytest.raises(StaleGeneration):
        loop.iterate()
    loop.owner = right
    loop.memory.generation += 1
    with pytest.raises(StaleGeneration):
        loop.iterate()
    loop.memory.generation -= 2
    with pytest.raises(StaleGeneration):
        loop.iterate()
    assert snapshot() == before


def test_an_iteration_that_fails_has_changed_nothing_and_is_repeated(loop: Loop) -> None:
    loop.configure(2)
    given(S3, worker_id=loop.worker.id)
    works = Workpool().enqueue_many(functions.act, [call(i) for i in range(3)])
    loop.iterate()
    complete(run_of(works[0]), SUCCESS)
    before = snapshot()
    for _ in range(2):
        with pytest.raises(Broken):
            loop.iterate(fail=True)
        assert snapshot() == before
    it = loop.iterate()
    assert running() == set(works[1:])
    assert it.report.succeeded == 1


def test_a_new_leader_finds_everything_in_the_rows(loop: Loop) -> None:
    """One work in each state; the old memory is gone."""
    retried = {"worker_id": loop.worker.id, "func": "act_retried", "retry": RETRY}
    works = [given(state, **retried) for state in (S1, S2, S3, S5, S10, S12)]  # type: ignore[arg-type]
    loop.take_over()
    loop.iterate()
    assert [observe(work_id) for work_id in works] == [S2, S2, FINISHED, S10, replace(S2, attempts=1), S12]


def test_counters_survive_the_leader_and_are_reported_once_a_minute(loop: Loop) -> None:
    works = [given(S2, worker_id=loop.worker.id, func="act_retried", retry=RETRY) for _ in range(3)]
    canceled = given(replace(S1, pending_cancelation=1), due_in=1000)
    for work_id, outcome in zip(works, (SUCCESS, FAILED, FINAL), strict=True):
        complete(run_of(work_id), outcome)
    loop.memory.saved = float("-inf")
    loop.iterate()
    loop.take_over()
    it = loop.iterate()
    assert observe(canceled) == finished("canceled")
    assert loop.memory.report_ms is not None
    assert [event for event, *_ in it.events if event == "report"] == []
    loop.memory.report_ms -= timedelta(minutes=1) / timedelta(milliseconds=1)
    it = loop.iterate()
    ((_, level, report),) = [one for one in it.events if one[0] == "report"]
    assert level == "REPORT"
    counts = {"completed": 3, "succeeded": 1, "failed": 1, "retries": 1, "canceled": 1}
    assert report == {**counts, "running": 0, "backlog": 1, "failureRate": 0.6667, "permanentFailureRate": 0.5}
    it = loop.iterate()
    assert [event for event, *_ in it.events if event == "report"] == []
    assert loop.memory.report.completed == 0
    pass_time(1000)
    loop.iterate()
    complete(run_of(works[1]), SUCCESS)
    loop.iterate()
    assert left_over() == {}


# Results of its own process --------------------------------------------------------------------------------------------


def test_more_results_than_one_iteration_takes_are_not_left_until_something_else_happens(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of coroutines may end at once; whoever brings a result wakes the loop only if none waits already."""
    monkeypatch.setattr(completions, "BATCH", 2)
    runs = [run_of(given(S2, worker_id=loop.worker.id)) for _ in range(3)]
    loop.iterate()
    loop.results = [Attempted(run, SUCCESS, "here") for run in runs[:2]]
    assert loop.iterate().again
    loop.results = [Attempted(runs[2], SUCCESS, "here")]
    assert not loop.iterate().again
    assert left_over() == {}


@pytest.mark.parametrize("outcome", [SUCCESS, FAILED])
def test_works_that_take_long_are_not_taken_for_short_whatever_they_come_to(loop: Loop, outcome: Outcome) -> None:
    for took in (0.0001, 30.0):
        run = run_of(given(S2, worker_id=loop.worker.id))
        loop.memory.loaded = float("-inf")
        loop.iterate(limit=0)
        loop.results = [Attempted(run, SUCCESS if took < 1 else outcome, "here", took)]
        loop.iterate(limit=0)
        assert loop.memory.stays is (took < 1)


def test_works_do_not_come_first_to_a_leading_process_where_others_wait_for_long_ones(loop: Loop) -> None:
    """Short works before and after long ones: else all that follow would wait for these, while other processes are idle."""
    intake: Any = Mock(writer=Writer(USING, lambda *runs: None, lambda: False), assignments=Assignments())
    turns = Turns(USING, loop.owner, loop.fleet, intake)
    loop.fleet.own = loop.worker.id
    other = loop.add_worker()
    loop.memory.learn([0.0001])
    for held_up, workers in ([], {loop.worker.id}), ([20.0, 30.0], {other.id}):
        intake.executors.held_up.return_value = held_up
        Workpool().enqueue_many(functions.act, [call(i) for i in range(4)])
        loop.memory.rewind()
        it = turns.take(loop.memory, yields=False)
        assert {one.worker_id for one in it.started} == workers
