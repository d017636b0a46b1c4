"""Batches, row by row: what is of a batch, when it is over, what is told of it, and how long it is kept."""

import re
import threading
import types
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_workpool import (
    BatchResult,
    BatchStatus,
    InvalidWork,
    UnknownPool,
    UnregisteredFunction,
    Workpool,
    action,
    batch,
    batches,
    call,
    on_batch_complete,
    on_complete,
)
from django_workpool.database import database
from django_workpool.database.parts import one_by_one
from django_workpool.exceptions import StaleRun
from django_workpool.loop import batches as phase
from django_workpool.loop import poll
from django_workpool.loop.context import Iteration
from django_workpool.loop.memory import OpenBatches
from django_workpool.models import Archive, Batch, BatchFailure, InternalState, PendingCancelation, PendingStart, Work
from django_workpool.runner.drain import is_drained
from django_workpool.runner.outlook import Queues
from django_workpool.testing import eager, run_work
from django_workpool.types import Lane, Run

from .states.driver import FAILED, FINAL, RETURNED, SUCCESS, Loop, complete
from .states.functions import act, act_retried, mutate, told
from .states.rows import POOL, USING
from .works.models import Event
from .works.tasks import batch_breaks, batch_ended, ended, fail, note

pytestmark = pytest.mark.django_db


class Undone(Exception):
    pass


def look(loop: Loop) -> OpenBatches | None:
    """Let the loop know what the leader's look at the queues finds."""
    loop.memory.batches = Queues.of(poll.look(loop.db), 0.0, 0.0).batches.get(POOL)
    return loop.memory.batches


def told_of(batch_id: uuid.UUID) -> list[str]:
    """Return what the callbacks of a batch have committed."""
    return list(Event.objects.filter(name="batch", key=str(batch_id)).values_list("text", flat=True))


def begun(it: Iteration) -> list[Run]:
    """Return what an iteration has started."""
    return [run for runs in it.runs.values() for run in runs]


def finish(loop: Loop) -> None:
    """Look, and run what that starts, until nothing is left."""
    for _ in range(10):
        look(loop)
        runs = loop.settle()
        for run in runs:
            loop.perform(run)
        if not runs and not Work.objects.exists():
            return
    raise AssertionError("still going on")


# Filling ----------------------------------------------------------------------------------------------------------------


def test_works_of_a_batch_are_those_enqueued_through_it() -> None:
    with Workpool().using(priority=3).batch(name="import", on_complete=batch_ended, on_complete_context={"a": 1}) as filled:
        one = filled.enqueue(act, 1)
        two, three = filled.enqueue_many(act, [call(2), call(3)])
        later = filled.using(delay=timedelta(hours=1), priority=5).enqueue(act)
        other = Workpool().enqueue(act)
        assert not Batch.objects.exists()
    row = Batch.objects.get()
    assert (row.id, row.pool, row.name, row.total, row.ended) == (filled.id, POOL, "import", 4, None)
    assert (row.on_complete, row.on_complete_context) == ("tests.works.tasks.batch_ended", '{"a":1}')
    works = dict(Work.objects.values_list("id", "batch_id"))
    assert works == dict.fromkeys((one, two, three, later), filled.id) | {other: None}
    assert dict(Work.objects.values_list("id", "priority")) == {one: 3, two: 3, three: 3, later: 5, other: 0}
    assert filled.status() == BatchStatus(name="import", total=4, unfinished=4, succeeded=0, failed=0, canceled=0, ended=False)


def test_a_block_that_raises_leaves_nothing_and_an_inner_one_that_is_rolled_back_does_not_count() -> None:
    with pytest.raises(Undone), batch(on_complete=batch_ended) as filled:
        filled.enqueue(act)
        raise Undone
    assert (Work.objects.count(), Batch.objects.count(), filled.status()) == (0, 0, None)
    with batch(on_complete=batch_ended) as filled:
        filled.enqueue(act)
        with pytest.raises(Undone), transaction.atomic():
            filled.enqueue_many(act, [call()] * 3)
            raise Undone
    assert (Batch.objects.get().total, Work.objects.count()) == (1, 1)


def test_batches_inside_each_other_are_two() -> None:
    with batch(name="outer") as outer:
        outer.enqueue(act)
        with batch(name="inner") as inner:
            inner.enqueue(act)
            outer.enqueue(act)
    assert dict(Batch.objects.values_list("name", "total")) == {"outer": 2, "inner": 1}


