"""From the rows of a work, whatever they say, to the result of a task. No process runs anything here."""

import json
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tests.background.tasks", reason="no task framework: neither Django 6.0 nor django-tasks", exc_type=ImportError)

from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_workpool import WorkCanceled, Workpool, action, exceptions
from django_workpool.backend.results import ERRORS_MAX, UNTOLD, StoredError, exception_class
from django_workpool.models import Archive, Attempt, PendingCompletion, PendingStart, RunningWork, Work, Worker
from tests.background import framework
from tests.background.tasks import give_back, look, noop

pytestmark = pytest.mark.django_db(transaction=True)

TaskResultDoesNotExist = framework("exceptions").TaskResultDoesNotExist
TaskResultMismatch = framework("exceptions").TaskResultMismatch
NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)


def at(minute: float) -> datetime:
    """Return a time after the enqueue."""
    return NOON + timedelta(minutes=minute)


def get(result: Any) -> Any:
    """Return the result as the backend finds it now."""
    return framework().default_task_backend.get_result(result.id)


def attempt(result: Any, number: int, path: str = "builtins.ValueError", **values: Any) -> None:
    """Insert a failed attempt that began at the minute of its number."""
    told = {"text": f"text {number}", "traceback": f"Traceback {number}\n", "worker": f"host:{number}", "started": at(number)}
    Attempt.objects.create(work_id=result.id, number=number, class_path=path, ended=at(number + 0.5), **{**told, **values})


def start(result: Any, minute: float, host: str = "there") -> RunningWork:
    """Let a work run, on a worker."""
    PendingStart.objects.filter(work_id=result.id).delete()
    worker = Worker.objects.create(process=uuid.uuid4(), host=host, pid=7, capacity=1, async_capacity=1, started=NOON, beat=NOON)
    return RunningWork.objects.create(work_id=result.id, pool="default", worker_id=worker.id, due=1, started=at(minute))


def finish(result: Any, kind: str, attempts: int, **values: Any) -> None:
    """Let a work end."""
    work = Work.objects.get(id=result.id)
    Archive.objects.create(
        **{name: getattr(work, name) for name in ("id", "pool", "fn_type", "func_path", "name", "arguments", "priority", "created")},
        **{"kind": kind, "attempts": attempts, "started": at(attempts), "finished": at(attempts + 1), "worker": "last:1", **values},
    )
    work.delete()


def test_a_work_that_waits() -> None:
    result = noop.enqueue(1)
    assert get(result) == result
    due = (timezone.now() + timedelta(days=1)).replace(microsecond=300_000)
    deferred = noop.using(run_after=due).enqueue()
    assert get(deferred) == deferred
    assert noop.get_result(result.id) == result == async_to_sync(noop.aget_result)(result.id)


def test_a_work_that_runs_its_third_attempt() -> None:
    result = noop.enqueue()
    attempt(result, 1)
    attempt(result, 2, "builtins.KeyError")
    Work.objects.update(attempts=2)
    start(result, 3)
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == ("RUNNING", 3, ["host:1", "host:2", "there:7"])
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (at(1), at(3), None)
    assert [(error.exception_class, error.traceback) for error in result.errors] == [
        (ValueError, "Traceback 1\n"),
        (KeyError, "Traceback 2\n"),
    ]


def test_an_attempt_that_has_failed_and_will_be_followed() -> None:
    result = noop.enqueue()
    start(result, 1)
    attempt(result, 1)
    Work.objects.update(attempts=1)
    PendingCompletion.objects.create(work_id=result.id, pool="default", segment=1, kind="failed", follow="retry")
    waiting = get(result)
    assert (waiting.status, waiting.worker_ids, waiting.started_at, waiting.last_attempted_at) == ("READY", ["host:1"], at(1), at(1))
    # The next one has begun, and failed, between two statements: it is not of this moment.
    attempt(result, 2)
    assert get(result) == waiting


def test_a_success_after_failures() -> None:
    result = give_back.enqueue(1)
    attempt(result, 1, traceback="")
    finish(result, "success", 2, value="[1, 2]")
    found = get(result)
    assert (found.status, found.return_value, found.worker_ids) == ("SUCCESSFUL", [1, 2], ["host:1", "last:1"])
    assert (found.started_at, found.last_attempted_at, found.finished_at) == (at(1), at(2), at(3))
    assert found.errors[0].traceback == "builtins.ValueError: text 1\n"


def test_a_failure_and_a_cancelation() -> None:
    result, other, never = noop.enqueue(), noop.enqueue(), noop.enqueue()
    attempt(result, 1)
    attempt(result, 2)
    finish(result, "failed", 2, error="text 2")
    assert (get(result).status, get(result).worker_ids, len(get(result).errors)) == ("FAILED", ["host:1", "host:2"], 2)
    attempt(other, 1)
    finish(other, "canceled", 1, error="canceled", started=None, worker="")
    found = get(other)
    assert [error.exception_class for error in found.errors] == [ValueError, WorkCanceled]
    assert (found.errors[1].traceback, found.worker_ids) == ("django_workpool.exceptions.WorkCanceled: canceled\n", ["host:1"])
    assert (found.started_at, found.last_attempted_at) == (at(1), at(1))
    # It was told so, and has stopped.
    told = noop.enqueue()
    attempt(told, 1, "django_workpool.exceptions.WorkCanceled")
    finish(told, "canceled", 1, error="canceled", worker="host:1")
    assert [error.traceback for error in get(told).errors] == ["Traceback 1\n"]
    assert (get(told).worker_ids, get(told).attempts) == (["host:1"], 1)
    # Nobody knew its function.
    attempt(never, 1, "django_workpool.exceptions.UnregisteredFunction", worker="", started=None)
    finish(never, "failed", 1, error="text 1", started=None, worker="")
    found = get(never)
    assert (found.status, found.attempts, found.started_at) == ("FAILED", 0, None)
    assert found.errors[0].exception_class is exceptions.UnregisteredFunction


