"""Tasks of the framework as works: what is declared, refused and inserted, and what is checked. No process runs anything here."""

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest

pytest.importorskip("tests.background.tasks", reason="no task framework: neither Django 6.0 nor django-tasks", exc_type=ImportError)

from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_workpool import RetryBehavior, UnregisteredFunction, WorkExists, Workpool, functions, mutation
from django_workpool.backend import WorkpoolBackend, WorkpoolTask, with_options
from django_workpool.backend.task import changed
from django_workpool.models import PendingStart, Work
from tests.background import framework
from tests.background import tasks as background
from tests.background.tasks import elsewhere, give_back, meaning, noop

OURS = "django_workpool.backend.WorkpoolBackend"
InvalidTask = getattr(framework("exceptions"), "InvalidTask", None) or framework("exceptions").InvalidTaskError
SOON = RetryBehavior(max_attempts=7, base=3)


def plain(value: int = 0) -> int:
    """Be a function that no decorator has seen."""
    return value


def second(context: Any) -> None:
    """Be another one."""


def counted(*args: Any) -> Iterator[int]:
    """Be a generator."""
    yield 1


@mutation
def change() -> None:
    """Be a mutation."""


def backend(**params: Any) -> WorkpoolBackend:
    """Return a backend of such settings."""
    return WorkpoolBackend("default", params)


def row(result: Any) -> Work:
    """Return the work of a result."""
    return Work.objects.get(id=result.id)


# Declared ---------------------------------------------------------------------------------------------------------------


def test_the_backend_supports_everything() -> None:
    found = framework().default_task_backend
    assert type(framework().task_backends["default"]) is WorkpoolBackend
    assert (found.alias, found.options) == ("default", {})
    assert found.supports_defer and found.supports_async_task and found.supports_get_result and found.supports_priority


def test_a_task_is_one_of_the_framework_and_lets_the_pool_know_its_function() -> None:
    assert isinstance(meaning, framework().base.Task) and type(meaning) is WorkpoolTask
    assert functions.registered(meaning.func, functions.WORK_KINDS).path == "tests.background.tasks.meaning"
    assert functions.registered(meaning, functions.WORK_KINDS) is functions.resolve("tests.background.tasks.meaning", functions.WORK_KINDS)
    assert functions.known()["tests.background.tasks.noop_async"] == "action:async"
    assert (meaning.name, meaning.module_path, meaning.call()) == ("meaning", "tests.background.tasks.meaning", 42)
    assert async_to_sync(background.noop_async.acall)() is None
    assert async_to_sync(meaning.acall)() == 42


def test_options_are_kept_by_using_and_none_changes_nothing() -> None:
    one = noop.using(retry=SOON, on_complete=background.task_ended, priority=3)
    two = one.using(queue_name="imports", on_complete_context={"a": 1}, retry=None)
    assert (two.priority, two.queue_name, two.takes_context) == (3, "imports", False)
    assert two.options == {"retry": SOON, "on_complete": background.task_ended, "on_complete_context": {"a": 1}}
    assert noop.options == {}
    assert noop.using() == noop and noop.using() is not noop
    assert one != noop and hash(one) == hash(noop.using(priority=3))


def test_options_can_be_said_where_a_task_is_declared() -> None:
    declared = with_options(max_attempts=4)(framework().task(priority=2)(plain))
    assert (declared.options, declared.priority, type(declared)) == ({"max_attempts": 4}, 2, WorkpoolTask)
    foreign = with_options(retry=True)(elsewhere)
    assert (foreign.backend, foreign.options) == ("immediate", {"retry": True})
    assert foreign.using(backend="default").options == {"retry": True}
    try:
        direct = framework().task(retry=True, max_attempts=3)(plain)
    except TypeError:
        # Django 6.0 has a task_class, but its decorator takes nothing that it does not know.
        assert FRAMEWORK_IS_6_0
    else:
        assert direct.options == {"retry": True, "max_attempts": 3}


FRAMEWORK_IS_6_0 = framework().__name__ == "django.tasks" and __import__("django").VERSION[:2] == (6, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retri": True}, "Unknown option retri. Known: .*max_attempts.*retry"),
        ({"name": "label"}, "Unknown option name"),
        ({"retry": "often"}, "retry must be True, False or a RetryBehavior"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": 2, "retry": False}, "contradict"),
        ({"delay": 3}, "delay must be a timedelta"),
        ({"delay": timedelta(1), "run_after": datetime(2030, 1, 1).astimezone()}, "delay and run_after"),
        ({"priority": 101}, "priority must be a whole number"),
        ({"priority": 3.1}, "priority must be a whole number"),
        ({"run_after": datetime(2030, 1, 1)}, "run_after must be an aware datetime"),
        ({"queue_name": "unknown"}, "Queue 'unknown' is not valid for backend"),
    ],
)
def test_what_cannot_be_taken_is_refused_when_it_is_said(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidTask, match=text):
        noop.using(**options)