@pytest.mark.django_db(transaction=True)
def test_a_batch_is_closed_outside_of_its_block_and_for_other_threads() -> None:
    """Their works would be of other transactions: they could be committed when the batch is over, or never."""
    with pytest.raises(Undone), batch() as raised:
        raise Undone
    with batch() as filled:
        later = filled.using(priority=1)
        errors: list[BaseException] = []

        def elsewhere() -> None:
            try:
                filled.enqueue(act)
            except InvalidWork as error:
                errors.append(error)
            finally:
                connections.close_all()

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(20)
        assert "by the thread that has opened it" in str(errors[0])
    for enqueue in (raised.enqueue, filled.enqueue, later.enqueue):
        with pytest.raises(InvalidWork, match="inside of its `with` block"):
            enqueue(act)
    assert not Work.objects.exists()


@action
def no_callback() -> None: ...


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"on_complete": ended}, UnregisteredFunction, "is for single works; .* @on_batch_complete"),
        ({"on_complete": "tests.works.tasks.ended"}, UnregisteredFunction, "is for single works"),
        ({"on_complete": act}, UnregisteredFunction, "is an action"),
        ({"on_complete": 3}, UnregisteredFunction, "An object of type builtins.int"),
        ({"on_complete_context": 1}, InvalidWork, "on_complete_context without on_complete"),
        ({"on_complete": batch_ended, "on_complete_context": {1}}, InvalidWork, "on_complete_context"),
        ({"name": 3}, InvalidWork, "name must be a string"),
        ({"pool": "nowhere"}, UnknownPool, "nowhere"),
    ],
    # The same in each process of pytest.
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
def test_what_a_batch_cannot_take_is_refused_before_any_statement(arguments: Any, error: type[Exception], text: str) -> None:
    with CaptureQueriesContext(connections["default"]) as captured, pytest.raises(error, match=text):
        batch(**arguments)
    assert len(captured) == 0


def test_functions_for_batches_and_for_works_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnregisteredFunction, match=r"batch_ended is for batches; .* @on_complete"):
        Workpool().using(on_complete=batch_ended)  # type: ignore[arg-type]
    with pytest.raises(UnregisteredFunction, match="cannot be called with one argument: it takes BatchResult"):
        on_batch_complete(no_argument)  # type: ignore[type-var]
    with pytest.raises(UnregisteredFunction, match="the top level of a module"):
        on_batch_complete(lambda done: None)
    assert on_batch_complete()(batch_ended) is batch_ended
    # Registered anew as the other kind, as after a deploy.
    assert batches.told(changing, None, "").on_complete.endswith("changing")
    other = types.FunctionType(changing.__code__, globals(), "changing")
    other.__qualname__ = "changing"
    monkeypatch.setitem(globals(), "changing", other)
    on_complete(other)
    with pytest.raises(UnregisteredFunction, match="is for single works"):
        batches.told(other, None, "")


def no_argument() -> None: ...


@on_batch_complete
def changing(done: BatchResult) -> None: ...


def test_an_empty_batch_ends_at_once() -> None:
    loop = Loop()
    with batch(on_complete=batch_ended, on_complete_context="none") as filled:
        pass
    assert Batch.objects.get().ended is not None
    for run in loop.settle():
        loop.perform(run)
    assert told_of(filled.id) == ["0 0 0 0 none"]
    with batch():
        pass
    assert Batch.objects.filter(ended=None).count() == 0 == Work.objects.count()


# The end ----------------------------------------------------------------------------------------------------------------


def test_a_batch_ends_when_the_last_of_its_works_has() -> None:
    """Successes, failures after retries, mutations, canceled and returned works, works with a callback of their own."""
    loop = Loop()
    with batch(on_complete=batch_ended, on_complete_context=[1]) as filled:
        ids = [filled.enqueue(act), filled.enqueue(act), filled.enqueue(act_retried), filled.enqueue(mutate)]
        ids += [filled.using(on_complete=told).enqueue(act), filled.enqueue(act), filled.using(delay=timedelta(hours=1)).enqueue(act)]
        called = filled.using(on_complete=told).enqueue(act)
    runs = {run.work_id: run for run in loop.settle()}
    outcomes = [SUCCESS, FAILED, FAILED, SUCCESS, FINAL, RETURNED]
    for work_id, outcome in zip(ids, outcomes, strict=False):
        complete(runs[work_id], outcome)
    complete(runs[called], SUCCESS)
    assert look(loop) == OpenBatches(1, False)
    back = loop.settle()
    assert [run.work_id for run in back] == [ids[5]], "returned; the retry waits"
    complete(back[0], SUCCESS)
    assert Workpool().cancel(ids[6])
    loop.settle()
    assert filled.status() == BatchStatus(name="", total=8, unfinished=1, succeeded=4, failed=2, canceled=1, ended=False)
    assert not Work.objects.filter(fn_type="callback").exists()
    PendingStart.objects.update(segment=0)
    (retried,) = loop.settle()
    complete(retried, SUCCESS)
    finish(loop)
    assert told_of(filled.id) == ["8 5 2 1 [1]"]
    assert filled.status() == BatchStatus(name="", total=8, unfinished=0, succeeded=5, failed=2, canceled=1, ended=True)
    assert dict(BatchFailure.objects.values_list("work_id", "kind")) == {ids[1]: "failed", ids[4]: "failed", ids[6]: "canceled"}
    assert Archive.objects.filter(batch_id=filled.id).count() == 8


