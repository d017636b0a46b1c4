"""Finished works that run again, and waiting ones that run now, while others do something with the same rows."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_workpool import RetryBehavior, Workpool, archive, keys, requeue
from django_workpool.database import Start, database
from django_workpool.models import Archive, Attempt, PendingCancelation, PendingStart, RunningWork, Tally, UniqueKey, Work
from django_workpool.requeue import Refusal

from .live import wait_until
from .other_session import another_session
from .states.driver import FAILED, SUCCESS, Loop, complete
from .states.functions import act
from .states.rows import POOL, S10, USING, finished, given, left_over, numbers, pass_time
from .test_keys_races import lock_waits, waiting_for
from .test_requeue import run_out
from .works.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
on_servers = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer: its transactions do not meet")
on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="waits are looked for in PostgreSQL's own views")

ROUNDS = 10


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Call all at the same moment, each on a thread and connection of its own; return what they have returned."""
    gate, results = threading.Barrier(len(acts)), [None] * len(acts)

    def call(place: int, act: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            gate.wait(20)
            results[place] = act()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=call, args=one) for one in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_of_two_operators_one_lets_a_work_run_again() -> None:
    for _ in range(ROUNDS):
        work_id = given(finished("failed"))
        results = at_once(*[lambda: Workpool().retry(work_id)] * 3)  # noqa: B023 - called at once
        assert sorted(results) == [False, False, True]
        assert Work.objects.filter(id=work_id).count() == 1
        assert PendingStart.objects.filter(work_id=work_id).count() == 1
    assert (Archive.objects.count(), Tally.objects.count()) == (0, ROUNDS)


def test_of_two_operators_one_lets_a_callback_run_again() -> None:
    for _ in range(ROUNDS):
        work_id, callback = given(finished("success")), given(finished("failed"))
        Archive.objects.filter(id=callback).update(fn_type="callback", callback_of=work_id)
        Archive.objects.filter(id=work_id).update(callback="failed")
        # By the work's id, by its own, and in bulk with the work's: in whatever order their rows are locked.
        acts = [
            lambda: Workpool().retry_callback(work_id),  # noqa: B023
            lambda: Workpool().retry(callback),  # noqa: B023
            lambda: bool(Workpool().retry_many([callback, work_id])),  # noqa: B023
        ]
        assert sorted(at_once(*acts)) == [False, False, True]
        assert Work.objects.filter(id=callback).count() == 1
        assert Archive.objects.get(id=work_id).callback == "pending"


def test_a_work_runs_again_or_is_pruned_and_keeps_its_attempts_if_it_runs(settings: Any) -> None:
    for _ in range(ROUNDS):
        work_id = given(finished("failed"))
        kept, _pruned = at_once(lambda: Workpool().retry(work_id), lambda: archive.prune(USING, POOL, timedelta(0)))  # noqa: B023
        assert Work.objects.filter(id=work_id).exists() is kept
        assert numbers(work_id) == ([1] if kept else [])
        assert not Archive.objects.exists()


