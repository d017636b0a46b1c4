"""The signals: who is told what, when and where, and that receivers which misbehave harm nobody."""

import ast
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.dispatch import Signal
from django.test.utils import CaptureQueriesContext

from django_workpool import Workpool, call, enqueue, signals
from django_workpool.database_errors import is_away
from django_workpool.execution import courier as couriers
from django_workpool.execution.courier import Courier
from django_workpool.models import InternalState, PendingStart, Work
from django_workpool.runner import troubles
from django_workpool.runner.service import Service
from django_workpool.settle import success
from django_workpool.testing import run_work
from django_workpool.types import Attempted, Outcome

from .conftest import MainProcess, StartMain
from .live import PATIENCE, result, results, wait_for_quiet, wait_until
from .other_session import another_session
from .runs import a_run
from .works.apps import QUICK_VARIABLE
from .works.models import Event
from .works.processes import where, where_async, where_query
from .works.receivers import GO_VARIABLE, SIGNALS_VARIABLE
from .works.tasks import count_up, die, ended, fail, fail_once, join, nap, note

Connect = Callable[[Signal, Callable[..., Any]], None]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that connects a receiver for one test."""
    connected: list[tuple[Signal, Callable[..., Any]]] = []

    def connect(signal: Signal, receiver: Callable[..., Any]) -> None:
        signal.connect(receiver)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


# Enqueued ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_enqueued_is_sent_once_a_call_in_the_callers_transaction(connect: Connect) -> None:
    told: list[dict[str, Any]] = []

    def receive(sender: None, **kwargs: Any) -> None:
        assert (sender, connection.in_atomic_block, Work.objects.filter(id__in=kwargs["work_ids"]).count()) == (None, True, 3)
        Event.objects.create(name="told", key=kwargs["pool"], at=0)
        told.append(kwargs)

    connect(signals.work_enqueued, receive)
    ids = Workpool("imports").using(name="three").enqueue_many(note, [call(str(number)) for number in range(3)])
    assert told == [
        {
            "signal": signals.work_enqueued, "pool": "imports", "work_ids": tuple(ids), "name": "three",
            "function": "tests.works.tasks.note", "kind": "action", "using": "default",
        }
    ]  # fmt: skip
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Workpool("imports").enqueue_many(note, [call()] * 3)
        raise ZeroDivisionError
    assert (len(told), Event.objects.filter(name="told").count(), Work.objects.count()) == (2, 1, 3)
    assert Workpool("imports").enqueue_many(note, []) == [] and len(told) == 2, "nothing is told of nothing"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("surrounded", [True, False])
def test_what_a_receiver_of_enqueued_raises_comes_out_of_enqueue_which_has_done_nothing(connect: Connect, surrounded: bool) -> None:
    def refuse(sender: None, **kwargs: Any) -> None:
        Event.objects.create(name="refused", key="", at=0)
        raise LookupError("refused")

    connect(signals.work_enqueued, refuse)
    if surrounded:
        with transaction.atomic():
            Event.objects.create(name="before", key="", at=0)
            with pytest.raises(LookupError):
                enqueue(note)
            Event.objects.create(name="after", key="", at=0)
    else:
        with pytest.raises(LookupError):
            enqueue(note)
    assert (Work.objects.count(), PendingStart.objects.count()) == (0, 0)
    assert set(Event.objects.values_list("name", flat=True)) == ({"before", "after"} if surrounded else set())


@pytest.mark.django_db
def test_nobody_who_listens_costs_nothing_and_somebody_one_savepoint_a_call(connect: Connect) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            Workpool().enqueue_many(note, [call(str(number)) for number in range(2500)])
        return len(queries)

    enqueue(note)
    unheard, sends = statements(), list[int]()
    receiver = lambda sender, **kwargs: sends.append(len(kwargs["work_ids"]))  # noqa: E731
    connect(signals.work_enqueued, receiver)
    assert (statements() - unheard, sends) == (2, [2500])


@pytest.mark.django_db
def test_receivers_are_told_in_the_tests_of_a_project(connect: Connect) -> None:
    told: list[tuple[str, ...]] = []
    receiver = lambda sender, signal, name, **kwargs: told.append((name, kwargs.get("status", "started")))  # noqa: E731
    for signal in (signals.work_started, signals.work_completed):
        connect(signal, receiver)
    Workpool().using(name="good").enqueue(note)
    canceled = Workpool().using(name="canceled").enqueue(note)
    Workpool().cancel(canceled)
    Workpool().using(name="bad").enqueue(fail)
    Workpool().using(name="change").enqueue(count_up, "counted")
    run_work()
    assert sorted(told) == sorted(
        [(name, "started") for name in ("good", "bad", "change")]
        + [("good", "success"), ("canceled", "canceled"), ("bad", "failed"), ("change", "success")]
    )
    assert couriers.courier._aside is None


# The courier ------------------------------------------------------------------------------------------------------


@pytest.fixture
def courier(monkeypatch: pytest.MonkeyPatch) -> Iterator[Courier]:
    """Run a courier on a supervised thread, as a process does."""
    made, stop = Courier(), threading.Event()
    monkeypatch.setattr(couriers, "MOST", 3)
    service = Service("signals", made.run, stop)
    service.start()
    wait_until(lambda: made._delivering)
    yield made
    stop.set()
    made._queue.put(None)
    assert service.join(10)


def test_the_courier_takes_no_more_than_it_may_and_waits_for_nobody(
    courier: Courier, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    go, told = threading.Event(), list[int]()

    def hang(sender: None, number: int, **kwargs: Any) -> None:
        go.wait(PATIENCE)
        told.append(number)

    connect(signals.pool_wedged, hang)
    courier.post(signals.pool_wedged, number=0)
    wait_until(courier._queue.empty)
    for number in range(1, 10):
        courier.post(signals.pool_wedged, number=number)
    assert told == []
    go.set()
    wait_until(lambda: len(told) == 4)
    assert told == [0, 1, 2, 3]
    dropped = [record.workpool for record in caplog.records if "signals_dropped" in record.getMessage()]  # type: ignore[attr-defined]
    assert dropped == [{"event": "signals_dropped", "pool": "*", "signals": 1, "waiting": 3}], "the rest is told a minute later"
    courier.post(signals.pool_wedged, number=10)
    wait_until(lambda: told[-1] == 10)


def test_the_courier_survives_what_receivers_raise(courier: Courier, connect: Connect) -> None:
    told: list[str] = []

    def misbehave(sender: None, how: str, **kwargs: Any) -> None:
        told.append(how)
        raise {"error": ValueError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[how]("asked for")

    async def hear(sender: None, how: str, **kwargs: Any) -> None:
        told.append(f"async {how}")

    connect(signals.pool_wedged, misbehave)
    connect(signals.pool_wedged, hear)
    for how in ("exit", "interrupt", "error"):
        courier.post(signals.pool_wedged, how=how)
    wait_until(lambda: "async error" in told)
    assert [one for one in told if not one.startswith("async")] == ["exit", "interrupt", "error"]


def test_without_a_thread_that_delivers_or_a_receiver_nothing_is_kept(connect: Connect) -> None:
    courier, run = Courier(), a_run(1, "one")
    done = Attempted(run, Outcome("success", "1"), "")
    courier.completed(run, run.work_id, success(done))
    courier._delivering = 1
    courier.completed(run, run.work_id, success(done))
    assert courier._queue.empty()
    receiver = lambda sender, **kwargs: None  # noqa: E731
    connect(signals.work_completed, receiver)
    courier._delivering = 0
    courier.completed(run, run.work_id, success(done))
    assert courier._queue.empty()


def test_the_courier_stays_as_long_as_somebody_may_have_something_to_tell(connect: Connect) -> None:
    """The writer and the loop end after the stop, and what they tell last is delivered."""
    courier, stop, told = Courier(), threading.Event(), list[int]()
    receiver = lambda sender, **kwargs: told.append(kwargs["number"])  # noqa: E731
    connect(signals.pool_wedged, receiver)

    def feed(stop: threading.Event) -> None:
        stop.wait()
        courier.post(signals.pool_wedged, number=0)
        time.sleep(0.2)
        courier.post(signals.pool_wedged, number=1)

    feeder, service = Service("loop", courier.feeding(feed), stop), Service("signals", courier.run, stop)
    service.start()
    feeder.start()
    wait_until(lambda: courier._delivering and courier._feeding)
    stop.set()
    assert (feeder.join(10), service.join(5), told) == (True, True, [0, 1])


def test_a_pool_whose_iterations_fail_is_told_of_as_wedged(monkeypatch: pytest.MonkeyPatch, connect: Connect) -> None:
    receiver = lambda sender, **kwargs: None  # noqa: E731
    connect(signals.pool_wedged, receiver)
    monkeypatch.setattr(couriers.courier, "_aside", [])
    monkeypatch.setattr(troubles, "WEDGED_AFTER", -1.0)
    error = RuntimeError("the loop fails")
    assert not is_away(error)
    troubles.Troubles().note("imports", error, is_over=False)
    assert couriers.courier._aside == [
        (signals.pool_wedged, {"pool": "imports", "reason": "wedged", "error": "the loop fails", "seconds": 0})
    ]


# Real processes ---------------------------------------------------------------------------------------------------


def start(main_process: StartMain, how: str, *arguments: str, **env: str) -> MainProcess:
    """Start a worker with receivers."""
    main = main_process(*arguments, env={SIGNALS_VARIABLE: how, **env})
    main.wait_for("process_started", PATIENCE)
    return main


def heard(signal: str, name: str, number: int = 1) -> list[dict[str, str]]:
    """Wait until so many signals have been recorded for a work's name, and return what they told."""
    rows = Event.objects.filter(name=signal, key=name).order_by("id")
    wait_until(lambda: rows.count() >= number)
    assert rows.count() == number
    return [ast.literal_eval(row.text) for row in rows]


