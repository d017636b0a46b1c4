"""Actions in executors of others: Python's own processes, and a Dask cluster."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from django_workpool import Workpool, call
from django_workpool.execution import foreign
from django_workpool.execution.foreign import ForeignExecutor
from django_workpool.execution.frames import Lines, outcome_frame, pack, read_outcome, read_run, run_frame, unpack
from django_workpool.execution.threads import ExecutorStopped
from django_workpool.types import Failure, Outcome, Run

from .live import Live, failures, live_main, result, results, texts, transactional_db, value, wait_for_quiet, wait_until
from .runs import a_run, some_runs, tokens
from .works.processes import end_by, say, where, where_async, where_mutation, where_query
from .works.stops import TWICE, burn_for, look_at_itself
from .works.tasks import ended, ended_once, fail, fail_once, return_text

__all__ = ["transactional_db"]

DASK = pytest.param(
    "dask_cluster", marks=pytest.mark.skipif(find_spec("distributed") is None, reason="the extra dask is not installed: no distributed")
)


@pytest.fixture(scope="module", params=["process_pool", DASK])
def live(request: Any, django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` that hands actions to an executor with two processes."""
    options = ("--threads", "4", "--executor", f"tests.works.executors.{request.param}")
    env = {"WORKPOOL_TEST_TASK_SIGNALS": "1"}
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), *options, env=env) as running:
        yield running


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_actions_run_there_and_their_outcomes_come_home(live: Live) -> None:
    """Twenty actions, in two processes that are not the main one; everything else runs in that one."""
    main = live.main.process.pid
    ids = Workpool().using(on_complete=ended_once).enqueue_many(where, [call(str(number)) for number in range(20)])
    told = [value(one) for one in ids]
    assert [one["text"] for one in told] == [str(number) for number in range(20)]
    assert main not in {one["pid"] for one in told} and len({one["pid"] for one in told}) <= 2
    assert [value(Workpool().enqueue(function)) for function in (where_mutation, where_query, where_async)] == [main] * 3
    wait_for_quiet()


def told(result_id: str) -> list[dict[str, Any]]:
    """Wait until the end of a task was told, and return the signals that were heard of it."""
    wait_until(lambda: any("task_finished" in text for text in texts("signal", result_id)))
    return [json.loads(text) for text in texts("signal", result_id)]


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_tasks_of_the_framework_run_there(live: Live) -> None:
    """With their context; the end is told in the main process, where it is written."""
    background = pytest.importorskip("tests.background.tasks", reason="no task framework", exc_type=ImportError)
    results = [
        background.look.using(priority=4).enqueue(key="there"),
        background.third_time.enqueue("there"),
        background.fail_value.enqueue(),
    ]
    for one in results:
        result(uuid.UUID(one.id))
        one.refresh()
    looked, third, failed = results
    assert {name: looked.return_value[name] for name in ("attempt", "id", "priority", "key")} == {
        "attempt": 1,
        "id": looked.id,
        "priority": 4,
        "key": "there",
    }
    assert (third.return_value, third.attempts, [error.exception_class for error in third.errors]) == (3, 3, [ValueError, KeyError])
    assert (failed.status, failed.errors[0].exception_class) == ("FAILED", ValueError)
    assert looked.return_value["workers"] != looked.worker_ids
    heard = told(failed.id)
    assert [(one["signal"], one["status"], one["pid"] == live.main.process.pid) for one in heard][-1] == ("task_finished", "FAILED", True)


@pytest.mark.usefixtures("transactional_db")
def test_timeouts_hold_there(live: Live, tmp_path: Path) -> None:
    """As on a thread, and what the function is told of its work is told there, too."""
    late = Workpool().using(timeout=timedelta(milliseconds=150), retry=TWICE).enqueue(burn_for, str(tmp_path), 60)
    itself = Workpool().using(name="a label").enqueue(look_at_itself)
    assert (result(late).kind, result(late).attempts) == ("failed", 2)
    assert [failure.class_path for failure in failures(late)] == ["django_workpool.exceptions.WorkTimeout"] * 2
    told = value(itself)
    assert (told["work_id"], told["name"], told["attempt"]) == (str(itself), "a label", 1)


@pytest.mark.usefixtures("transactional_db")
def test_failures_come_home_as_they_are(live: Live) -> None:
    """With class, text and traceback; retried if the work says so; a value that cannot be stored is a failure too."""
    failing = Workpool().using(on_complete=ended).enqueue(fail, "failed there")
    assert (result(failing).kind, result(failing).error) == ("failed", "failed there")
    (failure,) = failures(failing)
    assert failure.class_path == "builtins.ValueError"
    assert "tests/works/tasks.py" in failure.traceback and "raise ValueError(text)" in failure.traceback
    assert texts("ended", failing) == ["failed:None"]
    retried = Workpool().enqueue(fail_once, "there")
    assert (value(retried), result(retried).attempts) == ("there", 2)
    unstorable = Workpool().enqueue(return_text, "set")
    assert result(unstorable).kind == "failed"
    assert [failure.class_path for failure in failures(unstorable)] == ["django_workpool.exceptions.UnstorableResult"]
    wait_for_quiet()


