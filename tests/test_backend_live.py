"""Tasks of the framework, run by real processes: results from any process, attempts, context, signals, other executors."""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

pytest.importorskip("tests.background.tasks", reason="no task framework: neither Django 6.0 nor django-tasks", exc_type=ImportError)

from django_workpool import Workpool
from django_workpool.models import Archive
from tests.background import framework
from tests.background import tasks as background
from tests.background.apps import SIGNALS_VARIABLE
from tests.works.models import Event

from .live import PATIENCE, Live, live_main, texts, transactional_db, wait_for_quiet, wait_until

__all__ = ["transactional_db"]

pytestmark = pytest.mark.usefixtures("transactional_db")
HOW = {"threads": ("--threads", "4"), "processes": ("--processes", "2")}


@pytest.fixture(scope="module", params=HOW)
def live(request: Any, django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp(f"backend-{request.param}")
    env = {SIGNALS_VARIABLE: "1", "WORKPOOL_TEST_QUICK": "1"}
    with live_main(django_db_blocker, test_database_url, folder, *HOW[request.param], env=env) as live:
        yield live


def ended(result: Any, seconds: float = PATIENCE) -> Any:
    """Wait until a task has ended, and return its result, read anew."""

    def over() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_until(over, seconds)
    return background.framework().default_task_backend.get_result(result.id)


def signals(result: Any, count: int) -> list[dict[str, Any]]:
    """Wait until the processes have heard so many signals of a task, and return them in their order."""
    wait_until(lambda: len(texts("signal", result.id)) >= count)
    return [json.loads(text) for text in texts("signal", result.id)]


def test_a_result_has_what_the_documentation_says() -> None:
    result = background.give_back.using(priority=7, queue_name="imports").enqueue({"a": (1, 2.5, None)})
    assert (result.status, result.is_finished, result.attempts, result.started_at) == ("READY", False, 0, None)
    found = ended(result)
    assert found.status == framework().TaskResultStatus.SUCCESSFUL
    assert found.return_value == {"a": [1, 2.5, None]} == result.return_value
    assert (found.id, found.args, found.kwargs, found.backend) == (result.id, [{"a": [1, 2.5, None]}], {}, "default")
    assert (found.task.func, found.task.priority, found.task.queue_name) == (background.give_back.func, 7, "imports")
    assert found.task == result.task
    assert found == result
    assert found.enqueued_at <= found.started_at == found.last_attempted_at <= found.finished_at
    assert (found.attempts, found.errors) == (1, [])
    assert found.worker_ids == [Archive.objects.get(id=found.id).worker]


@pytest.mark.parametrize("name", ["noop", "noop_async"])
def test_sync_and_async_tasks_take_what_they_are_given(name: str) -> None:
    found = ended(getattr(background, name).enqueue(1, two=3))
    assert (found.status, found.return_value, found.args, found.kwargs, found.attempts) == ("SUCCESSFUL", None, [1], {"two": 3}, 1)


@pytest.mark.parametrize(("name", "kind"), [("fail_value", ValueError), ("fail_exit", SystemExit)])
def test_what_a_task_raises_is_its_error(name: str, kind: type[BaseException]) -> None:
    task = getattr(background, name)
    result = task.enqueue()
    found = ended(result)
    assert (found.status, found.attempts, len(found.errors)) == ("FAILED", 1, 1)
    assert found.errors[0].exception_class is kind
    assert found.errors[0].traceback.startswith("Traceback (most recent call last):\n")
    assert found.errors[0].traceback.endswith(f"{kind.__name__}: This task failed due to {kind.__name__}\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = found.return_value
    assert found.enqueued_at <= found.started_at == found.last_attempted_at <= found.finished_at


def test_an_exception_may_hold_anything() -> None:
    found = ended(background.fail_complex.enqueue())
    assert found.errors[0].exception_class is ValueError
    assert 'ValueError(ValueError("This task failed"))' in found.errors[0].traceback


def test_a_value_that_is_not_json_fails_the_task() -> None:
    found = ended(background.return_complex.using(retry=True).enqueue())
    assert (found.status, found.attempts, found._return_value) == ("FAILED", 1, None)
    assert found.errors[0].exception_class is TypeError
    assert "Unsupported type" in found.errors[0].traceback


def test_the_context_tells_of_the_attempt_that_runs() -> None:
    result = background.look.using(priority=-3).enqueue(key="k")
    found = ended(result)
    told = found.return_value
    assert (told["attempt"], told["id"], told["status"], told["args"], told["key"]) == (1, result.id, "RUNNING", [], "k")
    assert (told["workers"], told["errors"], told["atomic"]) == (found.worker_ids, [], False)
    assert (told["priority"], told["queue"], told["backend"]) == (-3, "default", "default")
    assert told["started"] == told["last"] == found.started_at.isoformat()
    assert told["enqueued"] == found.enqueued_at.isoformat() == result.enqueued_at.isoformat()
    assert ended(background.look_async.enqueue("a")).return_value["attempt"] == 1


def test_each_failed_attempt_leaves_an_error_and_each_attempt_a_worker() -> None:
    result = background.third_time.enqueue("k")
    found = ended(result)
    assert (found.status, found.return_value, found.attempts) == ("SUCCESSFUL", 3, 3)
    assert [error.exception_class for error in found.errors] == [ValueError, KeyError]
    assert "attempt 2 of k" in found.errors[1].traceback
    assert len(set(found.worker_ids)) == 1
    assert found.started_at < found.last_attempted_at <= found.finished_at
    heard = signals(result, 4)
    assert [one["signal"] for one in heard] == ["task_started"] * 3 + ["task_finished"]
    assert [one["attempts"] for one in heard] == [1, 2, 3, 3]
    assert [one["errors"] for one in heard] == [[], ["builtins.ValueError"], ["builtins.ValueError", "builtins.KeyError"]] + [
        heard[2]["errors"]
    ]
    assert (heard[3]["status"], heard[3]["value"], heard[3]["finished"], heard[3]["raised"]) == ("SUCCESSFUL", 3, True, None)


@pytest.mark.parametrize("name", ["fail_value", "fail_async"])
def test_the_signal_of_the_end_comes_after_it_with_the_exception_live(name: str) -> None:
    args = ["k"] if name == "fail_async" else []
    result = getattr(background, name).enqueue(*args)
    attempts = 2 if name == "fail_async" else 1
    heard = signals(result, attempts + 1)
    assert [one["signal"] for one in heard] == ["task_started"] * attempts + ["task_finished"]
    assert {one["sender"] for one in heard} == {"django_workpool.backend.pool.WorkpoolBackend"}
    assert [one["raised"] for one in heard[:-1]] == [None] * attempts
    end = heard[-1]
    assert end["raised"] == {"fail_value": "ValueError: This task failed due to ValueError", "fail_async": "LookupError: no k"}[name]
    assert name in end["frames"]
    assert (end["status"], end["finished"], end["attempts"], len(end["errors"])) == ("FAILED", True, attempts, attempts)
    row = Event.objects.get(name="signal", key=result.id, text__contains="task_finished")
    assert row.at >= Archive.objects.get(id=result.id).finished.timestamp() - 1
    assert ended(result).status == "FAILED"


def test_a_receiver_that_raises_harms_nobody(live: Live) -> None:
    result = background.annoying.enqueue()
    assert ended(result).return_value == "done"
    assert [one["signal"] for one in signals(result, 2)] == ["task_started", "task_finished"]
    assert ended(background.meaning.enqueue()).return_value == 42
    wait_until(lambda: "SystemExit: a receiver" in live.main.output())
    assert f"a receiver of a signal of task {result.id} raised" in live.main.output()


def test_a_task_can_have_an_on_complete_of_the_pool() -> None:
    result = background.meaning.using(on_complete=background.task_ended, on_complete_context={"n": 1}).enqueue()
    assert ended(result).return_value == 42
    assert texts("task ended", result.id) == ["success:42::{'n': 1}"]
    assert len(signals(result, 2)) == 2
    failed = background.fail_value.using(on_complete=background.task_ended).enqueue()
    ended(failed)
    assert texts("task ended", failed.id) == ["failed:None:This task failed due to ValueError:None"]


def test_a_task_that_runs_is_running_in_every_process(tmp_path: Path) -> None:
    result = background.hold_task.enqueue(str(tmp_path), "h")
    wait_until((tmp_path / "begun-h").exists)
    found = framework().default_task_backend.get_result(result.id)
    assert (found.status, found.attempts, found.finished_at, found.is_finished) == ("RUNNING", 1, None, False)
    assert found.started_at == found.last_attempted_at is not None
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = found.return_value
    (tmp_path / "go").touch()
    assert ended(result).worker_ids == found.worker_ids


def test_a_canceled_task_has_failed_with_work_canceled(tmp_path: Path) -> None:
    from django_workpool import WorkCanceled

    waiting = background.noop.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    assert Workpool().cancel(waiting.id)
    found = ended(waiting)
    assert (found.status, found.attempts, found.started_at, found.worker_ids) == ("FAILED", 0, None, [])
    assert [error.exception_class for error in found.errors] == [WorkCanceled]
    assert found.errors[0].exception_class_path == "django_workpool.exceptions.WorkCanceled"
    running = background.fail_when_told.enqueue(str(tmp_path), "c")
    wait_until((tmp_path / "begun-c").exists)
    assert Workpool().cancel(running.id)
    (tmp_path / "go").touch()
    found = ended(running)
    assert [error.exception_class for error in found.errors] == [ValueError, WorkCanceled]
    assert (found.attempts, len(found.worker_ids)) == (1, 1)


def test_a_task_is_enqueued_in_the_transaction_of_the_caller() -> None:
    with transaction.atomic():
        row = Event.objects.create(name="row", key="seen", at=0)
        result = background.read_row.enqueue(row.pk)
        assert background.read_row.get_result(result.id).status == "READY"
    assert ended(result).return_value == "seen"
    with pytest.raises(KeyError), transaction.atomic():
        gone = background.noop.enqueue()
        raise KeyError
    with pytest.raises(framework("exceptions").TaskResultDoesNotExist):
        gone.refresh()


def test_the_higher_priority_starts_first(tmp_path: Path) -> None:
    """Behind one that keeps the only slot until all are there."""
    pool = Workpool("imports")
    pool.configure(max_parallelism=1)
    first = background.hold_task.using(queue_name="imports").enqueue(str(tmp_path), "first")
    wait_until((tmp_path / "begun-first").exists)
    task = background.note_order.using(queue_name="imports")
    results = [task.using(priority=priority).enqueue(str(priority)) for priority in (-100, 0, 7, 100, 3)]
    # The loop looks at everything once a second.
    seen = time.monotonic() + 1.5
    wait_until(lambda: time.monotonic() > seen)
    (tmp_path / "go").touch()
    for result in (first, *results):
        assert ended(result).status == "SUCCESSFUL"
    pool.configure(max_parallelism=10)
    order = sorted(results, key=lambda result: result.started_at)
    assert [result.task.priority for result in order] == [100, 7, 3, 0, -100]


def test_run_after_is_held(live: Live) -> None:
    due = timezone.now() + timedelta(seconds=1)
    found = ended(background.noop.using(run_after=due).enqueue())
    assert found.started_at >= due


def test_a_task_of_another_alias_is_found_by_the_worker() -> None:
    result = background.elsewhere.using(backend="default").enqueue("k")
    found = ended(result)
    assert (found.return_value, found.backend) == ("elsewhere k", "default")
    assert found == result
    assert [one["signal"] for one in signals(result, 2)] == ["task_started", "task_finished"]


def test_the_pool_takes_a_task_where_it_takes_a_function() -> None:
    ids = Workpool("imports").enqueue_many(background.give_back, [background_call(n) for n in range(3)])
    backend = framework().default_task_backend
    assert [ended(backend.get_result(str(one))).return_value for one in ids] == [0, 1, 2]


def background_call(number: int) -> Any:
    from django_workpool import call

    return call(number)


def test_a_lost_process_is_an_error_with_a_class_of_its_own(live: Live, request: Any) -> None:
    if "processes" not in request.node.callspec.id:
        pytest.skip("it would take the main process along")
    from django_workpool.exceptions import WorkerLost

    found = ended(background.die_once.enqueue("k"))
    assert (found.return_value, found.attempts) == (2, 2)
    assert [error.exception_class for error in found.errors] == [WorkerLost]
    assert "worker process lost" in found.errors[0].traceback


def test_async_twins_work(live: Live) -> None:
    from asgiref.sync import async_to_sync

    async def through() -> Any:
        result = await background.look_async.aenqueue("twin")
        found = await background.look_async.aget_result(result.id)
        assert found.id == result.id
        await result.arefresh()
        return result

    assert ended(async_to_sync(through)()).return_value["key"] == "twin"


def test_nothing_is_left_behind() -> None:
    wait_for_quiet()
    assert uuid.UUID(background.noop.enqueue().id).version == 7
    wait_for_quiet()
