"""Functions in child processes: one ``workpool_main --processes 2`` for most, others that are killed and stopped."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_workpool import Workpool, call
from django_workpool.models import Archive, PendingStart, RunningWork, Work
from django_workpool.types import FnType

from .live import (
    Live,
    children,
    failures,
    lines,
    live_main,
    result,
    results,
    running,
    texts,
    transactional_db,
    value,
    wait_for_quiet,
    wait_until,
)
from .test_cases_threads import ENDS
from .works.apps import ONCE_VARIABLE, QUICK_VARIABLE
from .works.models import Event
from .works.processes import (
    burn,
    descriptors,
    end_always,
    end_by,
    end_once,
    fork,
    hold_the_interpreter,
    meet,
    say,
    swallow,
    use_multiprocessing,
    where,
    where_async,
    where_mutation,
    where_query,
    write_line,
)
from .works.tasks import UNCHANGED_SESSION, ended, hold, leave_behind, look_around, nap, raise_of_class

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at through /proc")
#: The pool of those that have a process of their own.
OTHER = Workpool("imports")


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` with two children for the tests of this module."""
    folder = tmp_path_factory.mktemp("main")
    with live_main(django_db_blocker, test_database_url, folder, "--processes", "2", "--pool", "default") as running:
        yield running


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def together(folder: Path, key: str) -> set[int]:
    """Let two works meet, and return the processes that ran them."""
    place = folder / key
    place.mkdir()
    return {value(one) for one in Workpool().enqueue_many(meet, [call(str(place), str(number), 2) for number in range(2)])}


def test_each_kind_runs_where_it_belongs(live: Live) -> None:
    """Actions, mutations and queries in children, coroutines in the main process; callbacks are called, output arrives."""
    pool, main = Workpool().using(on_complete=ended), live.main.process.pid
    ids = [pool.enqueue(function) for function in (where, where_mutation, where_query, where_async)]
    place, mutation, query, coroutine = (value(one) for one in ids)
    assert place["parent"] == main
    assert main not in {place["pid"], mutation, query} and coroutine == main
    assert [texts("ended", one) for one in ids] == [["success:None"]] * 4
    text = "x\n\u2028🎉" * 100_000
    assert value(Workpool().enqueue(where, text))["text"] == text
    assert result(Workpool().enqueue(say, "told by a child")).kind == "success"
    live.main.wait_for("told by a child", 5)
    wait_for_quiet()


def test_two_run_at_once_and_the_database_knows(live: Live, tmp_path: Path) -> None:
    """As many as there are children, each in another one; a third has to wait."""
    assert len(together(tmp_path, "met")) == 2
    third = Workpool().enqueue_many(nap, [call(0.4)] * 3)
    wait_until(lambda: running() == 2)
    results(third)


def test_exceptions_that_end_threads_are_failures(live: Live, tmp_path: Path) -> None:
    """C026: they fail with the name of their type, and the same children go on."""
    before = together(tmp_path, "before")
    ids = Workpool().using(on_complete=ended).enqueue_many(raise_of_class, [call(name) for name in ENDS])
    for name, one in zip(ENDS, results(ids), strict=True):
        assert (one.kind, one.attempts) == ("failed", 1)
        assert failures(one.id)[0].class_path.rpartition(".")[2] == name
        assert texts("ended", one.id) == ["failed:None"]
    assert result(Workpool().enqueue(raise_of_class, "sub-thread")).kind == "success"
    assert {int(text) for text in Event.objects.filter(name="thread").values_list("text", flat=True)} <= before
    assert together(tmp_path, "after") == before
    assert live.main.process.pid not in before


def test_next_function_finds_everything_as_after_a_start(live: Live) -> None:
    """What a function leaves behind in its child is put right there."""
    for what in ("transaction", "atomic", "session", "thread"):
        assert value(Workpool().enqueue(leave_behind, what)) == 1
    for found in [value(one) for one in Workpool().enqueue_many(look_around, [call()] * 3)]:
        assert (found["autocommit"], found["uncommitted"], found["language"], found["zone"]) == (True, 0, "en-us", "UTC")
        assert found["session"] == UNCHANGED_SESSION[connection.vendor]
    assert "left the working directory" in live.main.output()