@pytest.mark.usefixtures("transactional_db")
def test_lost_process_fails_its_attempt(live: Live) -> None:
    """The executor says that it has lost it; the next actions find processes again."""
    lost = Workpool().using(on_complete=ended).enqueue(end_by, "exit")
    assert result(lost).kind == "failed"
    assert result(lost).error.startswith("the executor lost it: ")
    assert [failure.class_path for failure in failures(lost)] == ["django_workpool.ExecutorLost"]
    assert texts("ended", lost) == ["failed:None"]
    assert {one.kind for one in results(Workpool().enqueue_many(say, [call("x")] * 6))} == {"success"}
    wait_for_quiet()


# Executors that the test plays itself -------------------------------------------------------------------------------


class Played(Executor):
    """Takes what it is told to take, and ends it when it is told."""

    def __init__(self, refuses: BaseException | None = None) -> None:
        self.refuses = refuses
        self.futures: list[Future[str]] = []
        self.closed = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[str]:
        if self.refuses is not None:
            raise self.refuses
        assert fn is foreign.call and [type(arg) for arg in args] == [str, str]
        self.futures.append(Future())
        return self.futures[-1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.closed = True


class Home:
    """A foreign executor with its thread, and what has come home."""

    def __init__(self, *executors: Any) -> None:
        self.made: list[Any] = []
        self.executors = list(executors)
        self.outcomes: list[tuple[int, Outcome]] = []
        self.refused: list[int] = []
        self.executor = ForeignExecutor(self.make, "tests.settings", self.take, self.refuse)
        self.thread = threading.Thread(target=self.executor.run, args=(threading.Event(),), daemon=True)

    def make(self) -> Any:
        self.made.append(self.executors.pop(0))
        if isinstance(self.made[-1], BaseException):
            raise self.made[-1]
        return self.made[-1]

    def take(self, run: Run, outcome: Outcome) -> None:
        self.outcomes.append((run.token, outcome))

    def refuse(self, runs: Sequence[Run]) -> None:
        self.refused += tokens(runs)


@contextmanager
def played(monkeypatch: pytest.MonkeyPatch, *executors: Any) -> Iterator[Home]:
    monkeypatch.setattr(foreign, "MAKE_AGAIN", 0.0)
    home = Home(*executors)
    home.thread.start()
    yield home
    home.executor.cut_off()
    home.executor.stop(0)
    home.thread.join(10)
    assert not home.thread.is_alive()


WaitUntil = Callable[..., None]


def test_what_is_not_taken_is_given_back_to_be_found_again(monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil) -> None:
    """Whatever making the executor or submit raises; what was taken before still comes home; the next run finds another executor."""
    first, broken = Played(), Played(BrokenExecutor("gone"))
    with played(monkeypatch, OSError("no cluster"), first, broken, Played()) as home:
        home.executor.submit(some_runs(2))
        wait_until(lambda: home.refused == [1] and len(first.futures) == 1)
        first.refuses = RuntimeError("full")
        home.executor.submit([a_run(3), a_run(4)])
        wait_until(lambda: home.refused == [1, 3, 4] and broken.closed)
        assert not first.closed
        first.futures[0].set_result('{"kind":"success","value":"7","failure":null}')
        wait_until(lambda: home.executor.idle)
        assert home.outcomes == [(2, Outcome(kind="success", value="7"))]
        home.executor.submit([a_run(5)])
        wait_until(lambda: list(home.executor.active()) == [5])


def test_what_an_executor_has_may_end_after_the_stop_has_begun(monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil) -> None:
    """Some cancel what they have when they are shut down: that waits until all is at home, or was given up."""
    first = Played()
    with played(monkeypatch, first) as home:
        home.executor.submit([a_run(1)])
        wait_until(lambda: len(first.futures) == 1)
        assert not home.executor.stop(0)
        with pytest.raises(ExecutorStopped):
            home.executor.submit([a_run(2)])
        assert home.thread.is_alive() and not first.closed
        first.futures[0].set_result('{"kind":"success","value":"7","failure":null}')
        assert home.executor.stop(10)
        wait_until(lambda: first.closed)
        assert home.outcomes == [(1, Outcome(kind="success", value="7"))]


def test_broken_executor_is_made_anew(monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil) -> None:
    """All that it had has failed, and may be retried; late news of the old one does not touch the new one."""
    first, second = Played(), Played()
    with played(monkeypatch, first, second) as home:
        home.executor.submit(some_runs(3))
        wait_until(lambda: len(first.futures) == 3)
        first.futures[0].set_exception(BrokenExecutor("a process died"))
        # On the thread of ours, not on the one that tells it.
        wait_until(lambda: first.closed)
        home.executor.submit([a_run(4)])
        wait_until(lambda: len(second.futures) == 1)
        first.futures[1].set_exception(BrokenExecutor("a process died"))
        first.futures[2].cancel()
        assert not second.closed
        wait_until(lambda: list(home.executor.active()) == [4])
        told = [(token, outcome.kind, outcome.failure and outcome.failure.text) for token, outcome in home.outcomes]
        assert told == [
            (1, "failed", "the executor lost it: BrokenExecutor: a process died"),
            (2, "failed", "the executor lost it: BrokenExecutor: a process died"),
            (3, "failed", "the executor lost it: CancelledError: CancelledError"),
        ]
        assert all(outcome.failure and outcome.failure.retryable for _, outcome in home.outcomes)


def test_canceled_works_are_taken_back_as_far_as_that_goes(monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil) -> None:
    """What has not begun never did; what has goes on, is asked for once, and ends as it ends."""
    first = Played()
    with played(monkeypatch, first) as home:
        home.executor.submit(some_runs(3))
        wait_until(lambda: len(first.futures) == 3)
        first.futures[1].set_running_or_notify_cancel()
        asked = []
        monkeypatch.setattr(first.futures[1], "cancel", lambda: bool(asked.append(1)))
        assert home.executor.cancel({1, 2, 9}) == [] == home.executor.cancel({1, 2, 9})
        wait_until(lambda: home.outcomes == [(1, Outcome(kind="returned"))] and asked == [1])
        first.futures[1].set_result('{"kind":"success","value":"7","failure":null}')
        first.futures[2].cancel()
        wait_until(lambda: home.executor.idle)
        assert home.outcomes[1] == (2, Outcome(kind="success", value="7"))
        assert [(token, outcome.kind) for token, outcome in home.outcomes[2:]] == [(3, "failed")], "nobody has asked for that"


def test_executor_that_breaks_all_the_time_is_not_made_all_the_time(wait_until: WaitUntil) -> None:
    """There are seconds between two; what comes meanwhile is given back."""
    home = Home(OSError("no cluster"), OSError("no cluster"))
    home.thread.start()
    home.executor.submit(some_runs(5))
    wait_until(lambda: home.refused == [1, 2, 3, 4, 5])
    assert len(home.made) == 1
    home.executor.stop(0)


def test_end_with_something_out(monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil) -> None:
    """What was handed over is told, and canceled; what comes home after that reaches nobody; nothing is taken any more."""
    other = Played()
    with played(monkeypatch, other) as home:
        home.executor.submit(some_runs(2))
        wait_until(lambda: len(other.futures) == 2)
        other.futures[0].set_running_or_notify_cancel()
        assert home.executor.stop(0) is False
        with pytest.raises(ExecutorStopped):
            home.executor.submit([a_run(3)])
        assert tokens(home.executor.cut_off()) == [1, 2]
        assert other.futures[1].cancelled()
        other.futures[0].set_result('{"kind":"success","value":"7","failure":null}')
        assert home.outcomes == [] and home.executor.idle


def test_stop_waits_for_what_is_out(monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil) -> None:
    """As long as it is told to."""
    other = Played()
    with played(monkeypatch, other) as home:
        home.executor.submit(some_runs(1))
        wait_until(lambda: len(other.futures) == 1)
        threading.Timer(0.2, lambda: other.futures[0].set_result('{"kind":"success","value":"7","failure":null}')).start()
        began = time.monotonic()
        assert home.executor.stop(20) is True
        assert time.monotonic() - began < 10
        assert tokens(home.executor.take_back()) == []


# What passes between processes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [datetime(2026, 1, 1, 2, 3, 4, 567, tzinfo=UTC), datetime(2026, 1, 1)])
def test_runs_and_outcomes_arrive_as_they_were_sent(started: datetime) -> None:
    """Whatever text is in them, in one line."""
    run = a_run(7, "x\n\u2028🎉\x00")._replace(started=started, has_callback=True, arguments='{"args":["\\n"],"kwargs":{}}')
    outcome = Outcome(kind="failed", failure=Failure(class_path="a.B", text="\ud800", traceback="1\n2", retryable=False))
    sent = [pack(run_frame(run)), pack(outcome_frame(outcome)), pack(outcome_frame(Outcome(kind="success", value="[1]")))]
    assert [line.count(b"\n") for line in sent] == [1, 1, 1]
    lines, stream = Lines(), b"".join(sent)
    got = [line for at in range(0, len(stream), 7) for line in lines.feed(stream[at : at + 7])]
    assert read_run(unpack(got[0])) == run
    assert [read_outcome(unpack(line)) for line in got[1:]] == [outcome, Outcome(kind="success", value="[1]")]
