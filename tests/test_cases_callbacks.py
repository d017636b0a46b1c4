"""Callbacks that fail, in every way: the work keeps its result, the failure is kept, and nothing is called twice."""

import json
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_workpool import RetryBehavior, Workpool, call, settle
from django_workpool.models import Archive

from .live import Live, failures, live_main, result, results, texts, times, transactional_db, wait_for_quiet, wait_until
from .works import apps
from .works.models import Child, Counter
from .works.tasks import break_down, count_up, dangle, ended, enqueue_next, fail_once, note, read_status, signature

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` for all tests of this module, which retries callbacks after moments."""
    folder = tmp_path_factory.mktemp("main")
    with live_main(django_db_blocker, test_database_url, folder, env={apps.QUICK_CALLBACKS_VARIABLE: "1"}) as running:
        yield running


def callback_work(work_id: uuid.UUID) -> Archive:
    """Wait until the callback work of a work has ended, and return it."""
    wait_until(lambda: Archive.objects.filter(callback_of=work_id).exists())
    return Archive.objects.get(callback_of=work_id)


def test_failing_callbacks_beside_others(live: Live) -> None:
    """Of 24 works that end together four have a callback that fails: the 24 succeed, the failures are kept, the others are called."""
    pool = Workpool()
    broken = [pool.using(on_complete=break_down, on_complete_context=how).enqueue(note, how) for how in ("value", "exit", "integrity")]
    broken.append(pool.using(on_complete=signature).enqueue(note, "signature"))
    good = pool.using(on_complete=read_status).enqueue_many(note, [call(str(number)) for number in range(20)])
    assert {(one.kind, one.attempts) for one in results([*broken, *good])} == {("success", 1)}
    assert {one.callback for one in results(good)} == {"done"}
    # Inside the callback the work has ended.
    assert [texts("status", one) for one in good] == [["finished:success"]] * 20
    classes = ("builtins.ValueError", "builtins.SystemExit", "django.db.utils.IntegrityError", "builtins.TypeError")
    for work_id, class_path in zip(broken, classes, strict=True):
        failed = callback_work(work_id)
        assert (failed.kind, failed.fn_type, failed.attempts) == ("failed", "callback", 5)
        kept = failures(failed.id)
        assert [one.class_path for one in kept] == [class_path] * 5
        assert "Traceback" in kept[0].traceback and "tasks.py" in kept[0].traceback
        wait_until(lambda work_id=work_id: result(work_id).callback == "failed")
        assert result(work_id).callback_error == failed.error
        assert (result(work_id).kind, result(work_id).error) == ("success", "")
    # What they inserted before they failed is gone.
    assert (Counter.objects.filter(name="taken").count(), texts("broken", broken[0])) == (0, [])
    wait_for_quiet()
    assert live.main.process.poll() is None


@pytest.mark.parametrize("func", [note, count_up])
def test_callback_that_leaves_a_dangling_reference(live: Live, func: Any) -> None:
    """The database finds it at the end of the transaction: the action, or mutation, ends once; the callback is kept as failed work."""
    work_id = Workpool().using(on_complete=dangle).enqueue(func, f"dangling after {func.__name__}")
    failed = callback_work(work_id)
    ended_work = result(work_id)
    assert (ended_work.kind, ended_work.attempts, ended_work.error) == ("success", 1, "")
    assert (failed.kind, failed.attempts) == ("failed", 5)
    assert {one.class_path for one in failures(failed.id)} == {"django.db.utils.IntegrityError"}
    assert (result(work_id).callback, Child.objects.count(), times("dangle", work_id)) == ("failed", 0, [])
    if func is note:
        assert len(times("note", "dangling after note")) == 1
    else:
        assert Counter.objects.get(name="dangling after count_up").value == 1
    wait_for_quiet()
    connection.check_constraints()


def test_callback_of_a_work_that_failed_first(live: Live) -> None:
    """It is called once, with the success."""
    ids = [Workpool().using(on_complete=ended, on_complete_context=key).enqueue(fail_once, key) for key in ("first", "second")]
    assert {(one.kind, one.attempts, one.callback) for one in results(ids)} == {("success", 2, "done")}
    assert [texts("ended", one) for one in ids] == [["success:first"], ["success:second"]]


def test_callback_that_enqueues(live: Live) -> None:
    """The work that it enqueues finds the row that it inserted, at the first attempt."""
    Workpool().using(on_complete=enqueue_next, on_complete_context="from a callback").enqueue(note, "x")
    wait_until(lambda: Archive.objects.filter(func_path="tests.works.tasks.get_row").exists())
    read = Archive.objects.get(func_path="tests.works.tasks.get_row")
    assert (read.kind, read.attempts, read.value) == ("success", 1, '"from a callback"')


def test_callback_waits_as_work_of_its_own_kind(live: Live) -> None:
    """Callback work is in a lane of its own: it is neither canceled nor counted with the works."""
    pool = Workpool()
    pool.configure(max_parallelism=0)
    try:
        work_id = pool.using(on_complete=ended, delay=timedelta(hours=1)).enqueue(note, "canceled while paused")
        assert pool.cancel(work_id)
        wait_until(lambda: texts("ended", work_id))
    finally:
        pool.configure(max_parallelism=10)
    assert texts("ended", work_id) == ["canceled:None"]
    callback = callback_work(work_id)
    assert (callback.kind, callback.fn_type, result(work_id).callback) == ("success", "callback", "done")


def test_callbacks_are_retried_with_the_default_behaviour() -> None:
    """The shorter wait is this module's process's own."""
    assert RetryBehavior.from_json(json.loads(settle.CALLBACK_RETRY)) == RetryBehavior()
