"""The doubles: settings alone, and a test has the results of its tasks at once, or none of them, with all that the pool would refuse."""

from datetime import datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("tests.background.tasks", reason="no task framework: neither Django 6.0 nor django-tasks", exc_type=ImportError)

from asgiref.sync import async_to_sync
from django.utils import timezone

from django_workpool import InvalidWork
from django_workpool.backend import WorkpoolDummyBackend, WorkpoolImmediateBackend, doubles
from django_workpool.models import Work
from tests.background import framework
from tests.background import tasks as background
from tests.works.models import Event

from .live import texts
from .test_backend import InvalidTask

pytestmark = pytest.mark.django_db


@pytest.fixture
def immediate(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_workpool.backend.WorkpoolImmediateBackend"}}


@pytest.fixture
def dummy(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_workpool.backend.WorkpoolDummyBackend"}}


def test_the_immediate_one_retries_and_calls_back(immediate: None) -> None:
    result = background.third_time.using(on_complete=background.task_ended, on_complete_context=["c"], priority=9).enqueue("k")
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 3)
    assert [error.exception_class for error in result.errors] == [ValueError, KeyError]
    assert "attempt 1 of k" in result.errors[0].traceback
    assert texts("task ended", result.id) == ["success:3::['c']"]
    assert framework().default_task_backend.get_result(result.id) is result
    assert Work.objects.count() == 0
    result.refresh()
    assert result.attempts == 3


def test_the_immediate_one_fails_as_the_pool_does(immediate: None) -> None:
    result = background.fail_value.using(on_complete=background.task_ended).enqueue()
    assert (result.status, result.attempts, texts("task ended", result.id)) == (
        "FAILED",
        1,
        ["failed:None:This task failed due to ValueError:None"],
    )
    assert background.return_complex.using(max_attempts=3).enqueue().attempts == 1
    assert background.fail_exit.using(max_attempts=2).enqueue().attempts == 2
    assert async_to_sync(background.fail_async.aenqueue)("k").attempts == 2


def test_an_on_complete_that_raises_does_not_change_the_end(immediate: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*args: Any) -> None:
        Event.objects.create(name="half", key="", at=0)
        raise ValueError("the callback")

    monkeypatch.setattr(background, "record", record)
    assert background.meaning.using(on_complete=background.task_ended).enqueue().return_value == 42
    assert Event.objects.count() == 0


def test_what_is_waited_for_does_not_matter_to_the_immediate_one(immediate: None) -> None:
    later = timezone.now() + timedelta(days=1)
    assert background.meaning.using(run_after=later, queue_name="imports").enqueue().return_value == 42
    assert background.meaning.using(delay=timedelta(days=1)).enqueue().return_value == 42


def test_the_immediate_one_sends_the_signals(immediate: None) -> None:
    import sys

    heard: list[Any] = []

    def hear(sender: Any, task_result: Any, signal: Any, **kwargs: Any) -> None:
        heard.append((sender, task_result.status.value, task_result.attempts, type(sys.exc_info()[1]).__name__))

    signals = framework("signals")
    three = (signals.task_enqueued, signals.task_started, signals.task_finished)
    for signal in three:
        signal.connect(hear)
    try:
        background.fail_value.using(max_attempts=2).enqueue()
    finally:
        for signal in three:
            signal.disconnect(hear)
    ours = WorkpoolImmediateBackend
    assert heard == [
        (ours, "READY", 0, "NoneType"),
        (ours, "RUNNING", 1, "NoneType"),
        (ours, "RUNNING", 2, "NoneType"),
        (ours, "FAILED", 2, "ValueError"),
    ]


def test_the_immediate_one_keeps_a_thousand_results(immediate: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubles, "KEPT", 3)
    results = [background.noop.enqueue() for _ in range(5)]
    backend = framework().default_task_backend
    assert async_to_sync(backend.aget_result)(results[2].id) is results[2]
    for unknown in (results[1].id, "x", None, []):
        with pytest.raises(framework("exceptions").TaskResultDoesNotExist):
            backend.get_result(unknown)


def test_the_dummy_one_keeps_what_would_have_been_enqueued(dummy: None) -> None:
    backend = framework().default_task_backend
    assert type(framework().task_backends["default"]) is WorkpoolDummyBackend
    result = background.third_time.using(retry=True).enqueue((1,))
    assert backend.results == [result]
    assert (result.status, result.args, result.task.options["max_attempts"]) == ("READY", [[1]], 3)
    assert backend.get_result(result.id) == result
    backend.clear()
    assert backend.results == []


@pytest.mark.parametrize("double", ["immediate", "dummy"])
def test_they_refuse_what_the_pool_refuses(double: str, request: Any) -> None:
    request.getfixturevalue(double)
    for argument, error in ((datetime(2026, 1, 1), TypeError), ({1: 2}, TypeError), (float("inf"), InvalidWork), ("\0", InvalidWork)):
        with pytest.raises(error):
            background.give_back.enqueue(argument)
    with pytest.raises(InvalidTask, match="on_complete"):
        background.noop.using(on_complete=background.noop.func).enqueue()
    with pytest.raises(InvalidTask, match="Queue 'unknown' is not valid"):
        background.noop.using(queue_name="unknown")
    with pytest.raises(InvalidTask, match="Unknown option"):
        background.noop.using(retri=True)
    assert list(framework().task_backends["default"].check()) == []
