"""Timeouts without processes: what is accepted, which one counts, and that the exception never leaves the run that it is for."""

import _thread
import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_workpool import CurrentWork, InvalidWork, NoCurrentWork, Workpool, WorkpoolError, WorkTimeout, action, current, mutation, query
from django_workpool.adapters import visit
from django_workpool.current_work import working_on
from django_workpool.exceptions import WorkpoolSettingsError
from django_workpool.execution import limits, timeouts
from django_workpool.execution.statements import Effect, effect_of
from django_workpool.execution.timeouts import Shot, Timeout
from django_workpool.execution.watch import Session, session_state
from django_workpool.ids import new_work_id
from django_workpool.models import Work
from django_workpool.testing import run_work
from django_workpool.types import MAX_TIMEOUT, Failure, Run

from .live import wait_until
from .runs import a_run
from .stage import Stage, sql
from .states.driver import Bare
from .works import stops

MS = timedelta(milliseconds=1)


def timed(token: int, ms: int) -> Run:
    return a_run(token)._replace(timeout_ms=ms)


# What is said ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [timedelta(0), -MS, MAX_TIMEOUT + MS, 1, 1.5, True, "1", timedelta.max])
def test_what_is_no_timeout_is_refused_before_any_sql(value: Any, settings: Any) -> None:
    for say in (lambda: Workpool().using(timeout=value), lambda: action(timeout=value), lambda: mutation(timeout=value)):
        with pytest.raises(InvalidWork, match="timeout must be a timedelta above 0, of at most 365 days, or None"):
            say()
    with pytest.raises(InvalidWork, match="timeout must be"):
        query(timeout=value)(stops.burn_for)
    settings.WORKPOOLS = {"default": {"TIMEOUT": value}}
    with pytest.raises(WorkpoolSettingsError, match="TIMEOUT.*timeout must be a timedelta"):
        Workpool()


@pytest.mark.django_db
def test_the_call_says_then_the_function_then_the_pool(settings: Any) -> None:
    def stored(function: Any, **options: Any) -> int | None:
        return Work.objects.get(id=Workpool().using(**options).enqueue(function, "", 0)).timeout_ms

    assert stored(stops.burn_for) is None
    assert stored(stops.burn_with_timeout) == 200
    assert stored(stops.burn_with_timeout, timeout=None) == 200
    assert stored(stops.burn_with_timeout, timeout=3 * MS) == 3
    assert stored(stops.burn_for, timeout=timedelta(microseconds=1)) == 1, "never none at all"
    assert stored(stops.look_and_burn, timeout=MAX_TIMEOUT) == 365 * 86_400_000
    settings.WORKPOOLS = {"default": {"TIMEOUT": timedelta(seconds=7), "FUNCTIONS": ["tests"]}}
    assert stored(stops.burn_for) == 7000
    assert stored(stops.burn_with_timeout) == 200
    assert stored(stops.burn_for, timeout=2 * MS) == 2


def test_the_exceptions_are_what_users_expect() -> None:
    assert issubclass(WorkTimeout, WorkpoolError)
    assert str(WorkTimeout("late")) == "late"
    with pytest.raises(NoCurrentWork, match="a pool runs"):
        current()
    work = CurrentWork(new_work_id(), "default", "x")
    with working_on(work):
        assert current() is work
        assert (work.attempt, work.canceled) == (1, False)
        work.raise_if_canceled()
    with pytest.raises(LookupError):
        current()


@pytest.mark.django_db
@pytest.mark.parametrize("function", [stops.look_at_itself, stops.look_at_itself_async])
def test_functions_know_their_work_in_the_tests_of_projects_too(function: Any) -> None:
    work = Workpool().using(name="a label", timeout=timedelta(minutes=1)).enqueue(function)
    run_work()
    result = Workpool().status(work).result
    assert result is not None and (result.value["work_id"], result.value["name"], result.value["attempt"]) == (str(work), "a label", 1)


