"""What is kept and counted: the archive and its pruning, figures, and identifiers."""

import os
import pickle
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from django_workpool import Workpool, archive, call, stats
from django_workpool.complete import complete_many
from django_workpool.ids import new_work_id, parse_work_id
from django_workpool.loop import status
from django_workpool.models import Archive, Attempt, RunningWork
from django_workpool.settle import MAX_RETURNS
from django_workpool.types import Attempted

from .states import functions
from .states.driver import FAILED, SUCCESS, Loop, complete, complete_alone
from .states.functions import RETRY
from .states.rows import FINISHED, POOL, S1, S2, S3, S7, S8, USING, finished, given, left_over, numbers, observe, run_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def keep_for(settings: Any) -> Any:
    """Return a function that sets the pool's retention."""

    def keep(retention: timedelta | None) -> None:
        settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETENTION": retention}, "imports": {}}

    return keep


def age(work_id: uuid.UUID, by: timedelta) -> None:
    Archive.objects.filter(id=work_id).update(finished=F("finished") - by)


# The archive ------------------------------------------------------------------------------------------------------------


def test_a_retention_of_nothing_keeps_no_work_and_no_attempts(keep_for: Any) -> None:
    keep_for(timedelta(0))
    loop = Loop()
    works = [given(replace(S2, attempts=n), worker_id=loop.worker.id, func="act_retried", retry=RETRY) for n in (0, 2, 2)]
    works += [given(replace(S7, attempts=2)), given(replace(S8, attempts=1), worker_id=loop.worker.id)]
    for work_id, outcome in zip(works[:3], (SUCCESS, SUCCESS, FAILED), strict=True):
        complete(run_of(work_id), outcome)
    complete(run_of(works[4]), FAILED)
    loop.settle()
    assert (left_over(), Archive.objects.count(), Attempt.objects.count()) == ({}, 0, 0)
    assert Workpool().status(works[2]).result is None
    assert Workpool().status(works[2]).state.value == "finished"


@pytest.mark.parametrize("alone", [False, True])
def test_a_stale_success_takes_nothing_of_work_that_goes_on(keep_for: Any, alone: bool) -> None:
    """Its run was recovered, and the work runs again: the failures of before are still its own."""
    keep_for(timedelta(0))
    work_id = given(replace(S2, attempts=2), worker_id=Loop().worker.id, func="act_retried", retry=RETRY)
    stale = run_of(work_id)
    RunningWork.objects.filter(id=stale.token).update(id=stale.token + 1)
    assert (complete_alone if alone else complete)(stale, SUCCESS) is None
    assert numbers(work_id) == [1, 2]
    complete(run_of(work_id), SUCCESS)
    assert numbers(work_id) == []


def test_a_success_that_comes_twice_in_a_batch_is_kept_once(keep_for: Any) -> None:
    keep_for(None)
    run = run_of(given(S2, worker_id=Loop().worker.id))
    assert [one.run for one in complete_many(USING, [Attempted(run, SUCCESS, "here")] * 2)] == [run]
    assert list(Archive.objects.values_list("id", "value")) == [(run.work_id, "42")]


def test_what_is_kept_says_all_of_the_work(keep_for: Any) -> None:
    keep_for(None)
    loop = Loop()
    pool = Workpool().using(name="greeting", priority=3, on_complete=functions.told, on_complete_context={"a": 1})
    work_id = pool.enqueue(functions.act_retried, [1, "x"])
    (run,) = loop.settle()
    complete(run, SUCCESS)
    kept = Archive.objects.get(id=work_id)
    assert (kept.pool, kept.fn_type, kept.name, kept.priority, kept.attempts) == (POOL, "action", "greeting", 3, 1)
    assert kept.func_path == "tests.states.functions.act_retried"
    assert (kept.kind, kept.value, kept.error, kept.worker) == ("success", "42", "", "here")
    assert kept.started is not None and kept.created <= kept.started <= kept.finished
    assert (kept.on_complete, kept.callback_of) == ("tests.states.functions.told", None)
    assert '"a"' in kept.on_complete_context
    assert '"x"' in kept.arguments


@pytest.mark.parametrize(("retention", "pruned"), [(timedelta(0), 3), (timedelta(hours=1), 1), (timedelta(days=5), 0), (None, 0)], ids=str)
def test_what_is_older_than_the_retention_is_pruned_with_its_attempts(keep_for: Any, retention: timedelta | None, pruned: int) -> None:
    old, recent, new = given(finished("failed")), given(FINISHED), given(finished("canceled"))
    age(old, timedelta(days=1))
    age(recent, timedelta(minutes=59))
    age(new, timedelta(seconds=1))
    assert numbers(old) == [1]
    keep_for(retention)
    assert archive.overdue(USING) == ([POOL] if pruned else [])
    assert archive.prune(USING, POOL) == pruned
    assert archive.overdue(USING) == []
    left = [work_id for work_id in (old, recent, new) if Archive.objects.filter(id=work_id).exists()]
    assert left == [old, recent, new][pruned:]
    assert numbers(old) == ([] if pruned else [1])


