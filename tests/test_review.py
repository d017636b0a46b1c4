"""Faults that a review of the core found, each held where it showed: in the loop, without threads."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import signals
from django.test.utils import CaptureQueriesContext

from django_workpool import Workpool, call
from django_workpool.complete import committing, complete_many
from django_workpool.database import database
from django_workpool.database.parts import one_by_one
from django_workpool.database_errors import may_pass
from django_workpool.execution import limits, workers
from django_workpool.execution.assignments import Assignments
from django_workpool.execution.mutations import perform_mutation
from django_workpool.execution.persist import persist
from django_workpool.failures import describe
from django_workpool.loop import starts
from django_workpool.loop.memory import Depth
from django_workpool.models import Archive, Attempt, FunctionSet, PendingStart, RunningWork, Work
from django_workpool.runner import drain
from django_workpool.types import Attempted, Outcome

from .runs import a_run
from .states.driver import SUCCESS, Bare, Loop
from .states.functions import act, ask, mutate, told
from .states.rows import POOL, USING

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_report_of_a_minute_does_not_stop_the_loop() -> None:
    loop = Loop()
    work_id = Workpool().enqueue(act)
    loop.iterate()
    assert loop.memory.report_ms is not None
    loop.memory.report_ms -= 61_000
    it = loop.iterate()
    assert [event for event, *_ in it.events] == ["report"]
    assert RunningWork.objects.filter(work_id=work_id).exists()


def test_a_query_can_be_the_first_to_use_its_threads_connection() -> None:
    """On SQLite connecting sets the mode of transactions, which must not undo that the query's one is deferred."""
    connection.close()
    loop = Loop()
    loop.threads = 1
    ids = [Workpool().enqueue(ask, 3) for _ in range(2)]
    for run in loop.settle():
        connection.close()
        loop.perform(run)
    assert set(Archive.objects.filter(id__in=ids).values_list("kind", flat=True)) == {"success"}
    mode = getattr(connection, "transaction_mode", None)
    connection.close()
    connection.ensure_connection()
    assert getattr(connection, "transaction_mode", None) == mode