@on_servers
def test_pruning_leaves_what_has_ended_again_since_it_was_seen() -> None:
    """Between the look and the lock a work may have run again, and ended again: its last end is not old."""
    work_id, db = given(finished("failed")), database(USING)
    Archive.objects.update(finished=db.moment(0))
    looks: list[str] = []

    def end_again(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found = execute(sql, params, many, context)
        if "SELECT" in sql and Archive._meta.db_table in sql:
            looks.append(sql)
            if len(looks) == 1:
                at_once(lambda: Archive.objects.update(finished=db.moment(db.clock_ms())))
        return found

    with connection.execute_wrapper(end_again):
        assert archive.prune(USING, POOL, timedelta(hours=1)) == 0
    assert Archive.objects.get().id == work_id and numbers(work_id) == [1] and len(looks) == 2


@on_servers
def test_pruning_passes_over_a_work_that_somebody_lets_run_again() -> None:
    work_id, other = given(finished("failed")), given(finished("failed"))
    with another_session(lambda: Workpool().retry(work_id)):
        assert archive.prune(USING, POOL, timedelta(0)) == 1
    assert list(Work.objects.values_list("id", flat=True)) == [work_id]
    assert set(Attempt.objects.values_list("work_id", flat=True)) == {work_id} and other


@on_postgresql
def test_whoever_takes_the_key_first_has_it(loop: Loop) -> None:
    """A key's row names a work that is gone: it is taken by somebody, or by the work itself, but never by both."""
    work_id = Workpool().using(unique="k").enqueue(act)
    run_out(loop)
    with transaction.atomic():
        other = Workpool().using(unique="k").enqueue(act)
        thread, results = waiting_for(lambda: requeue.requeue(POOL, [work_id]))
        _wait_for_a_lock()
    thread.join()
    assert results[0].refused == {work_id: Refusal.KEY_TAKEN} and results[0].holders == {work_id: ("k", other)}
    assert UniqueKey.objects.get().work_id == other and not Work.objects.filter(id=work_id).exists()
    # The other way round: who takes the key while the work comes back is given that work.
    run_out(loop)
    with transaction.atomic():
        assert Workpool().retry(other)
        thread, results = waiting_for(lambda: Workpool().using(unique="k").enqueue(act))
        _wait_for_a_lock()
    thread.join()
    assert results == [other]


def _wait_for_a_lock() -> None:
    wait_until(lock_waits)


@on_servers
def test_the_sweep_leaves_the_key_of_a_work_that_comes_back(loop: Loop) -> None:
    work_id = Workpool().using(unique="k").enqueue(act)
    run_out(loop)
    with another_session(lambda: Workpool().retry(work_id)):
        keys.Sweep(USING).prune()
    assert UniqueKey.objects.get().work_id == work_id
    keys.Sweep(USING).prune()
    assert UniqueKey.objects.get().work_id == work_id


def test_a_work_runs_once_whether_the_loop_or_run_now_comes_first(loop: Loop) -> None:
    """The loop starts works that become due while somebody lets them be due: each runs once, and nothing is left of it."""
    for _ in range(ROUNDS):
        work_id = Workpool().using(delay=timedelta(milliseconds=120)).enqueue(act)
        started: list[Any] = []

        def iterate() -> None:
            for _ in range(20):
                it = loop.iterate()
                started.extend(run for runs in it.runs.values() for run in runs)  # noqa: B023

        def run_now() -> list[bool]:
            return [Workpool().run_now(work_id) for _ in range(5)]  # noqa: B023

        at_once(iterate, run_now)
        started += loop.settle()
        while not started:
            started += loop.settle()
        assert [run.work_id for run in started] == [work_id]
        assert complete(started[0], SUCCESS)
        loop.settle()
        assert left_over() == {}


@on_servers
def test_a_start_that_was_read_before_the_row_was_replaced_is_one_run(loop: Loop) -> None:
    """The worst moment: the old row has become due, and is read, while the transaction that replaces it is open."""
    work_id = Workpool().using(delay=timedelta(hours=1)).enqueue(act)
    replaced, begun = threading.Event(), threading.Event()

    def replace() -> bool:
        with transaction.atomic():
            done = requeue._bring_forward(database(USING), POOL, work_id)
            replaced.set()
            begun.wait(1)
            return done

    thread, results = waiting_for(replace)
    assert replaced.wait(20)
    db = database(USING)
    (old,) = db.fetch("SELECT id, segment FROM {PendingStart}")
    # As the loop does with a row that it has read as due: it waits for the other's end, as the row is being deleted.
    with db.write():
        tokens = db.begin_runs(POOL, 0, [Start(old[0], work_id, old[1], loop.worker.id)], db.clock_ms())()
    begun.set()
    thread.join()
    assert results == [True] and len(tokens) == 1
    loop.take_over()
    # The row that came in its place belongs to a work that runs: it goes, the run stays.
    assert loop.settle() == []
    assert PendingStart.objects.count() == 0 and list(RunningWork.objects.values_list("work_id", flat=True)) == [work_id]


@on_postgresql
def test_whoever_asks_while_the_loop_starts_the_work_is_told_that_it_runs(loop: Loop) -> None:
    work_id = Workpool().using(delay=timedelta(hours=1)).enqueue(act)
    db = database(USING)
    (old,) = db.fetch("SELECT id, segment FROM {PendingStart}")
    with db.write():
        db.begin_runs(POOL, 0, [Start(old[0], work_id, old[1], loop.worker.id)], db.clock_ms())()
        thread, results = waiting_for(lambda: Workpool().run_now(work_id))
        _wait_for_a_lock()
    thread.join()
    assert results == [False]
    assert PendingStart.objects.count() == 0 and RunningWork.objects.count() == 1


def test_run_now_and_cancel_at_once_end_the_work_as_canceled_or_let_it_run(loop: Loop) -> None:
    for _ in range(ROUNDS):
        work_id = Workpool().using(delay=timedelta(days=1)).enqueue(act)
        Workpool().cancel(work_id)

        def now() -> bool:
            return Workpool().run_now(work_id)  # noqa: B023

        at_once(now, lambda: loop.iterate())
        loop.settle()
        assert Archive.objects.get(id=work_id).kind == "canceled"
        assert left_over() == {}


@on_servers
def test_the_loop_does_not_wait_for_a_callers_transaction(loop: Loop) -> None:
    """Not even where the work becomes due by itself while that is open: else no work of the pool would start meanwhile."""
    work_id = Workpool().using(delay=timedelta(milliseconds=300)).enqueue(act)
    unknown = Workpool().using(delay=timedelta(milliseconds=300)).enqueue(act)
    Work.objects.filter(id=unknown).update(func_path="gone.away")

    def ask() -> None:
        assert Workpool().run_now(work_id) and Workpool().run_now(unknown)
        Event.objects.create(name="asked", key="", at=0)

    with another_session(ask):
        pass_time(10)
        assert [run.work_id for run in loop.settle()] == [work_id]
        assert not Event.objects.exists(), "the loop has waited for the end of that transaction"
    assert Work.objects.get(id=unknown).held_since is not None


def test_run_now_takes_effect_with_the_commit() -> None:
    work_id = Workpool().using(delay=timedelta(days=1)).enqueue(act)
    before = PendingStart.objects.get()
    with pytest.raises(RuntimeError), transaction.atomic():
        assert Workpool().run_now(work_id) is True
        raise RuntimeError
    assert PendingStart.objects.get() == before
    with transaction.atomic():
        assert Workpool().run_now(work_id) is True
        # What is enqueued here is not seen by others before the commit, either.
        other = Workpool().using(delay=timedelta(days=1)).enqueue(act)
        assert Workpool().run_now(other) is True
        assert set(PendingStart.objects.exclude(work_id=other)) == {before}
    assert all(row.segment <= database(USING).segment() for row in PendingStart.objects.all())


@on_servers
def test_whoever_ends_a_callback_does_not_wait_for_a_retry_that_is_refused() -> None:
    work_id = given(finished("failed"))
    Archive.objects.update(callback="pending")
    with another_session(lambda: Workpool().retry(work_id)), transaction.atomic():
        assert Archive.objects.select_for_update(nowait=True).get().id == work_id


@on_servers
def test_a_cancelation_does_not_wait_for_run_now(loop: Loop) -> None:
    work_id = Workpool().using(delay=timedelta(days=1)).enqueue(act)
    with another_session(lambda: requeue._bring_forward(database(USING), POOL, work_id)):
        Workpool().cancel(work_id)
        # It passes over the work, whose row is locked, and comes back to it.
        assert loop.iterate().runs == {}
        assert PendingCancelation.objects.count() == 1
    assert loop.settle() == []
    assert Archive.objects.get(id=work_id).kind == "canceled" and left_over() == {}


def test_a_held_work_that_is_to_run_now_is_put_back_again(loop: Loop) -> None:
    work_id = Workpool().enqueue(act)
    Work.objects.update(func_path="gone.away")
    loop.iterate()
    assert Workpool().run_now(work_id) is True
    at_once(lambda: loop.iterate(), lambda: Workpool().run_now(work_id))
    loop.iterate()
    Work.objects.update(func_path=f"{act.__module__}.act")
    pass_time(100)
    assert [run.work_id for run in loop.settle()] == [work_id]


def test_a_retry_waits_for_the_slot_of_the_last_run(loop: Loop) -> None:
    """Its completion is written, but the loop has not yet been there."""
    work_id = Workpool().enqueue(act)
    (run,) = loop.settle()
    complete(run, FAILED)
    assert requeue.requeue(POOL, [work_id]).refused == {work_id: Refusal.HOLDS_SLOT}
    thread, results = waiting_for(lambda: Workpool().retry(work_id))
    loop.iterate()
    thread.join()
    assert results == [True]
    assert run_out(loop, SUCCESS) == 1


def test_numbers_of_attempts_never_meet(loop: Loop) -> None:
    work_id = given(S10, retry=RetryBehavior(max_attempts=2, initial_backoff=timedelta(0)))
    for _ in range(3):
        run_out(loop)
        assert Workpool().retry(work_id)
    assert numbers(work_id) == list(range(1, len(numbers(work_id)) + 1))