def test_pruning_goes_in_chunks_and_leaves_other_pools_and_unfinished_work_alone(keep_for: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_for(timedelta(0))
    monkeypatch.setattr(archive, "PRUNE_CHUNK", 3)
    works = [given(FINISHED) for _ in range(5)]
    other, waiting = given(FINISHED), given(replace(S1, attempts=1))
    for hours, work_id in enumerate([*works, other], start=1):
        age(work_id, timedelta(hours=hours))
    Archive.objects.filter(id=other).update(pool="imports")
    assert archive.prune(USING, POOL) == 3
    assert [Archive.objects.filter(id=work_id).exists() for work_id in works] == [True, True, False, False, False]
    assert [archive.prune(USING, POOL) for _ in range(2)] == [2, 0]
    assert observe(other) == FINISHED
    assert numbers(waiting) == [1]


def test_an_exhausted_callback_is_never_pruned(keep_for: Any) -> None:
    keep_for(timedelta(0))
    exhausted, ended = given(finished("failed"), func="told"), given(FINISHED, func="told")
    for work_id in (exhausted, ended):
        age(work_id, timedelta(days=1000))
    assert archive.prune(USING, POOL) == 1
    assert archive.overdue(USING) == []
    assert (observe(exhausted), numbers(exhausted)) == (finished("failed"), [1])
    assert not Archive.objects.filter(id=ended).exists()


def test_a_pool_that_the_settings_no_longer_name_is_kept_for_the_default_time(keep_for: Any) -> None:
    keep_for(timedelta(0))
    assert archive.retention(POOL) == timedelta(0)
    assert archive.retention("gone") == timedelta(days=1)


# Figures ----------------------------------------------------------------------------------------------------------------


def test_diagnostics_count_what_a_pool_holds_now() -> None:
    loop = Loop(limit=4)
    Workpool().enqueue_many(functions.act, [call()] * 6)
    it = loop.iterate()
    (run, *_) = [run for runs in it.runs.values() for run in runs]
    complete(run, SUCCESS)
    Workpool().cancel_all()
    Workpool("imports").enqueue(functions.act)
    status.settle(loop.db, loop.memory, ("scheduled", 1, True))
    assert stats.diagnostics(USING, POOL) == stats.Diagnostics(
        waiting=2,
        running=4,
        completing=1,
        canceling=1,
        max_parallelism=4,
        spare_capacity=0,
        run_status="scheduled",
        saturated=True,
        generation=loop.memory.generation,
    )
    loop.configure(9)
    assert stats.diagnostics(USING, POOL).spare_capacity == 5
    loop.configure(1)
    assert stats.diagnostics(USING, POOL).spare_capacity == 0


def test_diagnostics_of_a_pool_without_rows_are_zeros() -> None:
    assert stats.diagnostics(USING, "nowhere") == stats.Diagnostics(
        waiting=0,
        running=0,
        completing=0,
        canceling=0,
        max_parallelism=0,
        spare_capacity=0,
        run_status="",
        saturated=False,
        generation=0,
    )


def test_a_slot_that_is_not_free_yet_is_running_though_its_work_has_ended() -> None:
    loop = Loop(limit=1)
    given(S3, worker_id=loop.worker.id)
    figures = stats.diagnostics(USING, POOL)
    assert (figures.running, figures.completing, figures.spare_capacity) == (1, 1, 0)


def test_rates_of_a_report() -> None:
    counts = {"completed": 10, "succeeded": 5, "failed": 2, "retries": 3, "canceled": 7}
    told = stats.report(counts, 4, 9)
    assert told == {**counts, "running": 4, "backlog": 9, "failureRate": 0.5, "permanentFailureRate": 0.2857}
    nothing = stats.report(dict.fromkeys(counts, 0), 0, 0)
    assert (nothing["failureRate"], nothing["permanentFailureRate"]) == (0, 0)
    only_retries = stats.report({**dict.fromkeys(counts, 0), "completed": 3, "retries": 3}, 0, 0)
    assert (only_retries["failureRate"], only_retries["permanentFailureRate"]) == (1, 0)


# Identifiers ------------------------------------------------------------------------------------------------------------


def test_identifiers_are_of_version_7_show_their_time_and_differ() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_work_id() for _ in range(2000)]
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == 2000
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}
    assert all(before <= one.int >> 80 <= after for one in ids)
    # Made without the constructor, but in nothing else than what it makes.
    for one in ids[:10]:
        made = uuid.UUID(int=one.int)
        assert (one, hash(one), str(one), one.is_safe, pickle.loads(pickle.dumps(one))) == (made, hash(made), str(made), made.is_safe, made)


def test_identifiers_made_later_sort_later(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1_700_000_000_000_000_000 + step for step in (0, 300, 999_999, 1_000_000, 2_500_000)])
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    monkeypatch.setattr(os, "urandom", lambda count: b"\xff" * count)
    ids = [new_work_id() for _ in range(5)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 5


@pytest.mark.parametrize("text", ["", "x", "0" * 31, 5, None, b"0" * 32, 1.5, [], "nonsense-" * 5])
def test_what_is_no_identifier_is_none(text: object) -> None:
    assert parse_work_id(text) is None


def test_an_identifier_is_taken_as_a_uuid_or_in_any_of_its_forms() -> None:
    work_id = new_work_id()
    assert [parse_work_id(form) for form in (work_id, str(work_id), work_id.hex, f"{{{work_id}}}")] == [work_id] * 4


def test_the_number_of_returns_is_the_contracts() -> None:
    assert MAX_RETURNS == 5
