"""Batches with real processes: the callback comes once, whoever ends the works, and whoever dies."""

import time
import uuid
from pathlib import Path

import pytest

from django_workpool import BatchStatus, Workpool, batch, call
from django_workpool.models import Archive, Batch, BatchFailure, Work

from .conftest import StartMain
from .live import PATIENCE, left_over, results, running, texts, times, wait_for_quiet, wait_until
from .works import apps
from .works.tasks import batch_breaks, batch_ended, end_at, fail, fail_once, hold, nap, note
from .works.tasks import ended as work_ended

pytestmark = pytest.mark.django_db(transaction=True)


def ended(batch_id: uuid.UUID) -> bool:
    status = Workpool().batch_status(batch_id)
    return status is not None and status.ended


@pytest.mark.slow
def test_a_batch_of_all_kinds_of_ends(main_process: StartMain) -> None:
    """Kept works and one that is due later and canceled; the callback comes once, soon after the last end."""
    main_process()
    with batch(on_complete=batch_ended, on_complete_context={"a": 1}, name="all") as filled:
        filled.enqueue_many(note, [call(str(number)) for number in range(10)])
        filled.enqueue_many(fail, [call(f"fails {number}") for number in range(5)])
        filled.enqueue_many(fail_once, [call(f"once {number}") for number in range(5)])
        late = filled.using(on_complete=None, priority=-100).enqueue(nap, 2.5)
        canceled = filled.using(run_after=None).enqueue(nap, 60)
    assert Workpool().cancel(canceled)
    wait_until(lambda: texts("batch", filled.id))
    (told_at,) = times("batch", filled.id)
    wait_for_quiet()
    runs = Archive.objects.get(id=late)
    # By then the loop knew of the batch: it need not wait for its next look.
    assert told_at - runs.finished.timestamp() < 5
    outcome = texts("batch", filled.id)
    status = filled.status()
    assert status is not None and (status.total, status.unfinished, status.ended, status.name) == (22, 0, True, "all")
    assert outcome in (["22 16 5 1 {'a': 1}"], ["22 16 6 0 {'a': 1}"])
    assert (status.succeeded, status.failed + status.canceled) == (16, 6)


@pytest.mark.slow
def test_works_that_end_together_in_four_processes(main_process: StartMain) -> None:
    """64 works of one batch, half of which fail, end at the same moment: one callback."""
    Workpool().configure(max_parallelism=64)
    mains = [main_process("--threads", "16") for _ in range(4)]
    for main in mains:
        main.wait_for("process_started", PATIENCE)
    for _ in range(3):
        moment = time.time() + 3
        with batch(on_complete=batch_ended) as filled:
            filled.enqueue_many(end_at, [call(moment, number % 2 == 0) for number in range(64)])
        wait_until(lambda filled=filled: texts("batch", filled.id))
        wait_for_quiet()
        assert texts("batch", filled.id) == ["64 32 32 0 None"]
    assert Archive.objects.values("worker").distinct().count() > 1


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "after"])
def test_the_leader_dies_between_the_last_end_and_the_callback(where: str, main_process: StartMain) -> None:
    """Killed while it inserts the callback, or when that is committed and nobody has been told: the next one calls it, once."""
    quick = {apps.QUICK_VARIABLE: "1"}
    first = main_process(env={apps.DIE_AT_BATCH_VARIABLE: where} | quick)
    with batch(on_complete=batch_ended) as filled:
        # Works with an on_complete end in transactions of their own, not in one with the end of the batch.
        filled.using(on_complete=work_ended).enqueue_many(note, [call(str(number)) for number in range(5)])
        filled.using(on_complete=work_ended).enqueue(fail)
    assert first.wait(PATIENCE) == -9
    assert not Work.objects.filter(batch_id=filled.id).exists()
    assert (Batch.objects.get().ended is None) == (where == "before")
    assert texts("batch", filled.id) == []
    main_process(env=quick)
    wait_until(lambda: texts("batch", filled.id))
    wait_for_quiet()
    assert texts("batch", filled.id) == ["6 5 1 0 None"]
    assert Archive.objects.filter(fn_type="callback").count() == 1