def part(told: dict[str, str], *names: str) -> tuple[str, ...]:
    return tuple(told[name] for name in names)


@pytest.fixture(params=["--threads", "--processes"])
def main(request: Any, main_process: StartMain) -> MainProcess:
    """Run a worker whose receivers raise, end the interpreter, leave transactions open; the last one records."""
    return start(main_process, "raises,exits,spoils", request.param, "2")


@pytest.mark.slow
def test_started_and_completed_tell_of_each_attempt(main: MainProcess) -> None:
    """Whatever other receivers do. Started where the function runs, completed on a thread of the main process."""
    pid, pool = str(main.process.pid), Workpool("imports")
    works = {
        "acts": pool.using(name="acts").enqueue(where, "x"),
        "changes": pool.using(name="changes", on_complete=ended).enqueue(count_up, "counted"),
        "reads": pool.using(name="reads").enqueue(where_query),
        "waits": pool.using(name="waits").enqueue(where_async),
        "fails": pool.using(name="fails", on_complete=ended).enqueue(fail, "it failed"),
    }
    archived = {name: result(work_id) for name, work_id in works.items()}
    kinds = {"acts": "action", "changes": "mutation", "reads": "query", "waits": "action", "fails": "action"}
    for name, work_id in works.items():
        (started,), (completed,) = heard("work_started", name), heard("work_completed", name)
        assert part(started, "pool", "work_id", "function", "kind", "attempt") == (
            "imports", str(work_id), archived[name].func_path, kinds[name], "1",
        )  # fmt: skip
        wanted = ("failed", "it failed") if name == "fails" else ("success", "")
        assert part(completed, "pool", "work_id", "function", "kind", "attempts") == (
            "imports", str(work_id), archived[name].func_path, kinds[name], "1",
        )  # fmt: skip
        assert part(completed, "status", "error", "thread", "pid", "atomic") == (*wanted, "workpool-signals", pid, "False")
        assert set(started) | {"attempts", "status", "error"} == set(completed) | {"attempt"}
        if name not in ("waits",):
            assert started["atomic"] == "False"
            assert (started["pid"] == pid) == ("--threads" in main.process.args), name  # type: ignore[operator]
    wait_for_quiet()


