"""Mutations that share a transaction: each ends exactly once, whatever becomes of the others."""

import pytest
from django.db import connection

from django_workpool import Workpool, call, mutation
from django_workpool.exceptions import InvalidWork
from django_workpool.execution import mutations
from django_workpool.execution.mutations import perform_together
from django_workpool.models import Archive, Attempt, RunningWork
from django_workpool.types import Attempted, FnType, Outcome, Run

from .conftest import StartMain
from .live import PATIENCE, left_over, results
from .states.driver import Bare, Loop, complete
from .states.rows import USING, snapshot
from .works.models import Event
from .works.tasks import join

BATCH = 20


def keys() -> list[str]:
    """Return what has been written down, with its repetitions."""
    return sorted(Event.objects.filter(name="join").values_list("key", flat=True))


def drain(main_process: StartMain, *arguments: str) -> None:
    """Run a process until nothing is left."""
    main = main_process("--drain", "--threads", "2", "--prefetch", "200", *arguments)
    assert main.wait(PATIENCE) == 0, main.output()
    assert left_over() == {}


def test_many_share_few_transactions_and_each_happens_once(main_process: StartMain) -> None:
    Workpool().configure(max_parallelism=200)
    names = [f"{number:03}" for number in range(200)]
    ids = Workpool().enqueue_many(join, [call(name) for name in names])
    drain(main_process)
    assert keys() == names
    assert [one.value for one in results(ids)] == [f'"{name}"' for name in names]
    assert set(Archive.objects.values_list("kind", "attempts")) == {("success", 1)}
    if connection.vendor == "postgresql":
        shared = len(set(Event.objects.values_list("text", flat=True)))
        assert 200 / BATCH <= shared <= 100, "few commits"


@pytest.mark.parametrize("how", ["fails", "leaves"])
def test_one_that_fails_takes_nobody_with_it(main_process: StartMain, how: str) -> None:
    names = [f"{number:03}" for number in range(60)]
    ids = Workpool().enqueue_many(join, [call(name, how if name == "030" else "") for name in names])
    drain(main_process)
    assert keys() == [name for name in names if name != "030"]
    assert [one.kind for one in results(ids)] == ["failed" if name == "030" else "success" for name in names]
    assert list(Attempt.objects.values_list("work_id", "number")) == [(ids[30], 1)]


def test_children_run_each_alone(main_process: StartMain) -> None:
    ids = Workpool().enqueue_many(join, [call(str(number)) for number in range(10)])
    drain(main_process, "--processes", "1")
    assert [one.kind for one in results(ids)] == ["success"] * 10
    assert len(keys()) == 10


def begun(count: int, how: str = "") -> list[Run]:
    """Return the runs of works that have been started."""
    Workpool().enqueue_many(join, [call(str(number), how) for number in range(count)])
    return Loop().settle()


@pytest.mark.django_db(transaction=True)
def test_a_stale_one_lets_nothing_happen() -> None:
    runs = begun(3)
    complete(runs[1], Outcome(kind="success", value="7"))
    before = snapshot()
    assert perform_together(USING, "here", runs, Bare()) == []  # type: ignore[arg-type]
    assert snapshot() == before
    assert keys() == []


@pytest.mark.django_db(transaction=True)
def test_a_transaction_is_not_kept_open_for_the_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = begun(3, "waits")
    assert perform_together(USING, "here", runs, Bare()) == runs[:1]  # type: ignore[arg-type]
    assert keys() == ["0"]
    assert set(RunningWork.objects.filter(work_id__in=[run.work_id for run in runs]).values_list("work_id", flat=True)) == {
        run.work_id for run in runs
    }, "the loop frees slots"
    monkeypatch.setattr(mutations, "TOGETHER", 10.0)
    assert perform_together(USING, "here", runs[1:], Bare()) == runs[1:]  # type: ignore[arg-type]
    assert keys() == ["0", "1", "2"]


def test_only_mutations_without_a_callback_are_ended_unseen() -> None:
    run = Run(1, Archive().id, "default", FnType.MUTATION, "a.b", "a.b", "", 0, False, False, None)  # type: ignore[arg-type]
    assert Attempted(run, Outcome("success"), "here").ends
    assert not Attempted(run._replace(has_callback=True), Outcome("success"), "here").ends
    assert not Attempted(run._replace(fn_type=FnType.CALLBACK), Outcome("success"), "here").ends
    assert not Attempted(run, Outcome("failed"), "here").ends


@pytest.mark.parametrize("batch", [0, -1, 1001, 2.0, "5", None, True])
def test_a_batch_is_a_number_of_works(batch: object) -> None:
    with pytest.raises(InvalidWork, match="batch must be a whole number from 1 to 1000"):
        mutation(batch=batch)  # type: ignore[call-overload]
