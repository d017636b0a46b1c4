"""Attempts that never end by themselves, and attempts that end badly: recovery, returns, retries, and how they are counted."""

import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from django_workpool import RetryBehavior, Workpool
from django_workpool.database import sessions
from django_workpool.loop import recovery
from django_workpool.loop.memory import Depth
from django_workpool.models import Archive, Attempt, RunningWork, Work
from django_workpool.settle import MAX_RETURNS
from django_workpool.types import Attempted, Outcome

from .stage import on_postgresql
from .states import functions
from .states.driver import FAILED, FINAL, NEVER_BEGUN, RETURNED, SUCCESS, Loop, complete
from .states.functions import RETRY
from .states.rows import (
    FINISHED,
    S1,
    S2,
    S3,
    S5,
    S9,
    S10,
    finished,
    given,
    numbers,
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


def start_again(loop: Loop, work_id: uuid.UUID) -> bool:
    """Let the work's time come; return whether it runs again."""
    loop.settle()
    pass_time(100_000)
    loop.settle()
    return RunningWork.objects.filter(work_id=work_id).exists()


# Attempts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_work_that_fails_always_is_attempted_as_often_as_it_may_be(loop: Loop, most: int) -> None:
    retry = RetryBehavior(max_attempts=most)
    work_id = Workpool().using(retry=retry).enqueue(functions.act)
    attempts = 0
    while start_again(loop, work_id):
        complete(run_of(work_id), FAILED)
        attempts += 1
        assert Workpool().status(work_id).previous_attempts == (attempts if attempts < most else 0)
    assert attempts == most
    assert numbers(work_id) == list(range(1, most + 1))
    assert (observe(work_id), Archive.objects.get(id=work_id).attempts) == (finished("failed"), most)


def test_each_failed_attempt_is_kept_and_the_last_ones_text_is_the_result(loop: Loop) -> None:
    work_id = given(replace(S2, attempts=1), worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    complete(run_of(work_id), FAILED)
    start_again(loop, work_id)
    complete(run_of(work_id), FINAL)
    first, second, third = Attempt.objects.filter(work_id=work_id).order_by("number")
    assert (second.text, second.traceback, second.class_path, second.worker) == (
        "it failed",
        "Traceback: it failed",
        "builtins.ValueError",
        "here",
    )
    assert first.ended <= second.ended <= third.ended
    assert third.started is not None and third.started <= third.ended
    assert Archive.objects.get(id=work_id).error == third.text == "for good"


def test_a_success_after_failures_keeps_them_and_a_first_success_keeps_none(loop: Loop) -> None:
    works = [given(replace(S2, attempts=n), worker_id=loop.worker.id, func="act_retried", retry=RETRY) for n in (0, 2)]
    for work_id in works:
        complete(run_of(work_id), SUCCESS)
    assert [numbers(work_id) for work_id in works] == [[], [1, 2]]
    assert [Archive.objects.get(id=work_id).attempts for work_id in works] == [1, 3]


# Returns ----------------------------------------------------------------------------------------------------------------


def return_it(loop: Loop, work_id: uuid.UUID) -> None:
    complete(run_of(work_id), RETURNED)


def lose_it(loop: Loop, work_id: uuid.UUID) -> None:
    loop.kill()
    loop.iterate(limit=0)
    loop.worker = loop.add_worker()


@pytest.mark.parametrize("act", [return_it, lose_it])
def test_a_work_is_returned_uncounted_five_times_and_then_it_counts(loop: Loop, act: object) -> None:
    """A mutation is not retried when it fails: it ends."""
    work_id = Workpool().enqueue(functions.mutate)
    for times in range(1, MAX_RETURNS + 1):
        assert start_again(loop, work_id)
        act(loop, work_id)  # type: ignore[operator]
        assert list(Work.objects.values_list("attempts", "returns")) == [(0, times)]
        assert numbers(work_id) == []
    assert start_again(loop, work_id)
    act(loop, work_id)  # type: ignore[operator]
    loop.iterate()
    assert observe(work_id) == finished("failed")
    assert numbers(work_id) == [1]


@pytest.mark.parametrize("leads", [False, True])
def test_what_never_began_is_returned_as_often_as_its_workers_stop(loop: Loop, leads: bool) -> None:
    """Works that wait in a process beyond those that run meet each restart of a rolling deploy."""
    work_id = Workpool().enqueue(functions.act)
    for _ in range(2 * MAX_RETURNS):
        assert start_again(loop, work_id)
        if leads:
            loop.results = [Attempted(run_of(work_id), NEVER_BEGUN, "here")]
            loop.iterate()
        else:
            complete(run_of(work_id), NEVER_BEGUN)
        assert list(Work.objects.values_list("attempts", "returns")) == [(0, 0)]
    assert start_again(loop, work_id)
    assert numbers(work_id) == []


def test_a_return_that_counts_is_retried_if_failures_are(loop: Loop) -> None:
    work_id = Workpool().enqueue(functions.act_retried)
    for _ in range(MAX_RETURNS + RETRY.max_attempts):
        assert start_again(loop, work_id)
        complete(run_of(work_id), RETURNED)
    loop.iterate()
    assert observe(work_id) == finished("failed")
    assert numbers(work_id) == [1, 2, 3]


# Recovery ---------------------------------------------------------------------------------------------------------------


def test_a_work_that_kills_its_workers_does_not_go_round_for_ever(loop: Loop) -> None:
    work_id = Workpool().enqueue(functions.act_retried)
    deaths = 0
    while start_again(loop, work_id):
        lose_it(loop, work_id)
        deaths += 1
    assert deaths == RETRY.max_attempts
    assert numbers(work_id) == [1, 2, 3]
    assert "worker lost" in Archive.objects.get(id=work_id).error


def test_only_the_works_of_the_dead_worker_are_recovered(loop: Loop) -> None:
    other = loop.add_worker()
    lost, kept = given(S2, worker_id=loop.worker.id), given(S2, worker_id=other.id)
    loop.kill()
    loop.iterate()
    assert (observe(lost), observe(kept)) == (finished("failed"), S2)


@pytest.mark.parametrize("outcome", [SUCCESS, FAILED, RETURNED], ids=lambda outcome: outcome.kind)
@pytest.mark.parametrize("func", ["act_retried", "mutate", "act"])
def test_a_worker_that_was_wrongly_thought_dead_cannot_write(loop: Loop, func: str, outcome: Outcome) -> None:
    work_id = given(S2, worker_id=loop.worker.id, func=func, retry=RETRY if func == "act_retried" else None)
    run = run_of(work_id)
    lose_it(loop, work_id)
    start_again(loop, work_id)
    before = snapshot()
    assert complete(run, outcome) is None
    assert snapshot() == before


@pytest.mark.parametrize(("before", "after"), [(S5, S10), (S3, FINISHED), (S9, finished("canceled"))], ids=["S5", "S3", "S9"])
def test_a_completion_that_the_iteration_has_not_seen_is_no_reason_to_recover(loop: Loop, before: object, after: object) -> None:
    """It was committed behind the cursor, or since the iteration looked: the attempt is counted once, by the completion."""
    given(S3, worker_id=loop.worker.id)
    loop.iterate()
    work_id = given(before, worker_id=loop.worker.id, func="act_retried", retry=RETRY)  # type: ignore[arg-type]
    pass_time(1000)
    loop.kill()
    loop.memory.loaded = float("-inf")
    loop.iterate(Depth.EXACT)
    assert observe(work_id) == before
    loop.iterate(Depth.BEHIND)
    assert observe(work_id) == after
    assert Archive.objects.count() + Work.objects.count() == 2


def test_a_slot_is_free_in_the_iteration_that_recovers_its_work(loop: Loop) -> None:
    loop.configure(1)
    lost, waiting = given(S2, worker_id=loop.worker.id), given(S1)
    loop.kill()
    loop.add_worker()
    loop.iterate()
    assert (observe(lost), observe(waiting)) == (finished("failed"), S2)


def test_many_works_are_recovered_in_batches(loop: Loop) -> None:
    loop.configure(0)
    works = [given(S2, worker_id=loop.worker.id, func="mutate") for _ in range(recovery.BATCH + 6)]
    loop.kill()
    assert loop.iterate().again
    assert len(running()) == 6
    assert not loop.iterate().again
    assert [observe(work_id) for work_id in works] == [S1] * len(works)


def test_what_is_recovered_is_told(loop: Loop) -> None:
    retried = given(S2, worker_id=loop.worker.id, func="act_retried", retry=RETRY)
    returned = given(S2, worker_id=loop.worker.id, func="ask")
    ended = given(S2, worker_id=loop.worker.id)
    loop.kill()
    it = loop.iterate()
    told = [(event, level, fields["work_id"], fields["status"], fields["attempts"]) for event, level, fields in it.events]
    ends = {(retried, "retrying", 1): "WARN", (returned, "returned", 0): "INFO", (ended, "failed", 1): "WARN"}
    assert set(told) == {(event, "WARN", *end) for event, end in zip(["recovered"] * 3, ends, strict=True)} | {
        ("completed", level, *end) for end, level in ends.items()
    }
    assert len(told) == 6
    errors = {fields["work_id"]: fields.get("error") for event, _, fields in it.events if event == "completed"}
    assert errors == {retried: "django_workpool.WorkerLost", returned: None, ended: "django_workpool.WorkerLost"}
    assert (it.report.completed, it.report.retries, it.report.failed) == (2, 1, 1)


@on_postgresql
def test_a_mutation_may_deallocate_what_its_session_has_prepared(loop: Loop) -> None:
    """Its completion is prepared there: it succeeds with the second try, whatever comes of a failure."""
    for func in (functions.mutate, functions.forget_statements, functions.mutate):
        work_id = Workpool().enqueue(func)
        (run,) = loop.settle()
        loop.perform(run)
        loop.settle()
        assert (observe(work_id), numbers(work_id)) == (FINISHED, [])


@on_postgresql
def test_a_prepared_statement_fails_with_djangos_errors_only(loop: Loop) -> None:
    """The first one of a session, too, which asks what kind of session it is: in a transaction that is broken, without Django's notice."""
    raw: Any = connection.connection
    sessions._sessions.pop(raw, None)
    raw.prepare_threshold = None
    with pytest.raises(DatabaseError), transaction.atomic():
        with suppress(psycopg.Error):
            raw.execute("SELECT 1 / 0")
        sessions.fetch_prepared(connection, "SELECT 1", [])