# The exception --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """Return a function that calls another one within a run on this thread."""
    used: list[Run] = []

    def call(run: Run, function: Callable[..., Any], *args: Any) -> Any:
        used.append(run)
        return limits.call(run, Bare(), function, args, {})  # type: ignore[arg-type]

    yield call
    for one in used:
        limits.end(one)


def test_a_function_that_computes_is_interrupted(run: Callable[..., Any]) -> None:
    began = time.monotonic()
    with pytest.raises(WorkTimeout, match=r"it took longer than 0\.05 s") as caught:
        run(timed(1, 50), stops.compute, 30)
    assert 0.05 <= time.monotonic() - began < 20
    assert any(entry.name == "compute" for entry in caught.traceback), "raised where it was"


def test_a_function_that_ends_in_time_is_not(run: Callable[..., Any]) -> None:
    assert run(timed(1, 60_000), lambda: current().attempt) == 1
    assert run(a_run(2), lambda: current().work_id) == a_run(2).work_id


def test_an_attempt_has_one_timeout_however_often_its_function_is_called(run: Callable[..., Any]) -> None:
    one = timed(1, 100)
    run(one, stops.compute, 0.06)
    with pytest.raises(WorkTimeout):
        run(one, stops.compute, 30)
    called = []
    with pytest.raises(WorkTimeout, match="it took longer"):
        run(one, called.append, 1)
    assert not called, "there was no time left"


def test_no_exception_leaves_its_run(run: Callable[..., Any]) -> None:
    """The timeout comes in the very moments in which functions end: either their value is returned, or the exception is raised here."""
    dice, outcomes, early = random.Random(7), {"value": 0, "timeout": 0}, 0
    for token in range(1, 901):
        try:
            value = run(timed(token, 1), lambda: stops.compute(0.001 + dice.uniform(-0.0003, 0.0006)) or "value")
        except WorkTimeout:
            value = "timeout"
        outcomes[value] += 1
        # If anything is still to come, it comes here, and fails the test.
        for _ in range(200):
            early += 1
        limits.end(timed(token, 1))
    assert early == 900 * 200
    assert min(outcomes.values()) > 0, outcomes


def test_a_shot_that_is_fired_as_the_call_ends_is_taken_back() -> None:
    """Both orders, without a clock: the call ends before the shot, and in the middle of it."""
    shot = Shot()
    shot.end()
    shot.fire()
    assert sum(range(1000)) and shot.fired
    second, fired = Shot(), []

    def fire_and_hold() -> None:
        # As the watchman does it, with a long moment in the middle.
        second.firing = True
        ended.wait(10)
        fired.append(second.done)
        timeouts._raise_in(second.thread, id(WorkTimeout))
        second.fired = True

    ended = threading.Event()
    other = threading.Thread(target=fire_and_hold)
    other.start()
    wait_until(lambda: second.firing, poll=0.001)
    # Between the other thread's look at ``done`` and its shot, this one ends.
    ended.set()
    caught = 0
    try:
        second.end()
    except WorkTimeout:
        caught += 1
        second.end()
    other.join()
    assert sum(range(100_000)) > 0 and caught <= 1 and fired


