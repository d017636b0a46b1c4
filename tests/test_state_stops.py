"""Which runs are told that their works were canceled: in the iteration that marks them, and by what a worker asks again and again."""

from typing import Any

import pytest
from django.db import connection

from django_workpool import Workpool, call
from django_workpool.database import database
from django_workpool.execution import workers
from django_workpool.models import Archive, Attempt, RunningWork

from .stage import on_postgresql
from .states import functions
from .states.driver import STOPPED, Loop, complete, complete_alone
from .states.functions import RETRY, effects, told
from .states.rows import S1, S2, S9, S12, USING, given, run_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def loop() -> Loop:
    return Loop()


def asked(worker_id: int) -> set[int]:
    """Return what a worker learns when it asks."""
    part = workers.canceled(worker_id)
    return {token for (token,) in database(USING).fetch(part.template, part.params) if token is not None}


def test_running_works_are_told_once_by_the_iteration_that_marks_them(loop: Loop) -> None:
    other = loop.add_worker()
    mine, theirs = given(S2, worker_id=loop.worker.id), given(S2, worker_id=other.id)
    waiting, untouched = given(S1, due_in=100), given(S2, worker_id=other.id)
    loop.take_over()
    for work_id in (mine, theirs, waiting):
        assert Workpool().cancel(work_id)
    assert loop.iterate().stops == {loop.worker.id: [run_of(mine).token], other.id: [run_of(theirs).token]}
    Workpool().cancel_all()
    assert loop.iterate().stops == {other.id: [run_of(untouched).token]}, "the others know"
    assert loop.iterate().stops == {}


def test_an_iteration_that_is_rolled_back_tells_nobody(loop: Loop) -> None:
    from .states.driver import Broken

    work_id = given(S2, worker_id=loop.worker.id)
    loop.take_over()
    Workpool().cancel(work_id)
    with pytest.raises(Broken):
        loop.iterate(fail=True)
    assert asked(loop.worker.id) == set()
    assert loop.iterate().stops == {loop.worker.id: [run_of(work_id).token]}
    assert asked(loop.worker.id) == {run_of(work_id).token}


def test_a_worker_asks_for_its_own_canceled_runs(loop: Loop) -> None:
    other = loop.add_worker()
    works = [given(S12, worker_id=worker) for worker in (loop.worker.id, loop.worker.id, other.id)]
    given(S2, worker_id=loop.worker.id)
    given(S9, worker_id=other.id, retry=RETRY)
    assert asked(loop.worker.id) == {run_of(work).token for work in works[:2]}
    assert run_of(works[2]).token in asked(other.id)


def test_callback_work_is_told_nothing(loop: Loop) -> None:
    work_id = Workpool().using(on_complete=functions.told_never).enqueue(functions.act)
    loop.settle()
    complete_alone(run_of(work_id), STOPPED)
    loop.settle()
    (row,) = RunningWork.objects.all()
    Workpool().cancel_all()
    Workpool().cancel(row.work_id)
    assert loop.iterate().stops == {}
    assert asked(loop.worker.id) == set()


def test_what_has_stopped_calls_back_in_its_own_transaction_and_keeps_where_it_was(loop: Loop) -> None:
    work_id = Workpool().using(on_complete=told, on_complete_context=7).enqueue(functions.act)
    loop.settle()
    Workpool().cancel(work_id)
    loop.iterate()
    completed = complete_alone(run_of(work_id), STOPPED)
    assert completed is not None and completed.status == "canceled"
    kept = Archive.objects.get(id=work_id)
    assert (kept.kind, kept.error, kept.attempts, kept.callback, kept.worker) == ("canceled", "canceled", 1, "done", "here")
    assert kept.started is not None
    assert [text.split()[0] for text in effects(work_id)] == ["canceled"]
    assert Attempt.objects.get(work_id=work_id).text == "the work was canceled"
    before = loop.memory.report.canceled
    loop.settle()
    assert (loop.memory.report.canceled - before, loop.memory.report.failed) == (1, 0)


def test_each_of_many_is_counted_as_canceled(loop: Loop) -> None:
    ids = Workpool().enqueue_many(functions.act, [call(n) for n in range(5)])
    loop.settle()
    Workpool().cancel_all()
    loop.settle()
    for work_id in ids:
        complete(run_of(work_id), STOPPED)
    loop.settle()
    report = loop.memory.report
    assert (report.completed, report.canceled, report.failed, report.succeeded) == (5, 5, 0, 0)


@pytest.mark.parametrize("rows", [3000])
def test_the_question_reads_the_canceled_ones_only(loop: Loop, rows: int) -> None:
    """However many works there are: it is asked once a second."""
    Workpool().enqueue_many(functions.act, [call(n) for n in range(rows)])
    work_id = given(S12, worker_id=loop.worker.id)
    with connection.cursor() as cursor:
        if connection.vendor != "mysql":
            # There it would commit the test's transaction; the server counts for itself.
            cursor.execute("ANALYZE")
        part = workers.canceled(loop.worker.id)
        explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
        cursor.execute(f"{explain} {database(USING).sql(part.template)}", part.params)
        plan = " ".join(str(row) for row in cursor.fetchall())
    assert "workpool_work_canceled" in plan, plan
    assert asked(loop.worker.id) == {run_of(work_id).token}


@on_postgresql
def test_the_question_is_asked_with_the_others(loop: Loop) -> None:
    from django_workpool.database.parts import together

    work_id = given(S12, worker_id=loop.worker.id)
    answers: Any = together(database(USING), workers.questions(loop.worker.id))
    assert answers["canceled"] == [(run_of(work_id).token,)]