def test_an_end_in_the_loop_itself_is_found_in_the_same_iteration() -> None:
    """Where the look has told of open batches, an iteration that ends works looks, too; the callback starts right behind."""
    loop = Loop()
    with batch(on_complete=batch_ended) as filled:
        ids = filled.enqueue_many(act, [call()] * 3)
    assert look(loop) == OpenBatches(1, False)
    for run in loop.settle():
        complete(run, SUCCESS)
    it = loop.iterate()
    assert (filled.status() or BatchStatus).ended is True
    assert loop.memory.batches == OpenBatches(0, False)
    # If the segment has just changed, the next iteration starts it.
    (callback,) = begun(it) or loop.settle()
    assert (callback.fn_type, callback.func_path) == ("callback", "tests.works.tasks.batch_ended")
    assert Archive.objects.filter(id__in=ids).count() == 3


@pytest.mark.parametrize("ends", ["canceled while they wait", "held too long", "lost"])
def test_what_ends_without_an_attempt_of_its_own_counts(ends: str, settings: Any) -> None:
    loop = Loop()
    with batch(on_complete=batch_ended) as filled:
        filled.enqueue_many(act, [call()] * 2)
    if ends == "lost":
        loop.settle()
        loop.kill()
        loop.add_worker()
    elif ends == "held too long":
        settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "HOLD": timedelta(0)}, "imports": {}}
        Work.objects.update(func_path="tests.nowhere", held_since=Work.objects.values_list("created", flat=True)[0] - timedelta(1))
    else:
        assert filled.cancel() == 2
    loop.settle()
    finish(loop)
    assert told_of(filled.id) == ["2 0 0 2 None" if ends.startswith("canceled") else "2 0 2 0 None"]


def test_ordinary_iterations_pay_nothing_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    Workpool().enqueue(act)
    assert look(loop) is None
    with CaptureQueriesContext(connections["default"]) as captured:
        for run in loop.settle():
            complete(run, SUCCESS)
        loop.settle()
    assert not [one["sql"] for one in captured if "workpool_batch" in one["sql"]]


def test_a_pool_with_many_open_batches_is_looked_through_only_when_one_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(phase, "FEW", 1)
    filled = []
    for _ in range(3):
        with batch(on_complete=batch_ended) as one:
            one.enqueue(act)
        filled.append(one)
    assert look(loop) == OpenBatches(3, False)
    first, *_ = loop.settle()
    complete(first, SUCCESS)
    loop.settle()
    assert not Batch.objects.exclude(ended=None).exists()
    assert look(loop) == OpenBatches(3, True)
    it = loop.iterate()
    assert [Batch.objects.get(id=one.id).ended is not None for one in filled].count(True) == 1
    assert it.batches == OpenBatches(2, False)


def test_batches_that_end_together_end_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(phase, "PAGE", 2)
    filled = []
    for _ in range(5):
        with batch(on_complete=batch_ended) as one:
            one.enqueue(act)
        filled.append(one.id)
    for run in loop.settle():
        complete(run, SUCCESS)
    look(loop)
    it = loop.iterate()
    assert it.again
    assert Batch.objects.exclude(ended=None).count() == 2
    for run in begun(it):
        loop.perform(run)
    finish(loop)
    assert [told_of(one) for one in filled] == [["1 1 0 0 None"]] * 5


def test_an_iteration_that_fails_leaves_the_batch_open_and_the_next_leader_ends_it() -> None:
    loop = Loop()
    with batch(on_complete=batch_ended) as filled:
        filled.enqueue(act)
    for run in loop.settle():
        complete(run, SUCCESS)
    look(loop)
    with pytest.raises(Exception):  # noqa: B017 - whatever the driver raises
        loop.iterate(fail=True)
    assert Batch.objects.get().ended is None and not Work.objects.exists()
    deposed = loop.take_over()
    finish(loop)
    with pytest.raises(Exception, match="generation"):
        deposed.iterate()
    assert told_of(filled.id) == ["1 1 0 0 None"]


