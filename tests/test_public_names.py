"""The public names: exactly those listed, and importable without settings."""

import os
import subprocess
import sys
import types

import pytest

import django_workpool

pytestmark = pytest.mark.anywhere


def run(code: str) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    return subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_the_list_is_what_the_documentation_promises():
    assert django_workpool.__all__ == sorted(django_workpool.__all__)
    assert set(django_workpool.__all__) == {
        "action",
        "mutation",
        "query",
        "on_complete",
        "Workpool",
        "enqueue",
        "aenqueue",
        "call",
        "current",
        "progress",
        "Progress",
        "CurrentWork",
        "NoCurrentWork",
        "WorkTimeout",
        "RetryBehavior",
        "NonRetryableError",
        "OnCompleteArgs",
        "RunResult",
        "Status",
        "WorkpoolError",
        "InvalidWork",
        "UnknownPool",
        "UnregisteredFunction",
        "WorkCanceled",
        "WorkExists",
        "WorkBatch",
        "batch",
        "on_batch_complete",
        "BatchResult",
        "BatchStatus",
    }


def test_what_is_visible_is_listed():
    visible = {
        name
        for name in dir(django_workpool)
        if not name.startswith("_") and not isinstance(getattr(django_workpool, name), types.ModuleType)
    }
    assert visible == set(django_workpool.__all__)


def test_every_listed_name_leads_to_something():
    for name in django_workpool.__all__:
        assert callable(getattr(django_workpool, name)), name


def test_other_names_are_missing_as_usual():
    with pytest.raises(AttributeError, match="module 'django_workpool' has no attribute 'Task'"):
        _ = django_workpool.Task


def test_the_package_and_its_decorators_need_no_settings():
    done = run(
        "import django_workpool as w\n"
        "from django_workpool import action, mutation, query, on_complete, RetryBehavior, NonRetryableError\n"
        "from django.conf import settings\n"
        "assert not settings.configured\n"
        "assert set(w.__all__) <= set(dir(w))\n"
        "import sys; assert 'django_workpool.models' not in sys.modules"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_module_of_models_may_import_the_late_names_before_the_apps_are_loaded(tmp_path):
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text("from django_workpool import Workpool, action, aenqueue, call, enqueue\n")
    done = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['shop', 'django_workpool'], DATABASES={})\n"
        "import django; django.setup()\n"
        "import shop.models; shop.models.Workpool"
    )
    assert (done.returncode, done.stderr) == (0, "")
