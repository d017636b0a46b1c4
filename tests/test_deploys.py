"""Two versions of a project side by side, as while it is deployed."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings

from django_workpool import Workpool, call
from django_workpool.health import why
from django_workpool.models import Archive, PendingStart, Work

from .conftest import StartMain
from .live import PATIENCE, results, running, value, wait_for_quiet, wait_until
from .works.models import Event
from .works.tasks import hold, note

NEW = "import os\nfrom django_workpool import action\n\n@action\ndef fresh() -> int:\n    return os.getpid()\n"


def releases(folder: Path, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, **texts: str) -> dict[str, dict[str, str]]:
    """Write the module ``release.works`` of each version, import that of the new one here; return the environment of each."""
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests", "release"]}, "imports": {}}
    paths = {}
    for version, text in texts.items():
        package = folder / version / "release"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "works.py").write_text(text)
        paths[version] = {"PYTHONPATH": str(package.parent), "DJANGO_SETTINGS_MODULE": "tests.works.settings_release"}
    for name in [name for name in sys.modules if name.partition(".")[0] == "release"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder / "new"))
    return paths


def test_a_new_function_waits_for_the_new_version_and_runs_there_only(
    main_process: StartMain, settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old version holds what it does not know, fails none of it, and goes on with what it knows."""
    paths = releases(tmp_path, settings, monkeypatch, old="", new=NEW)
    old = main_process(env=paths["old"])
    early = Workpool().enqueue_many("release.works.fresh", [call()] * 3)
    results(Workpool().enqueue_many(note, [call(str(number)) for number in range(5)]))
    wait_until(lambda: Work.objects.filter(held_since__isnull=False).count() == 3)

    new = main_process(env=paths["new"])
    new.wait_for("process_started", PATIENCE)
    assert {value(one) for one in early} == {new.process.pid}
    late = Workpool().enqueue_many("release.works.fresh", [call()] * 10)
    notes = Workpool().enqueue_many(note, [call(f"late{number}") for number in range(10)])
    assert {value(one) for one in late} == {new.process.pid}
    assert {one.kind for one in results(notes)} == {"success"}
    # The old version goes: the new one leads, and does everything.
    old.terminate()
    assert old.wait(PATIENCE) == 0
    assert {value(one) for one in Workpool().enqueue_many("release.works.fresh", [call()] * 3)} == {new.process.pid}
    assert not Archive.objects.exclude(kind="success").exists()
    wait_for_quiet()


def test_a_function_that_becomes_another_kind_runs_where_it_is_that(
    main_process: StartMain, settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An action becomes a mutation: what is enqueued as either goes to the version that has it as such, and fails in none."""
    paths = releases(tmp_path, settings, monkeypatch, old=NEW, new=NEW.replace("action", "mutation"))
    old = main_process(env=paths["old"])
    mutations = Workpool().enqueue_many("release.works.fresh", [call()] * 3)
    wait_until(lambda: Work.objects.filter(id__in=mutations, held_since__isnull=False).count() == 3)
    told = why("default", mutations)[mutations[0]].text
    assert told.startswith("no live worker knows release.works.fresh as a mutation: held since ")

    new = main_process(env=paths["new"])
    assert {value(one) for one in mutations} == {new.process.pid}
    # As the old version enqueues.
    actions = Workpool().using(delay=timedelta(seconds=1)).enqueue_many("release.works.fresh", [call(), call()])
    assert Work.objects.filter(id__in=actions).update(fn_type="action") == 2
    assert {value(one) for one in actions} == {old.process.pid}
    wait_for_quiet()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["--threads", "--processes"])
def test_works_that_wait_in_a_process_beyond_those_that_run_survive_its_end(where: str, main_process: StartMain, tmp_path: Path) -> None:
    """The first signal gives them back, uncounted; whoever comes next runs each of them once."""
    Workpool().configure(max_parallelism=60)
    blocker = Workpool().using(priority=1).enqueue(hold, str(tmp_path), "blocker")
    notes = Workpool().enqueue_many(note, [call(f"{number}") for number in range(50)])
    main = main_process(where, "1", "--prefetch", "60", "--grace", "20")
    wait_until(lambda: running() == 51 and (tmp_path / "begun-blocker").exists())
    main.terminate()
    wait_until(lambda: PendingStart.objects.count() == 50)
    assert set(Work.objects.values_list("attempts", "returns")) == {(0, 0)}
    (tmp_path / "go").touch()
    assert main.wait(PATIENCE) == 0, main.output()
    main_process(where, "2", "--prefetch", "60")
    assert {(one.kind, one.attempts) for one in results([blocker, *notes])} == {("success", 1)}
    assert Event.objects.filter(name="note").count() == 50
    wait_for_quiet()