@pytest.mark.slow
def test_retries_and_cancelations_are_told(main: MainProcess) -> None:
    """A retry is one completion and a second start; a work canceled before it runs is told of by the loop, without a start."""
    again = Workpool().using(name="again").enqueue(fail_once, "again")
    assert result(again).attempts == 2
    assert [one["attempt"] for one in heard("work_started", "again", 2)] == ["1", "2"]
    told = heard("work_completed", "again", 2)
    assert [part(one, "status", "attempts", "error") for one in told] == [
        ("retrying", "1", "the first attempt of again"), ("success", "2", ""),
    ]  # fmt: skip
    Workpool("imports").configure(max_parallelism=0)
    never = Workpool("imports").using(name="never").enqueue(note)
    assert Workpool("imports").cancel(never) and result(never).kind == "canceled"
    (canceled,) = heard("work_completed", "never")
    assert part(canceled, "work_id", "function", "kind", "status", "attempts", "error", "thread") == (
        str(never), "tests.works.tasks.note", "action", "canceled", "0", "canceled", "workpool-signals",
    )  # fmt: skip
    assert not Event.objects.filter(name="work_started", key="never").exists()


@pytest.mark.slow
def test_a_receiver_that_ends_the_interpreter_ends_nothing(main: MainProcess) -> None:
    """Its turn is over, and so is that of those after it; the function runs, and the next signals are sent."""
    assert result(Workpool().using(name="exit, please").enqueue(note)).kind == "success"
    assert result(Workpool().using(name="goes on").enqueue(note)).kind == "success"
    heard("work_completed", "goes on")
    assert not Event.objects.filter(key="exit, please").exists()
    main.terminate()
    assert main.wait(PATIENCE) == 0


def test_mutations_that_share_a_transaction_are_told_of_each(main_process: StartMain) -> None:
    start(main_process, "record", "--threads", "1", "--prefetch", "50")
    ids = Workpool().using(name="joined").enqueue_many(join, [call(str(number), "waits") for number in range(20)])
    results(ids)
    assert {one["work_id"] for one in heard("work_completed", "joined", 20)} == {str(one) for one in ids}
    assert {one["work_id"] for one in heard("work_started", "joined", 20)} == {str(one) for one in ids}