def test_functions_that_no_worker_could_find_are_refused() -> None:
    for func in (any, test_the_backend_supports_everything.__get__(1), lambda: None):
        with pytest.raises(InvalidTask, match="must be defined at a module level|is a lambda"):
            framework().task()(func)
    with pytest.raises(InvalidTask, match="is a generator"):
        framework().task(counted)
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        framework().task(takes_context=True)(meaning.func)
    with pytest.raises(InvalidTask, match="is a mutation; an action is needed"):
        framework().task(change)
    with pytest.raises(InvalidTask, match="written above @task"):
        with_options(retry=True)(plain)  # type: ignore[arg-type]


def test_tasks_can_be_copied_and_pickled() -> None:
    one = noop.using(retry=SOON, on_complete_context=[1], on_complete=background.task_ended)
    assert copy.deepcopy(one) == one
    # Before Django 6.1 no Task can be pickled.
    if hasattr(framework("base").Task, "_reconstruct"):
        assert pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.asdict(one)["options"]["on_complete_context"] == [1]


# Enqueued ---------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_what_is_inserted() -> None:
    due = timezone.now() + timedelta(hours=1)
    task = give_back.using(
        priority=-100, queue_name="imports", run_after=due, retry=SOON, on_complete=background.task_ended, on_complete_context="c"
    )
    result = task.enqueue({"a": (1, b"b")})
    work = row(result)
    assert (work.pool, work.priority, work.func_path, work.fn_type) == ("imports", -100, "tests.background.tasks.give_back", "action")
    assert json.loads(work.arguments) == {"args": [{"a": [1, "b"]}], "kwargs": {}} == {"args": result.args, "kwargs": result.kwargs}
    assert (work.on_complete, work.on_complete_context) == ("tests.background.tasks.task_ended", '"c"')
    assert RetryBehavior.from_json(json.loads(work.retry)) == SOON
    start = PendingStart.objects.get(work_id=work.id)
    assert (start.priority, 0 <= start.segment - due.timestamp() * 10 < 1) == (-100, True)
    assert (result.task, result.backend, result.errors, result.worker_ids) == (task, "default", [], [])
    assert abs((result.enqueued_at - work.created).total_seconds()) < 5
    assert row(noop.using(priority=3.0).enqueue()).priority == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({}, None),
        ({"retry": True}, RetryBehavior()),
        ({"retry": False}, None),
        ({"max_attempts": 3}, RetryBehavior(max_attempts=3)),
        ({"retry": True, "max_attempts": 3}, RetryBehavior(max_attempts=3)),
        ({"retry": SOON, "max_attempts": 3}, RetryBehavior(max_attempts=3, base=3)),
        ({"retry": {"max_attempts": 2}}, RetryBehavior(max_attempts=2)),
    ],
)
def test_what_a_retry_means(options: dict[str, Any], stored: RetryBehavior | None) -> None:
    text = row(noop.using(**options).enqueue()).retry
    assert (RetryBehavior.from_json(json.loads(text)) if text else None) == stored