@pytest.mark.slow
def test_function_that_ends_its_process_fails_alone(live: Live, tmp_path: Path) -> None:
    """C026: _exit, abort and a crash of the interpreter fail their own work, what runs beside it goes on, and the child is replaced."""
    beside = Workpool().enqueue(meet, str(tmp_path), "beside", 2)
    hows = {"exit": "exit code 0", "abort": "signal 6, SIGABRT", "crash": "signal 11, SIGSEGV"}
    ids = Workpool().using(on_complete=ended).enqueue_many(end_by, [call(how) for how in hows])
    for how, one in zip(hows, results(ids), strict=True):
        assert (one.kind, one.error, one.attempts) == ("failed", f"worker process lost ({hows[how]})", 1)
        assert [failure.class_path for failure in failures(one.id)] == ["django_workpool.WorkerLost"]
        assert texts("ended", one.id) == ["failed:None"]
    assert Archive.objects.filter(id=beside).count() == 0
    (tmp_path / "met-now").touch()
    value(beside)
    assert len(together(tmp_path, "after")) == 2
    assert len([result(one) for one in Workpool().enqueue_many(where, [call()] * 10)]) == 10
    wait_for_quiet()


def test_work_that_always_ends_its_process_is_given_up(live: Live, tmp_path: Path) -> None:
    """C002: three attempts, three starts; twenty others beside it end at their first."""
    poison = Workpool().enqueue(end_always, str(tmp_path / "poison"))
    others = Workpool().enqueue_many(where, [call(str(number)) for number in range(20)])
    assert {(one.kind, one.attempts) for one in results(others)} == {("success", 1)}
    ended = result(poison)
    assert (ended.kind, ended.attempts, len(failures(poison))) == ("failed", 3, 3)
    assert len(set(lines(tmp_path / "poison"))) == 3


def test_mutation_that_ends_its_process_is_run_again(live: Live, tmp_path: Path) -> None:
    """What it did was rolled back, and no attempt is counted."""
    work = Workpool().using(on_complete=ended).enqueue(end_once, str(tmp_path / "mutation"))
    assert value(work) == 1
    assert (result(work).attempts, len(set(lines(tmp_path / "mutation")))) == (1, 2)
    assert texts("ended", work) == ["success:None"]
    assert Event.objects.filter(name="end once").count() == 1


@pytest.mark.parametrize("returns", [False, True])
def test_function_may_fork(live: Live, returns: bool) -> None:
    """C022: a copy that ends, and one that returns from the function, disturb neither the child nor its connection."""
    ids = Workpool().enqueue_many(fork, [call(returns)] * 3)
    assert {value(one)[0] for one in ids} == {0 if returns else 7}
    assert [one.attempts for one in results(ids)] == [1, 1, 1]
    assert live.main.output().count("event=stale") == 0


@LINUX
def test_function_may_use_multiprocessing(live: Live) -> None:
    """C022: a pool of processes inside, whose members use the database as well, and are gone afterwards."""
    told = [value(one) for one in Workpool().enqueue_many(use_multiprocessing, [call()] * 2)]
    assert [one["sum"] for one in told] == [6, 6] and all(one["same"] for one in told)
    pids = {pid for one in told for pid in one["pids"]}
    assert not pids & {one["pid"] for one in told}
    assert not any(is_alive(pid) for pid in pids)
    assert value(Workpool().enqueue(where_mutation)) in children(live.main.process.pid)


@LINUX
def test_programs_inherit_nothing_of_the_pool(live: Live) -> None:
    """Neither the socket to the main process nor a connection to the database."""
    assert value(Workpool().enqueue(descriptors)) == []


@LINUX
def test_child_that_dies_idle_is_replaced(live: Live, tmp_path: Path) -> None:
    """Nobody is told of it but the log, and the next works find two."""
    before = together(tmp_path, "before")
    for pid in before:
        # These go to all processes of a terminal or a service, and are for the main process to obey.
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert together(tmp_path, "still") == before
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{min(before)}").exists())
    after = together(tmp_path, "after")
    assert max(before) in after and min(before) not in after and len(after) == 2


@LINUX
def test_children_end_with_a_killed_main_process(live: Live, tmp_path: Path) -> None:
    """kill -9: a function that computes, one that keeps all threads from running, and what that has forked, are gone in two seconds."""
    main = live.start("--processes", "2", "--pool", "imports")
    OTHER.enqueue(burn, str(tmp_path / "pids"))
    OTHER.enqueue(hold_the_interpreter, str(tmp_path / "pids"))
    wait_until(lambda: len(lines(tmp_path / "pids")) == 3)
    pids = lines(tmp_path / "pids")
    assert all(is_alive(pid) for pid in pids)
    os.kill(main.process.pid, signal.SIGKILL)
    main.process.wait(10)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), 2)