@pytest.mark.slow
def test_the_leader_dies_with_the_last_ends_of_its_own_process(main_process: StartMain) -> None:
    """They and the end of the batch are one transaction: all of it is undone, the works are lost, and the batch says so."""
    quick = {apps.QUICK_VARIABLE: "1"}
    first = main_process(env={apps.DIE_AT_BATCH_VARIABLE: "before"} | quick)
    with batch(on_complete=batch_ended) as filled:
        filled.enqueue(note, "lost")
        filled.using(retry=True).enqueue(note, "repeated")
    assert first.wait(PATIENCE) == -9
    main_process(env=quick)
    wait_until(lambda: texts("batch", filled.id))
    wait_for_quiet()
    assert texts("batch", filled.id) in (["2 1 1 0 None"], ["2 2 0 0 None"])


@pytest.mark.slow
def test_kills_at_any_moment(main_process: StartMain) -> None:
    """Of two processes the leader is killed as soon as a batch has no work left, again and again: each batch is told of once."""
    quick = {apps.QUICK_VARIABLE: "1"}
    ids = []
    mains = [main_process(env=quick)]
    for _ in range(4):
        mains.append(main_process(env=quick))
        mains[-1].wait_for("process_started", PATIENCE)
        with batch(on_complete=batch_ended) as filled:
            filled.using(retry=True).enqueue_many(nap, [call(0)] * 20)
        wait_until(lambda filled=filled: not Work.objects.filter(batch_id=filled.id).exists(), poll=0.001)
        mains.pop(0).kill()
        ids.append(filled.id)
    wait_until(lambda: all(texts("batch", one) for one in ids))
    wait_for_quiet()
    assert [texts("batch", one) for one in ids] == [["20 20 0 0 None"]] * 4


@pytest.mark.slow
def test_a_batch_of_ten_thousand_is_drained_with_its_callback(main_process: StartMain) -> None:
    """Nothing is kept of its works; the process ends by itself, and not before the callback."""
    Workpool().configure(max_parallelism=200)
    with batch(on_complete=batch_ended, name="many") as filled:
        filled.enqueue_many(nap, [call(0)] * 9_900)
        filled.enqueue_many(fail, [call()] * 50)
        filled.using(priority=-1).enqueue_many(nap, [call(0)] * 50)
    canceled = Work.objects.filter(batch_id=filled.id, priority=-1).values_list("id", flat=True)
    assert [Workpool().cancel(one) for one in canceled] == [True] * 50
    main = main_process("--drain", "--prefetch", "500", env={"DJANGO_SETTINGS_MODULE": "tests.works.settings_forgetful"})
    assert main.wait(90) == 0, main.output()
    assert texts("batch", filled.id) == ["10000 9900 50 50 None"]
    assert (left_over(), Archive.objects.count()) == ({}, 0)
    assert BatchFailure.objects.filter(batch_id=filled.id).count() in (0, 100), "pruned, or not yet"


def test_a_batch_is_canceled_while_it_runs(main_process: StartMain, tmp_path: Path) -> None:
    Workpool().configure(max_parallelism=2)
    main_process()
    with batch(on_complete=batch_ended) as filled:
        ids = filled.enqueue_many(hold, [call(str(tmp_path), str(number)) for number in range(200)])
    wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    assert filled.cancel() == 200
    wait_until(lambda: Archive.objects.filter(kind="canceled").count() == 198)
    assert running() == 2
    assert filled.status() == BatchStatus(name="", total=200, unfinished=2, succeeded=0, failed=0, canceled=198, ended=False)
    (tmp_path / "go").touch()
    results(ids)
    wait_until(lambda: texts("batch", filled.id))
    wait_for_quiet()
    assert texts("batch", filled.id) == ["200 2 0 198 None"]


def test_a_callback_that_fails_is_repeated_and_kept(main_process: StartMain) -> None:
    main_process(env={apps.QUICK_CALLBACKS_VARIABLE: "1"})
    with batch(on_complete=batch_breaks) as filled:
        filled.enqueue(note, "x")
    wait_until(lambda: ended(filled.id))
    wait_until(lambda: Archive.objects.filter(fn_type="callback").exists())
    kept = Archive.objects.get(fn_type="callback")
    assert (kept.kind, kept.attempts, kept.error, kept.callback_of) == ("failed", 5, "the batch's callback fails", filled.id)
    assert texts("batch", filled.id) == []
    wait_for_quiet()
