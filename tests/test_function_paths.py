"""Dotted paths: which lead to a function, what is imported on the way, and what a worker says that it knows."""

import importlib
import itertools
import sys
import textwrap
import threading

import pytest

from django_workpool.exceptions import UnregisteredFunction
from django_workpool.functions import WORK_KINDS, action, known, load_tasks, registered, resolve

from . import test_functions
from .test_functions import own_functions, registry, renamed  # noqa: F401

pytestmark = pytest.mark.anywhere

HERE = test_functions.__name__


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write modules of the package ``allowed``, which exists for one test."""
    root = tmp_path / "allowed"
    root.mkdir()
    (root / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, code):
        (root / f"{name}.py").write_text("from django_workpool import action, mutation, query, on_complete\n" + textwrap.dedent(code))
        importlib.invalidate_caches()
        return f"allowed.{name}"

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "allowed"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "plain",
        f"{HERE}.plain.",
        f".{HERE}.plain",
        f"{HERE}..plain",
        f" {HERE}.plain",
        f"{HERE}.plain ",
        f"{HERE}.pla in",
        f"{HERE}:plain",
        f"{HERE}.plain\n",
        f"{HERE}.plain\0",
        f"{HERE}.\ud83d",
        f"{HERE}.plain()",
        "../tests/plain",
    ],
)
def test_a_text_that_is_no_dotted_path_is_refused(path):
    with pytest.raises(UnregisteredFunction, match="is not a dotted path such as") as caught:
        resolve(path, WORK_KINDS)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("path", [None, 1, b"a.b", ["a.b"], test_functions.plain])
def test_a_path_that_is_no_text_is_refused(path):
    with pytest.raises(UnregisteredFunction, match="A dotted path is text"):
        resolve(path, WORK_KINDS)


def test_a_missing_or_unregistered_name_is_told_apart():
    with pytest.raises(UnregisteredFunction, match=rf"^{HERE}\.absent does not exist: the module {HERE} has no absent; decorate"):
        resolve(f"{HERE}.absent", WORK_KINDS)
    with pytest.raises(UnregisteredFunction, match=rf"^{HERE}\.bare is not registered; decorate"):
        resolve(f"{HERE}.bare", WORK_KINDS)
    with pytest.raises(UnregisteredFunction, match=rf"^{HERE}\.Holder\.method: the module {HERE}\.Holder could not be imported"):
        resolve(f"{HERE}.Holder.method", WORK_KINDS)


# Importing -----------------------------------------------------------------------------------------------------------------


def test_a_module_is_imported_when_a_path_first_needs_it(package):
    path = package("ünïcode", "@action\ndef größe(): return 1\n") + ".größe"
    assert path.rpartition(".")[0] not in sys.modules
    entry = resolve(path, WORK_KINDS)
    assert entry.path == path
    assert entry.func() == 1


def test_nothing_outside_the_allowed_packages_is_imported(package, settings):
    module = package("outside", "raise SystemExit('imported')")
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["allowed.inside", "allowed.out"]}}
    for path in (
        f"{module}.f",
        "os.system",
        "subprocess.run",
        "antigravity.f",
        "allowed.f",
        "allowedbutnot.f",
        "__main__.f",
        "builtins.eval",
    ):
        before = set(sys.modules)
        with pytest.raises(UnregisteredFunction, match="is outside the installed apps"):
            resolve(path, WORK_KINDS)
        assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def (:", "SyntaxError"),
        ("import absent_module_of_nobody", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", "could not be imported: E."),
        ("raise GeneratorExit", "GeneratorExit"),
    ],
)
def test_whatever_an_import_raises_is_an_error_of_the_package(package, code, says):
    module = package("broken", f"@action\ndef early(): ...\n{code}\n@action\ndef late(): ...\n")
    for name in ("early", "late"):
        with pytest.raises(UnregisteredFunction) as caught:
            resolve(f"{module}.{name}", WORK_KINDS)
        assert str(caught.value).startswith(f"{module}.{name}: the module {module} could not be imported: ")
        assert says in str(caught.value)
        assert caught.value.__cause__ is not None
        assert module not in sys.modules
        assert not [path for path in known() if path.startswith(module)]


def test_a_module_that_failed_can_be_imported_once_it_is_mended(package):
    module = package("mended", "@action\ndef f(): ...\n1 / 0\n")
    with pytest.raises(UnregisteredFunction):
        resolve(f"{module}.f", WORK_KINDS)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        package("mended", "@action\ndef f(): return 'whole again'\n")
        assert resolve(f"{module}.f", WORK_KINDS).func() == "whole again"
    finally:
        sys.dont_write_bytecode = before


def test_reloading_a_module_replaces_its_functions(package):
    module = package("reloaded", "@action\ndef f(): ...\n")
    first = resolve(f"{module}.f", WORK_KINDS)
    importlib.reload(sys.modules[module])
    second = resolve(f"{module}.f", WORK_KINDS)
    assert second.func is not first.func
    with pytest.raises(UnregisteredFunction, match="another function of that name"):
        registered(first.func, WORK_KINDS)


def test_a_module_in_the_middle_of_its_import_is_waited_for(package):
    module = package(
        "slow",
        """
        import threading, time
        begun = threading.Event()
        @action
        def early(): ...
        time.sleep(0.3)
        @action
        def late(): ...
        """,
    )
    found = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(resolve(f"{module}.{name}", WORK_KINDS).path))
        for name in ("late", "early", "late")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(found) == [f"{module}.early", f"{module}.late", f"{module}.late"]


# Known ---------------------------------------------------------------------------------------------------------------------


def test_known_are_paths_with_their_kinds():
    mine = {path.rpartition(".")[2]: kind for path, kind in known().items() if path.startswith(HERE + ".")}
    assert mine == {
        "plain": "action",
        "waiting": "action:async",
        "change": "mutation",
        "read": "query",
        "done": "callback",
        "done_called": "callback",
    }


def test_known_while_others_register():
    stop = threading.Event()

    def register():
        for number in itertools.count():
            if stop.is_set():
                return
            action(renamed(f"f{number % 5000}"))

    thread = threading.Thread(target=register)
    thread.start()
    try:
        for _ in range(20):
            assert known()[f"{HERE}.plain"] == "action"
    finally:
        stop.set()
        thread.join(10)


# The tasks modules of apps -------------------------------------------------------------------------------------------------


def test_one_broken_tasks_module_does_not_stop_the_others(tmp_path, monkeypatch, settings, caplog):
    codes = {
        "app_first": "from django_workpool import action\n@action\ndef f(): ...\n",
        "app_broken": "raise SystemExit\n",
        "app_none": None,
        "app_last": "from django_workpool import query\n@query\ndef f(): ...\n",
    }
    for app, code in codes.items():
        (tmp_path / app).mkdir()
        (tmp_path / app / "__init__.py").write_text("")
        if code:
            (tmp_path / app / "tasks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, *codes]
    try:
        load_tasks()
        mine = {path: kind for path, kind in known().items() if path.startswith("app_")}
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in codes]:
            del sys.modules[name]
    assert mine == {"app_first.tasks.f": "action", "app_last.tasks.f": "query"}
    (record,) = [record for record in caplog.records if record.name == "django_workpool.functions"]
    assert record.getMessage() == "The module app_broken.tasks could not be imported: its functions cannot run in this process."
    assert "SystemExit" in record.exc_text


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError", "SystemExit"])
def test_a_module_is_not_asked_for_names_that_it_does_not_have(package, error):
    """A module's own __getattr__ would be called with a name that anybody may have stored."""
    code = f"asked = []\ndef __getattr__(name):\n    asked.append(name)\n    raise {error}(name)\n@action\ndef there(): ...\n"
    module = package("lazy", code)
    assert resolve(f"{module}.there", WORK_KINDS).path == f"{module}.there"
    with pytest.raises(UnregisteredFunction, match="does not exist: the module allowed.lazy has no optional"):
        resolve(f"{module}.optional", WORK_KINDS)
    assert "optional" not in sys.modules[module].asked


def test_what_a_module_answers_for_any_name_is_no_function(package):
    module = package("mocked", "from unittest.mock import call\ndef __getattr__(name): return getattr(call, name)\n")
    for name in ("call", "anything", "func"):
        with pytest.raises(UnregisteredFunction, match="is not registered|does not exist"):
            resolve(f"{module}.{name}", WORK_KINDS)