@pytest.mark.slow
@LINUX
def test_stop_amid_functions_that_never_end(live: Live, tmp_path: Path) -> None:
    """C047: killed after the grace time; each is marked before the process ends, and the one that ends in time succeeds."""
    main = live.start("--processes", "3", "--pool", "imports", "--grace", "1")
    burning, swallowing = OTHER.enqueue(burn, str(tmp_path / "pids")), OTHER.enqueue(swallow, str(tmp_path / "pids"))
    wait_until(lambda: len(lines(tmp_path / "pids")) == 2)
    in_time = OTHER.enqueue(hold, str(tmp_path), "in time")
    wait_until((tmp_path / "begun-in time").exists)
    wait_until(lambda: running("imports") >= 3)
    waiting = OTHER.enqueue(where)
    began = time.monotonic()
    main.terminate()
    main.wait_for("process_stopping", 10)
    (tmp_path / "go").touch()
    assert main.wait(20) == 0
    assert time.monotonic() - began < 1 + 2
    assert not any(is_alive(pid) for pid in lines(tmp_path / "pids"))
    assert (result(in_time).kind, result(burning).kind) == ("success", "failed")
    assert failures(burning)[0].class_path == "django_workpool.Interrupted"
    for work_id in (swallowing, waiting):
        # A leader that did not know yet may have placed what waits with this worker once more.
        ((attempts, returns),) = Work.objects.filter(id=work_id).values_list("attempts", "returns")
        assert (attempts, returns) in ((0, 1), (0, 0))
    assert PendingStart.objects.filter(work_id__in=[swallowing, waiting]).count() == 2
    assert RunningWork.objects.filter(work_id__in=[in_time, burning, swallowing, waiting]).count() == 0
    OTHER.cancel_all()
    wait_for_quiet()


@pytest.mark.slow
@LINUX
def test_interrupt_twice(live: Live, tmp_path: Path) -> None:
    """C048: the whole group of the terminal gets it; the first lets functions end, the second does not; the work is marked."""
    main = live.start("--processes", "2", "--pool", "imports")
    burning = OTHER.enqueue(burn, str(tmp_path / "pids"))
    wait_until(lambda: len(lines(tmp_path / "pids")) == 1)
    os.killpg(main.process.pid, signal.SIGINT)
    main.wait_for("process_stopping", 10)
    time.sleep(0.2)
    assert main.process.poll() is None and is_alive(lines(tmp_path / "pids")[0])
    began = time.monotonic()
    os.killpg(main.process.pid, signal.SIGINT)
    assert main.wait(20) == 0
    assert time.monotonic() - began < 2
    assert not is_alive(lines(tmp_path / "pids")[0])
    assert failures(burning)[0].class_path == "django_workpool.Interrupted"
    assert "Traceback" not in main.output()
    wait_for_quiet()


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="PostgreSQL only")
def test_lost_connections_and_recycled_children(live: Live, tmp_path: Path) -> None:
    """C012: all connections are cut again and again while children are replaced: nothing is run twice, every result arrives."""
    main = live.start("--processes", "2", "--recycle", "4", "--pool", "imports")
    ids = OTHER.using(on_complete=ended).enqueue_many(write_line, [call(str(tmp_path / "lines"))] * 8)
    ids += OTHER.enqueue_many(write_line, [call(str(tmp_path / "lines"))] * 8)
    for number in range(3):
        wait_until(lambda number=number: len(lines(tmp_path / "lines")) > 5 * number)
        with connection.cursor() as cursor:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            cursor.execute(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {others}")
    assert {(one.kind, one.attempts) for one in results(ids)} == {("success", 1)}
    assert len(lines(tmp_path / "lines")) == 16
    assert max(lines(tmp_path / "lines").count(pid) for pid in lines(tmp_path / "lines")) <= 4
    assert [texts("ended", one) for one in ids[:8]] == [["success:None"]] * 8
    wait_for_quiet()
    main.terminate()
    assert main.wait(20) == 0


@pytest.mark.slow
def test_children_that_cannot_start_end_the_process(live: Live, tmp_path: Path) -> None:
    """They are tried again with growing pauses, told in the log; then the process ends with an error, and its work goes back."""
    main = live.start("--processes", "1", "--pool", "imports", env={ONCE_VARIABLE: str(tmp_path / "once"), QUICK_VARIABLE: "1"})
    work = OTHER.enqueue(where)
    assert main.wait(60) == 1
    output = main.output()
    assert "FileExistsError" in output and "giving up after 3 attempts" in output
    assert output.count("has ended before its first work (exit code 1)") == 3
    assert list(Work.objects.filter(id=work).values_list("fn_type", "attempts")) == [(FnType.ACTION, 0)]
    OTHER.cancel(work)
    wait_for_quiet()
