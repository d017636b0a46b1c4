"""The manuals say what the code has, and their examples run."""

import ast
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import load_command_class

import django_workpool
from django_workpool import Progress, conf, eventlog
from django_workpool.options import EnqueueOptions
from django_workpool.pools import Workpool
from django_workpool.prometheus import WorkpoolCollector
from django_workpool.site import status_url
from django_workpool.templatetags.workpool import workpool_progress
from django_workpool.types import RetryBehavior

from .works import tasks

ROOT = Path(__file__).parents[1]
PACKAGE = Path(django_workpool.__file__).parent
README = (ROOT / "README.md").read_text()
MAINTAINERS = (PACKAGE / "README.md").read_text()
SOURCE = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))


def workpool_progress_options() -> list[str]:
    """Return what the template tag takes, its context left out."""
    return [name for name in inspect.signature(workpool_progress).parameters if name != "context"]


@pytest.mark.parametrize("key", conf._KEYS)
def test_each_key_of_the_setting_is_in_the_manual(key: str) -> None:
    assert f"| `{key}` |" in README


@pytest.mark.parametrize("check", sorted(set(re.findall(r"workpool\.[EW]\d{3}", SOURCE))))
def test_each_check_is_in_the_manual(check: str) -> None:
    assert f"`{check}`" in README


def test_each_option_of_the_command_is_in_the_manual() -> None:
    declared = options_of("django_workpool", "workpool_main") - options_of("django.core", "check")
    assert {"--threads", "--pool", "--drain", "--grace"} <= declared
    for option in declared:
        assert f"`{option}" in README or option == "--skip-checks"


@pytest.mark.parametrize("name", [*inspect.signature(status_url).parameters, *workpool_progress_options()])
def test_each_option_of_the_links_and_of_the_bar_is_in_the_manual(name: str) -> None:
    section = README.partition("## Progress, and pages that show it")[2].partition("\n## ")[0]
    assert re.search(rf"\b{name}(?:=| |\))", section)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Progress)] + ["fraction"])
def test_what_is_told_of_progress_is_in_the_manual(field: str) -> None:
    assert f"`{field}`" in README


@pytest.mark.parametrize("path", sorted((PACKAGE / "management" / "commands").glob("workpool_*.py")), ids=lambda path: path.stem)
def test_each_command_and_its_options_are_in_the_manual(path: Path) -> None:
    assert f"`{path.stem}" in README
    common = options_of("django.core", "check") | {"--skip-checks"}
    for option in options_of("django_workpool", path.stem) - common:
        assert option in README, option


def options_of(app: str, name: str) -> set[str]:
    parser = load_command_class(app, name).create_parser("manage.py", name)
    return {option for action in parser._actions for option in action.option_strings}


@pytest.mark.parametrize("option", EnqueueOptions.__annotations__)
def test_each_option_of_an_enqueue_is_in_the_manual(option: str) -> None:
    assert f"`{option}`" in README


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(RetryBehavior)])
def test_each_argument_of_the_retry_is_in_the_manual(field: str) -> None:
    assert f"{field}=" in README


@pytest.mark.parametrize("name", [name for name in dir(Workpool) if not name.startswith("_") and name != "name"])
def test_each_method_of_a_pool_is_in_the_manual(name: str) -> None:
    # An async twin is known by its rule.
    assert f".{name}(" in README or (name.startswith("a") and f".{name[1:]}(" in README)


@pytest.mark.parametrize("event", sorted(set(re.findall(r'(?:eventlog\.log|\blog|it\.emit)\(\s*"(\w+)"', SOURCE))))
def test_each_event_is_in_the_manual(event: str) -> None:
    assert f"`{event}`" in README