@pytest.mark.slow
def test_works_of_a_process_that_died_are_told_of_by_the_one_that_recovers_them(main_process: StartMain) -> None:
    doomed = start(main_process, "record", "--pool", "imports", **{QUICK_VARIABLE: "1"})
    lost = Workpool("imports").using(name="lost", retry=False).enqueue(nap, 60)
    heard("work_started", "lost")
    doomed.kill()
    heir = start(main_process, "record", **{QUICK_VARIABLE: "1"})
    (told,) = heard("work_completed", "lost")
    assert part(told, "status", "attempts", "pid", "function") == ("failed", "1", str(heir.process.pid), "tests.works.tasks.nap")
    assert told["error"].startswith("worker lost: ") and result(lost).error == told["error"]


def test_a_child_process_that_dies_is_told_of(main_process: StartMain) -> None:
    start(main_process, "record", "--processes", "1")
    result(Workpool().using(name="dies", retry=False).enqueue(die, "exit"))
    (told,) = heard("work_completed", "dies")
    assert (told["status"], told["error"]) == ("failed", "worker process lost (exit code 0)")


def test_an_executor_of_others_sends_started_where_it_runs_the_function(main_process: StartMain) -> None:
    main = start(main_process, "record", "--executor", "tests.works.executors.process_pool")
    result(Workpool().using(name="there").enqueue(where, "x"))
    (started,), (completed,) = heard("work_started", "there"), heard("work_completed", "there")
    assert started["pid"] != str(main.process.pid) == completed["pid"]
    assert (completed["status"], completed["work_id"]) == ("success", started["work_id"])


def test_a_receiver_that_hangs_keeps_neither_works_nor_the_end(main_process: StartMain, tmp_path: Path) -> None:
    """All works end meanwhile. If it goes on, all is delivered before the end; if not, the process ends all the same, soon."""
    go = tmp_path / "go-signals"
    main = start(main_process, "hangs", **{GO_VARIABLE: str(go)})
    results(Workpool().using(name="first").enqueue_many(note, [call()] * 50))
    assert not Event.objects.filter(name="work_completed").exists()
    go.touch()
    assert len({one["work_id"] for one in heard("work_completed", "first", 50)}) == 50
    go.unlink()
    results(Workpool().using(name="second").enqueue_many(note, [call()] * 5))
    began = time.monotonic()
    main.terminate()
    assert main.wait(PATIENCE) == 0
    assert time.monotonic() - began < 10
    assert not Event.objects.filter(name="work_completed", key="second").exists(), "at most once"


def test_what_has_been_told_last_is_delivered_at_the_end(main_process: StartMain) -> None:
    """With --drain, the process ends as soon as the works have."""
    ids = Workpool().using(name="drained").enqueue_many(note, [call(str(number)) for number in range(100)])
    main = main_process("--drain", env={SIGNALS_VARIABLE: "record"})
    assert main.wait(PATIENCE) == 0, main.output()
    assert {one["work_id"] for one in heard("work_completed", "drained", 100)} == {str(one) for one in ids}


@pytest.mark.slow
@pytest.mark.skipif("postgres" not in os.environ.get("DATABASE_URL", ""), reason="PostgreSQL only: SQLite has no lock of a row")
def test_a_wedged_pool_is_told_of_by_a_real_process(main_process: StartMain) -> None:
    """Somebody holds the row that each iteration locks."""
    start(main_process, "record", "--threads", "1")
    result(Workpool("imports").enqueue(note))
    with another_session(lambda: InternalState.objects.select_for_update().get(pool="imports")):
        waits = Workpool("imports").enqueue(note)
        wait_until(lambda: Event.objects.filter(name="pool_wedged", key="imports").exists())
    told = ast.literal_eval(Event.objects.filter(name="pool_wedged").earliest("id").text)
    assert part(told, "pool", "reason", "thread") == ("imports", "wedged", "workpool-signals") and int(told["seconds"]) >= 5
    assert told["error"] != ""
    assert result(waits).kind == "success"


def test_the_manual_tells_of_each_signal_and_its_arguments() -> None:
    text = (Path(signals.__file__).parents[1] / "README.md").read_text()
    lines = {name: line for line in text.splitlines() for name in vars(signals) if line.startswith(f"| `{name}` |")}
    assert set(lines) == {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    told = {"work_enqueued": "pool work_ids name function kind using", "work_started": "pool work_id name function kind attempt"}
    told |= {"work_completed": "pool work_id name function kind attempts status error", "pool_wedged": "pool reason error seconds"}
    for name, arguments in told.items():
        assert all(f"`{argument}`" in lines[name] for argument in arguments.split()), name