def test_an_iteration_looks_at_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Works that can neither be started nor passed over are not all walked in one transaction; nothing behind them is lost."""
    monkeypatch.setattr(starts, "LOOK_MAX", 100)
    loop = Loop(limit=5)
    pool = Workpool()
    pool.enqueue_many(act, [call(number) for number in range(600)])
    Work.objects.update(canceled=True)
    late = pool.enqueue(act)
    it = loop.iterate()
    assert it.again and it.looked <= 100 + starts.BATCH
    for _ in range(10):
        it = loop.iterate(Depth.EXACT)
    assert RunningWork.objects.filter(work_id=late).exists()
    assert Archive.objects.filter(kind="canceled").count() == 600


def test_a_waiting_cancel_all_is_not_walked_again_and_again() -> None:
    """The statements of an iteration do not depend on how many works the waiting cancelations cover."""
    loop = Loop(limit=3)
    pool = Workpool()

    def statements(count: int) -> int:
        pool.enqueue_many(act, [call(number) for number in range(count)])
        pool.cancel_all()
        with CaptureQueriesContext(connection) as captured:
            loop.iterate()
        loop.settle(500)
        return len(captured)

    few, many = statements(300), statements(3000)
    assert many <= few + 15


def test_many_wishes_to_cancel_cost_each_start_the_same() -> None:
    plan = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET enable_seqscan = off")
        cursor.execute(
            plan + "SELECT 1 FROM workpool_work w WHERE EXISTS (SELECT 1 FROM workpool_pendingcancelation c "
            "WHERE c.pool = w.pool AND c.created_up_to IS NOT NULL AND c.created_up_to >= w.created)"
        )
        told_plan = str(cursor.fetchall())
        if connection.vendor == "postgresql":
            cursor.execute("SET enable_seqscan = on")
    assert "workpool_cancelation_all" in told_plan


def test_room_that_a_pool_frees_is_left_to_one_that_waits_for_it() -> None:
    """Two pools share one worker with one thread: the one with the backlog does not keep the other out."""
    loop = Loop(limit=10, threads=1)
    Workpool().enqueue_many(act, [call(number) for number in range(5)])
    ((run,),) = loop.iterate().runs.values()
    complete_many(USING, [Attempted(run=run, outcome=SUCCESS, worker="here")])
    from django_workpool.loop.iteration import run_iteration

    it = run_iteration(USING, loop.memory, loop.fleet, loop.owner, yields=True)
    assert (len(it.ended), it.runs, it.again) == (1, {}, True)
    it = run_iteration(USING, loop.memory, loop.fleet, loop.owner)
    assert sum(map(len, it.runs.values())) == 1
    it = run_iteration(USING, loop.memory, loop.fleet, loop.owner)
    assert it.starved is True


def database_error(sqlstate: str) -> OperationalError:
    error = OperationalError("refused")
    error.__cause__ = type("Error", (Exception,), {"sqlstate": sqlstate})("refused")
    return error


@pytest.mark.parametrize(("sqlstate", "passes"), [("53100", True), ("25006", True), ("57014", True), ("22P05", False), ("23505", False)])
def test_what_passes_is_told_from_what_stays(sqlstate: str, passes: bool) -> None:
    assert may_pass(database_error(sqlstate)) is passes


def test_an_outcome_waits_for_a_full_database_and_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_workpool.execution.persist.WAIT_FIRST", 0.001)
    seen: list[Attempted] = []

    def complete(attempted: Attempted) -> None:
        seen.append(attempted)
        if len(seen) < 8:
            raise database_error("53100")

    persist(USING, Attempted(run=a_run(1), outcome=SUCCESS, worker="here"), complete, lambda: False)
    assert [one.outcome for one in seen] == [SUCCESS] * 8


def test_an_outcome_that_is_refused_for_what_it_says_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_workpool.execution.persist.WAIT_FIRST", 0.001)
    seen: list[Attempted] = []

    def complete(attempted: Attempted) -> None:
        seen.append(attempted)
        if attempted.outcome == SUCCESS:
            raise database_error("22P05")

    persist(USING, Attempted(run=a_run(1), outcome=SUCCESS, worker="here"), complete, lambda: False)
    failure = seen[-1].outcome.failure
    assert failure is not None and (failure.class_path, failure.retryable) == ("django_workpool.NotStored", False)


def test_a_hook_that_raises_after_the_commit_undoes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def hook() -> None:
        raise ValueError("the project's hook")

    with committing(database(USING), POOL) as commit:
        transaction.on_commit(hook)
        calls.append(Workpool().enqueue(act))
    assert commit.happened and Work.objects.filter(id=calls[0]).exists()
    assert "the project's hook" in caplog.text


def test_a_mutation_whose_hook_raises_runs_once_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    work_id = Workpool().using(on_complete=told).enqueue(mutate, 5)
    (run,) = loop.settle()
    calls = []

    def function(value: Any) -> Any:
        calls.append(value)
        transaction.on_commit(lambda: 1 / 0)
        return value

    class Hooked(Bare):
        def call(self, func: Any, args: Any = (), kwargs: Any = None) -> Any:
            # In the place of the one that is registered.
            return function(5)

    assert perform_mutation(USING, "here", run, Hooked(), lambda: False) is None  # type: ignore[arg-type]
    limits.end(run)
    assert calls == [5]
    assert Archive.objects.get(id=work_id).kind == "success"


def is_published(worker_id: int) -> bool:
    """Return what a worker is told when it asks."""
    return one_by_one(database(USING), workers.questions(worker_id))["published"] != []


def test_a_workers_end_does_not_take_the_functions_of_another_along() -> None:
    first = workers.register(USING, process=uuid.uuid4(), threads=1, coroutines=1, pools=None)
    FunctionSet.objects.all().delete()
    assert is_published(first.id) is False
    workers.publish_functions(USING, first.id)
    assert is_published(first.id) is True
    second = workers.register(USING, process=uuid.uuid4(), threads=1, coroutines=1, pools=None)
    workers.unregister(USING, second.id)
    assert is_published(first.id) is True


def test_receivers_of_the_projects_signals_do_not_run_in_the_loop() -> None:
    def receiver(**kwargs: Any) -> None:
        raise AssertionError("user code in the loop")

    kinds = (signals.pre_delete, signals.post_delete, signals.pre_save, signals.post_save)
    for kind in kinds:
        kind.connect(receiver)
    try:
        loop = Loop()
        pool = Workpool()
        done, canceled = pool.enqueue(act), pool.enqueue(act)
        pool.cancel(canceled)
        for run in loop.settle():
            complete_many(USING, [Attempted(run=run, outcome=SUCCESS, worker="here")])
        loop.settle()
        workers.unregister(USING, loop.worker.id)
    finally:
        for kind in kinds:
            kind.disconnect(receiver)
    assert Archive.objects.filter(id__in=[done, canceled]).count() == 2


def test_a_run_that_has_just_ended_is_not_taken_again() -> None:
    assignments = Assignments()
    run = a_run(7)
    assert assignments.take([run]) == [run]
    assignments.done(run)
    # A read that is under way may have seen it, and an iteration of this process's own loop may have started it.
    assert assignments.take([run]) == []
    with assignments.iteration():
        assert assignments.take([run]) == []
        assignments.begin_fetch()
        assignments.begin_fetch()
        assert assignments.take([run]) == []
    with assignments.iteration():
        assert assignments.take([run]) == [run]


def test_a_run_that_has_ended_is_forgotten_where_no_loop_iterates() -> None:
    assignments = Assignments()
    runs = [a_run(token) for token in range(100)]
    assignments.take(runs)
    assignments.done(*runs)
    assert len(assignments) == 0
    assignments.begin_fetch()
    assert assignments.take(runs) == []
    assignments.begin_fetch()
    assert assignments.take(runs) == runs


def test_an_interrupted_run_that_may_run_again_is_not_ended_by_its_last_return() -> None:
    """Its sixth return counts as a failed attempt, which is followed by another one if any are left."""
    loop = Loop()
    from .states.functions import act_retried

    work_id = Workpool().enqueue(act_retried)
    Work.objects.update(returns=5)
    (run,) = loop.settle()
    failure = describe(ValueError("interrupted"))
    complete_many(USING, [Attempted(run=run, outcome=Outcome(kind="returned", failure=failure), worker="here")])
    loop.iterate()
    assert Attempt.objects.filter(work_id=work_id).count() == 1
    assert PendingStart.objects.filter(work_id=work_id).exists()


def test_what_is_left_to_drain_is_seen_at_one_moment() -> None:
    """A work on its way from one table to another is not overlooked between two statements."""
    loop = Loop()
    assert drain.is_drained(USING, None)
    work_id = Workpool().enqueue(act)
    assert not drain.is_drained(USING, None)
    (run,) = loop.settle()
    assert not drain.is_drained(USING, None)
    with CaptureQueriesContext(connection) as captured:
        drain.is_drained(USING, None)
    assert len([query for query in captured if "FROM" in query["sql"].replace("epoch FROM", "")]) == 1
    complete_many(USING, [Attempted(run=run, outcome=SUCCESS, worker="here")])
    assert not drain.is_drained(USING, None)
    loop.iterate()
    assert drain.is_drained(USING, None) and Archive.objects.filter(id=work_id).exists()


def test_works_of_a_paused_pool_and_of_later_are_left_by_a_drain() -> None:
    loop = Loop(limit=0)
    Workpool().enqueue(act)
    Workpool().using(delay=timedelta(hours=1)).enqueue(act)
    assert drain.is_drained(USING, None)
    loop.configure(1)
    assert not drain.is_drained(USING, None)
    assert drain.is_drained(USING, ("imports",))