def calls_of_events() -> Iterator[tuple[str, set[str], bool]]:
    """Yield each event that the code emits: its name, the fields that stand there, and whether others come to them."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in EMITS and isinstance(node.args[0], ast.Constant):
                fields = {keyword.arg for keyword in node.keywords if keyword.arg}
                yield node.args[0].value, fields, any(keyword.arg is None for keyword in node.keywords)


EMITS = ("eventlog.log", "log", "it.emit", "self.emit")
EVENTS = {
    row[0]: (row[1], set(re.findall(r"`(\w+)`", row[2])))
    for row in re.findall(
        r"^\| `(\w+)` \| ([^|]*) \| [^|]* \| (.*) \|$", README.partition("\n## Events")[2].partition("\n## ")[0], re.MULTILINE
    )
}


@pytest.mark.parametrize(("event", "fields", "more"), sorted(calls_of_events(), key=str))
def test_the_fields_of_each_event_are_in_the_manual(event: str, fields: set[str], more: bool) -> None:
    _, told = EVENTS[event]
    assert fields <= told and (more or event == "periodic_failed" or fields == told)


def test_the_manual_names_no_event_that_is_none() -> None:
    assert set(EVENTS) == {event for event, _, _ in calls_of_events()}


def test_each_metric_is_in_the_manual_with_its_labels() -> None:
    rows = re.findall(r"^\| (`workpool_\w+`.*?) \| (\w+) \|(.*?)\| .* \|$", README, re.MULTILINE)
    told = {name: (kind, re.findall(r"`(\w+)`", labels)) for names, kind, labels in rows for name in re.findall(r"`(\w+)`", names)}
    has = {}
    for metric in WorkpoolCollector().describe():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        has[name] = (metric.type, [label for label in metric._labelnames if label != "database"])
    assert told == has


def test_the_maintainers_manual_names_each_room_and_stays_short() -> None:
    assert MAINTAINERS.count("\n") <= 200
    for path in PACKAGE.rglob("*.py"):
        if path.parent in (PACKAGE, PACKAGE / "loop", PACKAGE / "runner", PACKAGE / "execution") and path.stem not in ("__init__",):
            assert path.stem in MAINTAINERS, f"{path.name} is not mentioned"


def test_the_floors_of_the_manual_are_those_of_the_test() -> None:
    from tests.test_structure import FLOORS

    told = re.search(r"holds it:\n(.*?)\n\n", MAINTAINERS, re.DOTALL)
    assert told
    floors = [set(part.split()) for part in told[1].rstrip(".").replace("\n", " ").split("·")]
    assert floors == [rooms - {"django_workpool"} for rooms in FLOORS]


@pytest.mark.django_db(transaction=True)
def test_the_example_of_a_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n([^`]*with batch.*?)```", README, re.DOTALL)
    module = types.ModuleType("testproject.imports.example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules["testproject.imports"], "example", module, raising=False)
    vars(module).update(read_file=tasks.note, paths=["a", "b"], first="c")
    exec(compile(block, module.__name__, "exec"), module.__dict__)  # noqa: S102
    status = vars(module)["b"].status()
    assert (status.name, status.total, status.unfinished) == ("import 7", 3, 3)


def test_links_inside_of_the_manual_lead_somewhere_and_its_contents_name_each_section() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    headings = re.findall(r"^##+ (.*)$", prose, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    linked = re.findall(r"\]\(#([^)]+)\)", prose)
    assert set(linked) <= set(anchors)
    contents = re.findall(r"\]\(#([^)]+)\)", prose.partition("\n## ")[0])
    assert contents == anchors


def test_the_level_of_events_follows_the_rows(caplog: pytest.LogCaptureFixture) -> None:
    """A pool's row decides which of its events are written."""
    caplog.set_level(10, logger="django_workpool.events")
    eventlog.set_levels("default", {"default": "ERROR"})
    try:
        eventlog.log("started", "INFO", "default")
        eventlog.log("wedged", "ERROR", "default")
    finally:
        eventlog.set_levels("default", {"default": ""})
    assert [record.getMessage().split()[0] for record in caplog.records] == ["event=wedged"]


def test_what_the_manual_says_of_the_dashboard_is_so() -> None:
    from django.urls import reverse

    from django_workpool.admin import looks, overview

    told = README.partition("## The dashboard")[2].partition("\n## ")[0]
    assert f"`{reverse('admin:workpool_dashboard')}`" in told
    assert f"its {overview.WAITING_MAX} oldest works" in told
    assert (looks.NOW_FOR, [window.step for window in looks.WINDOWS.values()]) == (1, [1, 15, 120]), "for a second, 15 seconds, two minutes"