@pytest.mark.django_db(transaction=True)
def test_options_of_the_alias_hold_where_a_task_says_nothing(settings: Any) -> None:
    settings.TASKS = {
        "default": {"BACKEND": OURS, "OPTIONS": {"retry": {"max_attempts": 4}, "on_complete": "tests.background.tasks.task_ended"}}
    }
    assert RetryBehavior.from_json(json.loads(row(noop.enqueue()).retry)).max_attempts == 4
    assert row(noop.enqueue()).on_complete == "tests.background.tasks.task_ended"
    assert row(noop.using(retry=False).enqueue()).retry == ""
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETRY": {"max_attempts": 9, "base": 5}}}
    assert json.loads(row(noop.using(retry=True, max_attempts=2).enqueue()).retry)["max_attempts"] == 2
    assert json.loads(row(noop.using(retry=None, max_attempts=2).enqueue()).retry)["base"] == 2


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_costs_no_more_statements_than_one_of_the_pool() -> None:
    def statements(enqueue: Any) -> int:
        with (
            transaction.atomic(),
            CaptureQueriesContext(
                connection,
            ) as captured,
        ):
            enqueue()
        return len(captured)

    noop.enqueue()
    assert statements(lambda: noop.enqueue(1)) == statements(lambda: Workpool().enqueue(noop.func, 1)) <= 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("argument", "error", "text"),
    [
        (datetime(2026, 1, 1), TypeError, "Unsupported type"),
        ({1: 2}, TypeError, "keys must be str"),
        (float("nan"), ValueError, "nan is not JSON"),
        (b"\xff", ValueError, "Unsupported value"),
        ("\0", ValueError, "NUL"),
    ],
)
def test_arguments_that_cannot_be_stored(argument: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        give_back.enqueue(argument)
    with pytest.raises(error, match=text):
        async_to_sync(give_back.aenqueue)(argument)
    assert Work.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_what_only_the_enqueue_can_know_is_refused_there(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TASKS = {"default": {"BACKEND": OURS, "QUEUES": []}}
    with pytest.raises(InvalidTask, match="There is no pool 'other'"):
        noop.using(queue_name="other").enqueue()
    settings.TASKS = {"default": {"BACKEND": OURS, "QUEUES": ["imports"]}}
    with pytest.raises(InvalidTask, match="Queue 'default' is not valid for backend"):
        noop.enqueue()
    settings.TASKS = {"default": {"BACKEND": OURS}}
    with pytest.raises(InvalidTask, match="on_complete"):
        noop.using(on_complete="tests.background.tasks.noop").enqueue()
    settings.WORKPOOLS = {"default": {}}
    monkeypatch.setattr(sys.modules[__name__], "plain", framework().task(plain))
    monkeypatch.setattr("django_workpool.allowed.conf.function_prefixes", lambda: ())
    functions.is_allowed.cache_clear()
    try:
        with pytest.raises(InvalidTask, match="outside the installed apps"):
            sys.modules[__name__].plain.enqueue()  # type: ignore[attr-defined]
    finally:
        functions.is_allowed.cache_clear()
    assert Work.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_signal_comes_in_the_transaction_after_the_insert_and_its_receivers_harm_nobody() -> None:
    heard: list[Any] = []

    def hear(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append((sender, task_result, Work.objects.filter(id=task_result.id).exists(), connection.in_atomic_block))

    def scream(**kwargs: Any) -> None:
        raise SystemExit("no")

    signal = framework("signals").task_enqueued
    for receiver in (hear, scream):
        signal.connect(receiver)
    try:
        with transaction.atomic():
            result = noop.enqueue()
            assert heard == [(WorkpoolBackend, result, True, True)]
            assert framework().default_task_backend.get_result(result.id) == result
            transaction.set_rollback(True)
    finally:
        for receiver in (hear, scream):
            signal.disconnect(receiver)
    assert Work.objects.count() == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_key_that_is_taken_gives_the_result_of_the_work_that_has_it(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    heard: list[Any] = []
    signal = framework("signals").task_enqueued
    signal.connect(heard_by := (lambda task_result, **kwargs: heard.append(task_result.args)))
    try:
        with monkeypatch.context() as elsewhere:
            # By a host whose clock is not ours.
            elsewhere.setattr("django_workpool.ids.time.time_ns", lambda now=time.time_ns: now() + hours * 3_600_000_000_000)
            first = give_back.using(priority=5, unique="k").enqueue("first")
        assert give_back.using(unique="k").enqueue("second") == give_back.get_result(first.id)
        assert async_to_sync(give_back.using(unique="k", if_taken="keep").aenqueue)("second").args == ["first"]
        with transaction.atomic():
            with pytest.raises(WorkExists) as raised:
                give_back.using(unique="k", if_taken="raise").enqueue("third")
            assert (str(raised.value.work_id), Work.objects.count(), heard) == (first.id, 1, [["first"]])
        last = give_back.using(unique="k", if_taken="replace").enqueue("last")
        assert (last.id != first.id, last.args, heard) == (True, ["last"], [["first"], ["last"]])
        assert give_back.using(unique="k").enqueue("second").id == last.id
    finally:
        signal.disconnect(heard_by)


@pytest.mark.django_db(transaction=True)
def test_a_key_that_is_taken_by_what_is_no_task_leads_to_its_id() -> None:
    kept = Workpool().using(unique="k").enqueue(change)
    with captured_signals() as heard:
        result = noop.using(unique="k").enqueue()
    assert (result.id, heard, Work.objects.count()) == (str(kept), [], 1)
    with pytest.raises(framework("exceptions").TaskResultDoesNotExist):
        result.refresh()


@contextmanager
def captured_signals() -> Iterator[list[Any]]:
    """Collect the results of which task_enqueued tells."""
    heard: list[Any] = []
    signal = framework("signals").task_enqueued

    def hear(task_result: Any, **kwargs: Any) -> None:
        heard.append(task_result)

    signal.connect(hear)
    try:
        yield heard
    finally:
        signal.disconnect(hear)


# Checked ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({}, []),
        ({"QUEUES": []}, []),
        ({"QUEUES": ["imports", "default"]}, []),
        ({"QUEUES": ["imports", "mail", "post"]}, [("workpool.E012", "'mail' is no pool"), ("workpool.E012", "'post' is no pool")]),
        ({"OPTIONS": {"retry": {"max_attempts": 3}, "max_attempts": 4}}, []),
        ({"OPTIONS": {"retri": True, "priority": 1}}, [("workpool.E013", "unknown priority"), ("workpool.E013", "unknown retri")]),
        ({"OPTIONS": {"retry": {"attempts": 3}}}, [("workpool.E013", "cannot be used: retry:")]),
        ({"OPTIONS": {"on_complete": "nowhere.at.all"}}, [("workpool.E013", "outside the installed apps")]),
        ({"QUEUES": [1, "x"]}, [("workpool.E012", "1 is no pool"), ("workpool.E012", "'x' is no pool")]),
        ({"OPTIONS": None}, [("workpool.E013", "must be a dictionary, not NoneType")]),
        ({"OPTIONS": ["retry"]}, [("workpool.E013", "must be a dictionary, not list")]),
    ],
)
def test_checks(params: dict[str, Any], found: list[tuple[str, str]]) -> None:
    told = list(backend(**params).check())
    assert [one.id for one in told] == [one for one, _ in found]
    for one, (_, text) in zip(told, found, strict=True):
        assert text in one.msg


def test_the_missing_app_and_unusable_pools_are_told_of(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.WORKPOOLS = {"default": {"NO": 1}}
    assert list(backend(QUEUES=["x"]).check()) == []
    assert backend().queues == set()
    monkeypatch.setattr("django_workpool.backend.pool.apps.is_installed", lambda name: name != "django_workpool")
    assert [one.id for one in backend().check()] == ["workpool.E011"]


def test_the_queues_are_the_pools(settings: Any) -> None:
    assert backend().queues == {"default", "imports"}
    settings.WORKPOOLS = {"a": {}}
    assert backend().queues == {"a"}
    assert (backend(QUEUES=[]).queues, backend(QUEUES=["b"]).queues) == (set(), {"b"})


# Found ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pool know no function."""
    monkeypatch.setattr(functions, "_registry", {})


def test_a_worker_finds_a_task_that_was_declared_for_another_alias(unknown: None) -> None:
    found = functions.resolve("tests.background.tasks.elsewhere", functions.WORK_KINDS)
    assert (found.func, found.adapter is not None, found.fn_type.value) == (elsewhere.func, True, "action")
    assert functions.is_adapted("tests.background.tasks.elsewhere")
    assert set(functions.known()) == {"tests.background.tasks.elsewhere"}


class Pretender:
    """Says that it is a Task."""

    takes_context = False

    def __init__(self, func: Any) -> None:
        self.func = func

    @property
    def __class__(self) -> Any:
        return WorkpoolTask

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


def pretender() -> None:
    """Be replaced."""


class Odd:
    """Has a path, and does what it likes when it is called."""

    __module__ = __name__
    __qualname__ = "no_function"

    def __call__(self) -> None: ...


def shifted() -> None:
    """Be replaced."""


class Shifty(WorkpoolTask):
    """Answers with the function of its path at first, and then with another one."""

    answers: ClassVar[list[Any]] = [shifted] * 8

    @property
    def func(self) -> Any:
        return self.answers.pop() if self.answers else plain


pretender = Pretender(pretender)  # type: ignore[assignment]
shifted = object.__new__(Shifty)  # type: ignore[assignment]
no_function = changed(noop, func=Odd())
other_name = elsewhere


@pytest.mark.parametrize("name", ["pretender", "no_function", "other_name", "plain", "shifted"])
def test_nothing_else_is_taken_for_a_task(unknown: None, name: str) -> None:
    with pytest.raises(UnregisteredFunction, match="is not registered"):
        functions.resolve(f"{__name__}.{name}", functions.WORK_KINDS)


def test_a_task_of_a_function_that_stays_in_its_place(unknown: None) -> None:
    kept = framework().task(takes_context=True)(second)
    found = functions.resolve(f"{__name__}.second", functions.WORK_KINDS)
    assert found.func is second and found.adapter is not None
    assert found.adapter.task is kept  # type: ignore[attr-defined]


def test_what_an_action_says_of_its_retry_holds_for_its_task(unknown: None) -> None:
    from django_workpool import action

    framework().task(action(retry=True)(second))
    assert functions.resolve(f"{__name__}.second", functions.WORK_KINDS).retry is True


def run_alone(code: str) -> str:
    """Run a script in a process of its own; return what it prints."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_without_a_framework_the_package_works_and_the_backend_says_what_is_missing() -> None:
    code = """
import sys
sys.modules["django.tasks"] = sys.modules["django_tasks"] = None
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_workpool"], DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
import django, django_workpool
django.setup()
from django_workpool import Workpool
Workpool("default")
try:
    import django_workpool.backend
except ImportError as error:
    print(error)
"""
    assert "pip install 'django_workpool[tasks]'" in run_alone(code)


def test_tasks_can_be_declared_before_the_apps_are_loaded() -> None:
    code = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.background.settings_pool"
from tests.background import framework
from django_workpool.backend import with_options
import types, sys
module = types.ModuleType("tests.background.early")
sys.modules[module.__name__] = module
exec("def early(): pass", module.__dict__)
early = with_options(retry=True, never="heard of")(framework().task(module.early))
import django
django.setup()
try:
    early.using()
except Exception as error:
    print(type(error).__name__, error)
"""
    assert "Unknown option never" in run_alone(code)


MEET = """
import sys
{blocked}
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_workpool"], TASKS={{"default": {{"BACKEND": "{backend}"}}}},
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
)
import django
try:
    django.setup()
    print("django_workpool.backend" in sys.modules)
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "blocked", "told"),
    [
        (OURS, False, "True"),
        ("project.of.mine.SubclassPerhaps", False, "True"),
        (f"{framework().__name__}.backends.immediate.ImmediateBackend", False, "False"),
        (OURS, True, "pip install 'django_workpool[tasks]'"),
        ("project.of.mine.SubclassPerhaps", True, "False"),
    ],
)
def test_a_worker_knows_tasks_only_where_they_may_come(name: str, blocked: bool, told: str) -> None:
    block = 'sys.modules["django.tasks"] = sys.modules["django_tasks"] = None' if blocked else ""
    assert told in run_alone(MEET.format(backend=name, blocked=block))


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["third_time", "fail_async", "fail_value", "look_async"])
def test_the_helpers_for_tests_run_tasks(name: str) -> None:
    """Inside a test's transaction, on its own thread, with the signals and the context."""
    from django_workpool.testing import run_work

    heard: list[Any] = []

    def hear(signal: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append((task_result.status.value, task_result.attempts, repr(sys.exc_info()[1])))

    signals = framework("signals")
    for signal in (signals.task_started, signals.task_finished):
        signal.connect(hear)
    try:
        result = getattr(background, name).enqueue(*([] if name == "fail_value" else ["k"]))
        run_work(retries=True)
        result.refresh()
    finally:
        for signal in (signals.task_started, signals.task_finished):
            signal.disconnect(hear)
    attempts = {"third_time": 3, "fail_async": 2}.get(name, 1)
    assert (result.attempts, result.is_finished, len(result.errors)) == (attempts, True, attempts - (name in ("third_time", "look_async")))
    raised = {"fail_async": "LookupError('no k')", "fail_value": "ValueError('This task failed due to ValueError')"}.get(name, "None")
    running = [("RUNNING", number, "None") for number in range(1, attempts + 1)]
    assert heard == [*running, (result.status.value, attempts, raised)]


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["look", "look_async", "fail_value"])
def test_eager_mode_runs_a_task_after_it_was_told_of(name: str) -> None:
    """As in production: whoever hears of the start has heard of the enqueue."""
    from django_workpool.testing import eager

    heard: list[str] = []
    names = {getattr(framework("signals"), told): told for told in ("task_enqueued", "task_started", "task_finished")}

    def hear(signal: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append(f"{names[signal]} {task_result.status.value}")

    arguments = [] if name == "fail_value" else ["k"]
    for signal in names:
        signal.connect(hear)
    try:
        with eager():
            result = getattr(background, name).enqueue(*arguments)
            with pytest.raises(ValueError, match="failed due to") if name == "fail_value" else nullcontext(), eager(raises=True):
                getattr(background, name).enqueue(*arguments)
    finally:
        for signal in names:
            signal.disconnect(hear)
    result.refresh()
    end = "FAILED" if name == "fail_value" else "SUCCESSFUL"
    assert heard == ["task_enqueued READY", "task_started RUNNING", f"task_finished {end}"] * 2
    assert (result.status.value, Work.objects.count()) == (end, 0)
    after = noop.enqueue()
    after.refresh()
    assert after.status.value == "READY"