def test_a_batch_that_somebody_else_has_ended_is_not_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    with batch(on_complete=batch_ended) as filled:
        filled.enqueue(act)
    for run in loop.settle():
        complete(run, SUCCESS)
    look(loop)
    fetch = type(loop.db).fetch

    def fetch_late(self: Any, template: str, params: Any = ()) -> Any:
        rows = fetch(self, template, params)
        if "{Batch} b WHERE b.pool" in template:
            Batch.objects.update(ended=F("created"))
        return rows

    with monkeypatch.context() as patched, pytest.raises(StaleRun, match="a batch was ended"):
        patched.setattr(type(loop.db), "fetch", fetch_late)
        loop.iterate()
    assert not Work.objects.exists() and Batch.objects.get().ended is None
    finish(loop)
    assert told_of(filled.id) == ["1 1 0 0 None"]


def test_the_callback_of_a_batch_is_not_canceled_and_is_kept_when_it_fails(settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETENTION": timedelta(0)}, "imports": {}}
    loop = Loop()
    with batch(on_complete=batch_breaks, on_complete_context={"a": "ü"}, name="n") as filled:
        filled.enqueue(act)
    for run in loop.settle():
        complete(run, SUCCESS)
    look(loop)
    runs = begun(loop.iterate(limit=0))
    (callback,) = Work.objects.all()
    assert (callback.callback_of, callback.batch_id, callback.fn_type) == (filled.id, None, "callback")
    assert (Workpool().cancel(callback.id), filled.cancel()) == (False, 0)
    Workpool().cancel_all()
    while Work.objects.exists():
        PendingStart.objects.update(segment=0)
        for run in runs or loop.settle():
            complete(run, FAILED)
        runs = []
    loop.settle()
    kept = Archive.objects.get()
    assert (kept.id, kept.kind, kept.attempts, kept.func_path) == (callback.id, "failed", 5, "tests.works.tasks.batch_breaks")
    assert Batch.objects.get().ended is not None
    assert batches.prune(USING, POOL) == 1
    assert (Batch.objects.count(), Archive.objects.count()) == (0, 1)


def test_a_project_s_test_runs_a_batch_and_its_callback() -> None:
    with batch(on_complete=batch_ended, on_complete_context="here") as filled:
        filled.enqueue_many(note, [call(str(number)) for number in range(3)])
        filled.enqueue(fail)
    assert len(run_work()) == 5
    assert told_of(filled.id) == ["4 3 1 0 here"]


@pytest.mark.parametrize("kind", [note, None])
def test_works_that_a_project_s_test_runs_inside_of_the_block_count(kind: Any) -> None:
    with batch(on_complete=batch_ended, on_complete_context="eager") as filled:
        with eager():
            filled.enqueue(note, "eager")
            filled.enqueue(fail)
        if kind is not None:
            filled.enqueue(kind, "later")
    assert (Batch.objects.get().ended is None) == (kind is not None)
    run_work()
    assert told_of(filled.id) == ["2 1 1 0 eager" if kind is None else "3 2 1 0 eager"]


# The look ---------------------------------------------------------------------------------------------------------------


def test_the_look_tells_of_each_pool_whether_a_batch_of_it_is_over() -> None:
    InternalState.objects.bulk_create([InternalState(pool=pool) for pool in ("a", "b", "c")])
    now = database(USING).moment(database(USING).clock_ms())

    def row(pool: str, ended: bool = False, works: int = 0) -> uuid.UUID:
        one = Batch(id=uuid.uuid4(), pool=pool, total=1, created=now, ended=now if ended else None)
        Batch.objects.bulk_create([one])
        Work.objects.bulk_create(
            Work(id=uuid.uuid4(), pool=pool, fn_type="action", func_path="x", name="x", arguments="", batch_id=one.id, created=now)
            for _ in range(works)
        )
        return one.id

    row("a", works=2)
    row("a", works=1)
    row("b", works=1)
    row("b")
    row("c", ended=True)
    row("unknown")
    db = database(USING)
    for answers in (poll.look(db), one_by_one(db, poll.parts(db))):
        assert phase.opened(answers) == {"a": OpenBatches(2, False), "b": OpenBatches(2, True)}
        assert poll.due_segments(answers) == {"b": 0}
    assert is_drained(USING, ("a",)) and not is_drained(USING, None)


# Canceling --------------------------------------------------------------------------------------------------------------


def test_a_batch_is_canceled_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CHUNK", 3)
    loop = Loop()
    with batch(on_complete=batch_ended) as filled:
        ids = filled.enqueue_many(act, [call()] * 10)
    other = Workpool().enqueue(act)
    assert Workpool().cancel(ids[4])
    assert Workpool("imports").cancel_batch(filled.id) == 0, "of another pool"
    assert Workpool().cancel_batch(filled.id) == 9
    assert filled.cancel() == Workpool().cancel_batch("no id") == Workpool().cancel_batch(uuid.uuid4()) == 0
    assert set(PendingCancelation.objects.values_list("work_id", flat=True)) == set(ids)
    assert [run.work_id for run in loop.settle()] == [other]
    Work.objects.all().delete()
    finish(loop)
    assert told_of(filled.id) == ["10 0 0 10 None"]


def test_works_that_run_when_their_batch_is_canceled_go_on() -> None:
    loop = Loop()
    with batch(on_complete=batch_ended) as filled:
        first, second = filled.enqueue_many(act_retried, [call()] * 2)
    runs = {run.work_id: run for run in loop.settle()}
    assert filled.cancel() == 2
    loop.settle()
    complete(runs[first], SUCCESS)
    complete(runs[second], FAILED)
    finish(loop)
    assert told_of(filled.id) == ["2 1 0 1 None"]


@pytest.mark.parametrize("batch_id", ["x", 7, None])
def test_a_status_of_what_is_no_id_is_refused(batch_id: Any) -> None:
    with pytest.raises(InvalidWork, match="is not the id of a batch"):
        Workpool().batch_status(batch_id)


def test_an_unknown_batch_has_no_status() -> None:
    assert Workpool().batch_status(uuid.uuid4()) is None
    with batch() as filled:
        filled.enqueue(act)
    assert Workpool("imports").batch_status(filled.id) is None


# What is kept -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retention", "pruned"), [(timedelta(0), 2), (timedelta(hours=1), 1), (timedelta(days=2), 0), (None, 0)], ids=str)
def test_ended_batches_are_kept_for_the_retention(retention: timedelta | None, pruned: int, settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETENTION": retention}, "imports": {}}
    now = database(USING).moment(database(USING).clock_ms())
    ages: tuple[timedelta | None, ...] = (timedelta(days=1), timedelta(minutes=1), None)
    rows = [Batch(id=uuid.uuid4(), pool=POOL, total=1, created=now, ended=age and now - age) for age in ages]
    Batch.objects.bulk_create(rows)
    BatchFailure.objects.bulk_create([BatchFailure(batch_id=one.id, work_id=uuid.uuid4(), kind="failed") for one in rows])
    # What may be pruned is not shown, pruned or not.
    assert [batches.status(POOL, one.id) is None for one in rows] == [number < pruned for number in range(len(rows))]
    assert batches.overdue(USING) == ([POOL] if pruned else [])
    assert batches.prune(USING, POOL) == pruned
    assert batches.overdue(USING) == []
    left = {one.id for one in rows[pruned:]}
    assert set(Batch.objects.values_list("id", flat=True)) == set(BatchFailure.objects.values_list("batch_id", flat=True)) == left


def test_a_batch_with_many_failures_goes_in_chunks(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETENTION": timedelta(0)}, "imports": {}}
    monkeypatch.setattr(batches, "PRUNE_CHUNK", 3)
    now = database(USING).moment(database(USING).clock_ms())
    row = Batch(id=uuid.uuid4(), pool=POOL, total=7, created=now, ended=now)
    Batch.objects.bulk_create([row])
    BatchFailure.objects.bulk_create([BatchFailure(batch_id=row.id, work_id=uuid.uuid4(), kind="failed") for _ in range(7)])
    counts: list[tuple[int, int, int]] = []
    prune: Callable[[], int] = lambda: batches.prune(USING, POOL)  # noqa: E731
    for _ in range(4):
        counts.append((prune(), BatchFailure.objects.count(), Batch.objects.count()))
        assert batches.status(POOL, row.id) is None, "half of its failures would look like successes"
    assert counts == [(3, 4, 1), (3, 1, 1), (1, 0, 0), (0, 0, 0)]


def test_callback_work_is_in_the_lane_of_callbacks() -> None:
    with batch(on_complete=batch_ended):
        pass
    assert PendingStart.objects.get().lane == Lane.CALLBACK