@pytest.mark.parametrize(
    ("module", "name", "waits"),
    [
        ("logging.handlers", "hold", True),
        ("django_workpool.kick", "hold", True),
        ("pymysql.connections", "_force_close", True),
        ("pymysql.connections", "close", True),
        ("psycopg._tz", "get_tzinfo", True),
        ("django.db.transaction", "__exit__", True),
        ("django.dispatch.dispatcher", "send_robust", True),
        ("shop.models", "__del__", True),
        ("pymysql.connections", "query", False),
        ("shop.logging", "hold", False),
    ],
)
def test_code_that_must_not_be_torn_apart_is_left_first(
    run: Callable[..., Any], module: str, name: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that holds its lock, an import, our own code, a driver that closes: not for ever, and what it calls counts as well."""
    code = (
        f"def {name}(compute):\n    try:\n        compute(0.4)\n        return 'whole'\n    except BaseException:\n        return 'torn'\n"
    )
    scope: dict[str, Any] = {"__name__": module}
    exec(code, scope)  # noqa: S102
    seen: list[str] = []
    # On a machine that has no time it could be over before the code has been left.
    monkeypatch.setattr(timeouts, "LEAVE_TIME", 30)

    def function() -> None:
        seen.append(scope[name](stops.compute))
        stops.compute(30)

    with contextlib.suppress(WorkTimeout):
        run(timed(1, 50), lambda: function() if waits else seen.append(scope[name](stops.compute)))
    assert seen == ["whole" if waits else "torn"]


def test_functions_on_many_threads_are_interrupted_alone() -> None:
    """Short timeouts beside long ones: each thread's exception is for its own run."""
    ended: dict[int, str] = {}

    def body(token: int) -> None:
        one = timed(token, 50 if token % 2 else 60_000)
        try:
            ended[token] = limits.call(one, Bare(), lambda: stops.compute(30 if token % 2 else 0.4) or "ended", (), {})  # type: ignore[arg-type]
        except WorkTimeout:
            ended[token] = "timeout"
        finally:
            limits.end(one)

    threads = [threading.Thread(target=body, args=(token,)) for token in range(1, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended == {token: "timeout" if token % 2 else "ended" for token in range(1, 11)}
    # Tests before this one may have left others to their threads.
    watched = [one.run for one in [*limits._watched.values(), *timeouts._watchman.timed]]
    assert not [run for run in watched if run.work_id in {timed(token, 1).work_id for token in ended}]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("ms", "kept"), [(50, False), (60_000, True)])
def test_connections_are_replaced_after_a_timeout(ms: int, kept: bool) -> None:
    """Whatever the driver was doing: nobody knows."""
    stage = Stage()

    def function() -> None:
        sql("SELECT 1")
        stops.compute(0.2)

    def isolated() -> tuple[bool, bool]:
        with stage.isolation.function("tests"), contextlib.suppress(WorkTimeout):
            limits.call(timed(1, ms), stage.isolation, function, (), {})
        return connection.connection is not None, bool(sql("SELECT 1"))

    try:
        assert stage.do(isolated) == (kept, True)
    finally:
        limits.end(timed(1, ms))
        stage.leave()


@pytest.mark.django_db(transaction=True)
def test_a_function_that_does_nothing_but_ask_its_database_is_interrupted_between_two_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchman sees it in the midst of them only, and need not fire: its connection stays as good as it was. It comes once."""
    told: list[Run] = []
    monkeypatch.setattr(Shot, "is_in_the_way", lambda shot: True)
    monkeypatch.setattr(timeouts, "LEAVE_TIME", 60)
    monkeypatch.setattr(timeouts, "STOP_GRACE", 0.1)
    monkeypatch.setattr(timeouts, "tell_overdue", told.append)
    stage, seen, one = Stage(), list[object](), timed(1, 100)

    def function(swallows: bool, began: float) -> None:
        try:
            with transaction.atomic():
                while time.monotonic() < began + 30:
                    sql("SELECT 1")
        except WorkTimeout:
            seen.extend([time.monotonic() - began >= 0.1, connection.in_atomic_block])
            if not swallows:
                raise
        while time.monotonic() < began + 30 and not told:
            sql("SELECT 1")

    def isolated(swallows: bool) -> bool:
        with stage.isolation.function("tests"):
            limits.call(one, stage.isolation, function, (swallows, time.monotonic()), {})
        return connection.connection is not None

    try:
        assert stage.do(lambda: isolated(True)) and seen == [True, False]
        assert [run.token for run in told] == [1]
        limits.end(one)
        with pytest.raises(WorkTimeout, match=r"it took longer than 0\.1 s"):
            stage.do(lambda: isolated(False))
        assert stage.do(lambda: connection.connection is not None)
    finally:
        limits.end(one)
        stage.leave()


def test_pymysql_does_not_take_it_for_a_lost_connection(run: Callable[..., Any]) -> None:
    pymysql = pytest.importorskip("pymysql")

    class Torn:
        def read(self, size: int) -> bytes:
            stops.compute(30)
            return b""

        def close(self) -> None:
            pass

    raw = pymysql.connections.Connection(defer_connect=True)
    raw._rfile = Torn()
    with pytest.raises(WorkTimeout, match=r"it took longer than 0\.05 s"):
        run(timed(1, 50), raw._read_bytes, 4)
    assert raw._rfile is None, "it is closed as after any other error"


def test_what_goes_on_is_told_once(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]) -> None:
    told: list[Run] = []
    monkeypatch.setattr(timeouts, "STOP_GRACE", 0.05)
    monkeypatch.setattr(timeouts, "tell_overdue", told.append)

    def swallow() -> str:
        caught, end = 0, time.monotonic() + 30
        while time.monotonic() < end and not told:
            try:
                time.sleep(0.01)
            except WorkTimeout:
                caught += 1
        time.sleep(0.3)
        return f"caught {caught}"

    assert run(timed(1, 20), swallow) == "caught 1"
    assert [one.token for one in told] == [1]


#: Garbage that never ends, whose finalizer lets other threads run: one looks where another is, the others ask the interpreter for a thread.
COLLECTING = """
import gc, threading, time
from django_workpool.execution import timeouts

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0)
        if going:
            Garbage()

def ask():
    while going:
        timeouts._raise_in(threading.get_ident(), None)

going, shot = True, timeouts.Shot()
threads = [threading.Thread(target=ask) for _ in range(2)]
for thread in threads:
    thread.start()
gc.set_threshold(1, 1, 1)
Garbage()
end = time.monotonic() + 1
while time.monotonic() < end:
    shot.is_in_the_way()
assert gc.isenabled()
going = False
for thread in threads:
    thread.join()
print("went on")
"""


@pytest.mark.anywhere
def test_the_watchman_looks_without_locking_the_interpreter_up() -> None:
    """Python before 3.11.12 stood still for good where it collected garbage in there."""
    done = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=60)
    assert done.stdout == "went on\n", done.stderr


def test_it_is_not_taken_for_a_word_of_the_network(run: Callable[..., Any]) -> None:
    """As ``selectors``, which passes over any OSError of a file that has gone, and clients of HTTP, which try again."""

    def try_again() -> str:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except OSError:
                continue
        return "ended"

    with pytest.raises(WorkTimeout):
        run(timed(1, 20), try_again)


def test_the_watchman_begins_anew_and_outlives_errors(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]) -> None:
    look, broken = Timeout.look, []

    def breaks(self: Timeout, now: float) -> float:
        if not broken:
            broken.append(1)
            raise ValueError("broken")
        return look(self, now)

    monkeypatch.setattr(Timeout, "look", breaks)
    timeouts._begin_anew()
    with pytest.raises(WorkTimeout):
        run(timed(1, 50), stops.compute, 30)
    assert broken


def test_a_call_waits_for_a_shot_that_is_being_fired_however_long_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchman has lost the interpreter in the middle: what he fires late must not come in the pool's code."""
    monkeypatch.setattr(timeouts, "_raise_in", lambda thread, what: raised.append(what))
    raised: list[int | None] = []
    made = threading.Event()

    def body() -> None:
        nonlocal shot
        shot = Shot()
        made.set()
        go.wait(20)
        shot.end()

    shot: Any = None
    go = threading.Event()
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    assert made.wait(20)
    shot.firing = True
    go.set()
    thread.join(1.5)
    assert thread.is_alive() and raised == [], "it does not go before it is known"
    shot.fired = True
    thread.join(20)
    assert not thread.is_alive() and raised == [None]


def test_what_a_guest_does_around_its_function_is_in_the_way_and_the_function_is_not(run: Callable[..., Any]) -> None:
    asked: dict[str, list[bool]] = {"guest": [], "function": []}

    def ask(where: str) -> None:
        shot, end = Shot(), time.monotonic() + 20
        _thread.start_new_thread(lambda: asked[where].append(shot.is_in_the_way()), ())
        # Without a call into what is in the way itself.
        while not asked[where] and time.monotonic() < end:
            pass

    # A function of a module of the package: what stands for a framework's guest.
    source = "def call(ask, visit):\n    ask('guest')\n    visit(ask, ('function',), {})\n"
    scope: dict[str, Any] = {"__name__": "django_workpool.backend.runs"}
    exec(source, scope)  # noqa: S102
    run(timed(1, 60_000), scope["call"], ask, visit)
    assert asked == {"guest": [True], "function": [False]}


# Cancelations ---------------------------------------------------------------------------------------------------------


def test_runs_of_several_databases_with_one_number_are_told_apart(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each database numbers its runs from 1, and one process may serve several."""
    monkeypatch.setattr(limits.conf, "database_alias", lambda pool: "second" if pool == "far" else "default")
    here, there = timed(1, 60_000), timed(1, 300)._replace(pool="far", work_id=new_work_id())
    ended: dict[str, Any] = {}

    def far() -> None:
        try:
            limits.call(there, Bare(), stops.compute, (30,), {})  # type: ignore[arg-type]
        except WorkTimeout:
            ended["far"] = limits.failed(there, Failure(class_path=limits.CANCELED, text="x")).kind
        limits.end(there)

    def function() -> list[bool]:
        thread = threading.Thread(target=far)
        thread.start()
        wait_until(lambda: ("far", there.token) in limits._watched)
        limits.cancel([1], "second")
        before = current().canceled
        assert current().work_id == here.work_id
        thread.join(20)
        limits.cancel([1], "second")
        ended["here"] = current().canceled
        limits.cancel([1], "default")
        return [before, current().canceled]

    assert run(here, function) == [False, True]
    assert ended == {"far": "canceled", "here": False}


def test_a_run_is_told_of_its_cancelation_and_counts_as_canceled_only_then(run: Callable[..., Any]) -> None:
    stopped = Failure(class_path=limits.CANCELED, text="x")
    one = a_run(1)
    assert limits.failed(one, stopped).kind == "failed", "nobody has begun it"

    def function() -> list[bool]:
        before = current().canceled
        limits.cancel([one.token, 99])
        limits.cancel([one.token])
        return [before, current().canceled]

    assert run(one, function) == [False, True]
    assert limits.failed(one, stopped).kind == "canceled"
    assert limits.failed(one, Failure(class_path="builtins.ValueError", text="x")).kind == "failed"
    limits.end(one)
    assert limits.failed(one, stopped).kind == "failed"


def test_a_parent_is_told_of_calls_that_it_may_end_and_of_no_others(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, bool]] = []
    monkeypatch.setattr(limits, "on_call", lambda run, calls: told.append((run.token, calls)))

    def is_calling() -> bool:
        answers: list[bool] = []
        limits.tell_call(1, answers.append)
        return answers[0]

    assert run(a_run(1), is_calling) and not is_calling() and told == []
    run(timed(2, 60_000), lambda: None)
    assert told == [(2, True), (2, False)]
    run(a_run(3), limits.cancel, [3])
    assert told[2:] == [(3, False)], "canceled while it ran"
    run(a_run(3), lambda: None)
    assert told[3:] == [(3, True), (3, False)], "and called once more"


class Interrupted:
    """A driver's object in the midst of which the exception comes."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def closed(self) -> bool:
        raise self.error

    def as_string(self, cursor: Any) -> str:
        raise self.error


def test_what_is_asked_of_a_driver_meanwhile_swallows_no_timeout() -> None:
    """Else the function would go on to its end: there is one exception for each call."""
    with pytest.raises(WorkTimeout):
        session_state(Interrupted(WorkTimeout()))
    with pytest.raises(WorkTimeout):
        effect_of(Interrupted(WorkTimeout()), None)
    broken = Interrupted(RuntimeError())
    assert (session_state(broken), effect_of(broken, None)) == (Session.CLOSED, Effect.SESSION)