def test_a_work_with_thousands_of_attempts_has_the_errors_of_the_last() -> None:
    result = noop.enqueue()
    for number in (1, *range(2_900, 3_001)):
        attempt(result, number)
    Work.objects.update(attempts=3_000)
    start(result, 3_001)
    found = get(result)
    assert (found.attempts, len(found.errors), found.started_at) == (3_001, ERRORS_MAX, at(1))
    assert [found.worker_ids[index] for index in (0, 1, 2_899, 2_900, 3_000)] == ["host:1", UNTOLD, UNTOLD, "host:2901", "there:7"]
    assert found.errors[0].traceback == "Traceback 2901\n"


def test_it_takes_three_statements_at_most() -> None:
    waiting, ended = noop.enqueue(), noop.enqueue()
    attempt(ended, 1)
    finish(ended, "failed", 1)
    for result, most in ((waiting, 1), (ended, 3)):
        with CaptureQueriesContext(connection) as captured:
            get(result)
        assert len(captured) <= most


@action
def no_task() -> None:
    """Be an action that is no task."""


def test_what_is_no_result_of_a_task() -> None:
    backend = framework().default_task_backend
    plain = Workpool().enqueue(no_task)
    gone = noop.enqueue()
    Work.objects.filter(id=gone.id).update(func_path="tests.background.tasks.gone")
    outside = noop.enqueue()
    Work.objects.filter(id=outside.id).update(func_path="os.system")
    callback = noop.enqueue()
    Work.objects.filter(id=callback.id).update(fn_type="callback")
    for unknown in ("123", 123, None, "", "x" * 70, str(uuid.uuid4()), str(plain), gone.id, outside.id, callback.id):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(unknown)
        with pytest.raises(TaskResultDoesNotExist):
            async_to_sync(backend.aget_result)(unknown)
    with pytest.raises(TaskResultMismatch):
        look.get_result(noop.enqueue().id)


def test_times_are_naive_where_all_are(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Shanghai"
    result = noop.enqueue()
    assert result.enqueued_at.tzinfo is None
    assert get(result) == result
    assert abs(result.enqueued_at - Work.objects.get().created) < timedelta(seconds=5)


def test_a_clock_ahead_of_the_database_does_not_turn_the_order_round() -> None:
    result = noop.enqueue()
    finish(result, "success", 1, started=datetime(2020, 1, 1, tzinfo=UTC), finished=datetime(2020, 1, 2, tzinfo=UTC))
    found = get(result)
    assert found.enqueued_at == found.started_at < found.finished_at


def test_what_a_row_calls_an_error_is_only_data(tmp_path: Path) -> None:
    """Case C077: nothing is called, nothing is imported, and what is no exception is refused."""
    mark = tmp_path / "called"
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil(Exception): pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        result = noop.enqueue()
        for number, path in enumerate(("os.system", "evil_module.Evil", "builtins.eval", "subprocess.Popen", "", "..", "a"), start=1):
            attempt(result, number, path, text=json.dumps([f"touch {mark}"]), traceback="gASVAAAA\n")
        finish(result, "failed", 7)
        refused = [_refused(error) for error in get(result).errors]
    finally:
        sys.path.remove(str(tmp_path))
    assert refused == [ValueError, ImportError, ValueError, ValueError, ImportError, ImportError, ImportError]
    assert not mark.exists() and "evil_module" not in sys.modules


def _refused(error: StoredError) -> type[Exception]:
    with pytest.raises((ValueError, ImportError)) as caught:
        _ = error.exception_class
    return caught.type


class Outer:
    """Holds a class."""

    class Inner(Exception):
        """An exception in a class."""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("builtins.ValueError", lambda: ValueError),
        ("json.decoder.JSONDecodeError", lambda: json.JSONDecodeError),
        (f"{__name__}.Outer.Inner", lambda: Outer.Inner),
        ("django_workpool.WorkerLost", lambda: exceptions.WorkerLost),
        ("django_workpool.ExecutorLost", lambda: exceptions.ExecutorLost),
        ("django_workpool.Interrupted", lambda: exceptions.Interrupted),
        ("django_workpool.Conflict", lambda: exceptions.Conflict),
        ("django_workpool.NotStored", lambda: exceptions.NotStored),
        ("django_workpool.exceptions.WorkCanceled", lambda: WorkCanceled),
    ],
)
def test_classes_of_errors_are_found(path: str, found: Callable[[], type[BaseException]]) -> None:
    from django.utils.module_loading import import_string

    assert exception_class(path) is found()
    if path.startswith("django_workpool."):
        assert import_string(path) is found()
        assert f"{found().__module__}.{found().__qualname__}" == path


def test_a_module_of_an_installed_app_is_imported_for_its_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tests.background.shop", raising=False)
    assert exception_class("tests.background.shop.OutOfStock").__name__ == "OutOfStock"
    with pytest.raises(ImportError, match="nothing is imported"):
        exception_class("antigravity.Evil")
    assert "antigravity" not in sys.modules
    with pytest.raises(ImportError, match="there is no"):
        exception_class("django_workpool.Workpools")


@pytest.mark.parametrize("raises", ["SystemExit(1)", "RuntimeError()", "ImportError()"])
def test_a_module_that_cannot_be_imported_has_no_exception(raises: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case C077: a row may name any module of an installed app, a script that ends its process, too."""
    (tmp_path / "script.py").write_text(f"raise {raises}")
    monkeypatch.setattr("tests.background.__path__", [str(tmp_path)])
    with pytest.raises(ImportError):
        exception_class("tests.background.script.Evil")
