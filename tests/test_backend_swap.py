"""A project written for the framework's own ImmediateBackend is switched to the pool, and to the double, by settings alone."""

import json
from typing import Any

import pytest

pytest.importorskip("tests.background.shop", reason="no task framework: neither Django 6.0 nor django-tasks", exc_type=ImportError)

from django_workpool.models import Archive

from .conftest import StartMain


def seen(main_process: StartMain, settings: str) -> dict[str, Any]:
    """Return what the project sees with these settings."""
    observer = main_process(command="observe_shop", env={"DJANGO_SETTINGS_MODULE": f"tests.background.{settings}"})
    assert observer.wait(90) == 0, observer.output()
    (line,) = [line for line in observer.output().splitlines() if line.startswith("seen ")]
    return dict(json.loads(line.removeprefix("seen ")))


def test_a_project_sees_the_same_with_each_backend(main_process: StartMain) -> None:
    """Values, errors, attempts, context, times, and what is refused."""
    before = seen(main_process, "settings_immediate")
    assert (before["price"]["value"], before["price"]["status"]) == ({"sum": 3.5, "items": [[2, 1.5], [1, 4]]}, "SUCCESSFUL")
    assert before["invoice"]["value"] == [9, 1, "its id", "RUNNING", 1, [], "invoice"]
    assert before["refuse"]["errors"] == [["OutOfStock", "tests.background.shop.OutOfStock: order 10"]]
    assert before["refuse"]["traceback"] == [True]
    assert (before["leave"]["value"], before["strange"]["errors"][0][0]) == ("ValueError: Task failed", "TypeError")
    assert before["datetime"].startswith("TypeError: Unsupported type")
    assert all(before[name]["in order"] and before[name]["attempts"] == 1 for name in ("price", "ship", "invoice", "double", "refuse"))
    assert Archive.objects.count() == 0
    worker = main_process(env={"DJANGO_SETTINGS_MODULE": "tests.background.settings_pool"})
    worker.wait_for("process_started", 30)
    assert seen(main_process, "settings_pool") == before
    assert Archive.objects.count() == 9
    assert seen(main_process, "settings_double") == before
    assert Archive.objects.count() == 9
    worker.terminate()
    assert worker.wait(30) == 0, worker.output()
