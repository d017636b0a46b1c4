"""What functions say of their progress: what is taken, how often it is written, which rows count and which go."""

import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_workpool import CurrentWork, InvalidWork, NoCurrentWork, Progress, Workpool, progress
from django_workpool.database import Database, database
from django_workpool.execution import progress as room
from django_workpool.execution.progress import Board, Said, WrittenBoard, prune, write
from django_workpool.models import PendingCompletion, PendingStart, RunningWork
from django_workpool.models import Progress as Row
from django_workpool.runner.pruner import Pruner
from django_workpool.testing import run_work

from .conftest import MainProcess, StartMain
from .live import PATIENCE, value, wait_for_quiet, wait_until
from .other_session import another_session
from .works.apps import QUICK_VARIABLE
from .works.models import Counter
from .works.progress import say_and_change, say_nonsense, say_the_attempt
from .works.tasks import note

transactional = pytest.mark.django_db(transaction=True)


def started(key: str = "a") -> tuple[uuid.UUID, int]:
    """Enqueue a work and mark it as running; return its id and the token of its run."""
    work_id = Workpool().enqueue(note, key)
    PendingStart.objects.filter(work_id=work_id).delete()
    row = RunningWork.objects.create(work_id=work_id, pool="default", lane=0, worker_id=0, due=0, started=timezone.now())
    return work_id, row.pk


def said(work_id: uuid.UUID) -> tuple[float, float] | None:
    """Return what ``status`` tells of a work's progress."""
    told = Workpool().status(work_id).progress
    return None if told is None else (told.done, told.total)


@pytest.mark.parametrize(
    ("done", "total"),
    [
        (1, 0),
        (0, 0),
        (1, -1),
        (-1, 2),
        (float("nan"), 1),
        (1, float("nan")),
        (1, float("inf")),
        (float("inf"), 1),
        (10**400, 1),
        (1, 10**400),
        ("1", 2),
        (1, "2"),
        (None, 1),
        (1, None),
        (True, 2),
        (1, True),
        (1j, 2),
        (Decimal(1), 2),
        (1, 5e-324),
    ],
)
def test_what_is_no_progress_is_refused_before_anything_else(done: Any, total: Any) -> None:
    with pytest.raises(InvalidWork, match="done must be|total must be"):
        progress(done, total)
    with pytest.raises(InvalidWork):
        CurrentWork(uuid.uuid4(), "default", "name").progress(done, total)


@pytest.mark.parametrize(("done", "total"), [(0, 1), (1, 3), (2.5, 2), (Fraction(1, 2), 1), (5e-324, 1), (10**50, 10**60)])
def test_outside_of_a_work_nobody_is_told(done: Any, total: Any) -> None:
    with pytest.raises(NoCurrentWork, match="progress"):
        progress(done, total)
    # Made by a test of a project, or handed to a thread of a function that has ended.
    CurrentWork(uuid.uuid4(), "default", "name").progress(done, total)


def test_the_fraction_is_never_above_one() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert [Progress(done=done, total=4, said=at).fraction for done in (0, 3, 4, 5)] == [0, 0.75, 1, 1]


@transactional
def test_what_runs_say_is_told_by_the_status_in_as_many_statements_as_before() -> None:
    (one, token), (other, other_token), (silent, _) = started("a"), started("b"), started("c")
    write("default", [Said(one, token, 0.1, 3.0), Said(other, other_token, 1e22, 1e23)])
    write("default", [Said(one, token, 2.5, 3.0)])
    with CaptureQueriesContext(
        connection,
    ) as asked:
        found = Workpool().status_many([one, other, silent])
    assert [(status.state, status.progress and (status.progress.done, status.progress.total)) for status in found.values()] == [
        ("running", (2.5, 3.0)),
        ("running", (1e22, 1e23)),
        ("running", None),
    ]
    assert len(asked) == 1
    told = found[one].progress
    now = database("default").moment(database("default").clock_ms())
    assert told is not None and timedelta(0) <= now - told.said < timedelta(minutes=1)


@transactional
def test_time_is_told_without_time_zones_too(settings: Any) -> None:
    settings.USE_TZ = False
    work_id, token = started()
    write("default", [Said(work_id, token, 1, 2)])
    told = Workpool().status(work_id).progress
    now = database("default").moment(database("default").clock_ms())
    assert told is not None and timezone.is_naive(told.said) and timedelta(0) <= now - told.said < timedelta(minutes=1)


@transactional
def test_an_earlier_run_neither_writes_nor_counts() -> None:
    work_id, token = started()
    write("default", [Said(work_id, token, 1, 4)])
    RunningWork.objects.filter(pk=token).delete()
    again = RunningWork.objects.create(work_id=work_id, pool="default", lane=0, worker_id=0, due=0, started=timezone.now()).pk
    assert (said(work_id), Row.objects.count()) == (None, 1)
    write("default", [Said(work_id, again, 2, 4)])
    write("default", [Said(work_id, token, 3, 4)])
    assert (said(work_id), Row.objects.get().token) == ((2, 4), again)
    write("default", [Said(uuid.uuid4(), again, 3, 4)])
    assert Row.objects.count() == 1


@transactional
@pytest.mark.parametrize("follow", ["retry", "return"])
def test_a_work_that_goes_back_has_no_progress(follow: str) -> None:
    work_id, token = started()
    write("default", [Said(work_id, token, 1, 4)])
    PendingCompletion.objects.create(work_id=work_id, pool="default", segment=0, kind="failed", follow=follow)
    assert (Workpool().status(work_id).state, said(work_id)) == ("pending", None)


@transactional
def test_rows_of_runs_that_are_over_are_deleted_and_others_stay() -> None:
    (one, token), (other, other_token) = started("a"), started("b")
    write("default", [Said(one, token, 1, 4), Said(other, other_token, 1, 4)])
    assert prune("default") is False and Row.objects.count() == 2
    RunningWork.objects.filter(pk=token).delete()
    Row.objects.create(work_id=uuid.uuid4(), token=other_token, done=1, total=2, said=timezone.now())
    # The loop's own look.
    Pruner("default").prune()
    assert [row.work_id for row in Row.objects.all()] == [other]


@transactional
def test_what_a_work_says_that_runs_again_meanwhile_is_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    work_id, token = started()
    write("default", [Said(work_id, token, 1, 4)])
    RunningWork.objects.all().delete()
    kind = type(database("default"))
    read = kind.read_uuid

    def between(db: Database, value: Any) -> uuid.UUID:
        # It was found, and is not deleted yet.
        again = RunningWork.objects.create(work_id=work_id, pool="default", lane=0, worker_id=0, due=0, started=timezone.now())
        write("default", [Said(work_id, again.pk, 2, 4)])
        return read(db, value)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "read_uuid", between)
        prune("default")
    assert said(work_id) == (2, 4)


@transactional
def test_deleting_goes_in_chunks_and_costs_one_look_where_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert prune("default") is False
    assert len(asked) == 1
    monkeypatch.setattr(room, "PRUNE_CHUNK", 2)
    Row.objects.bulk_create(Row(work_id=uuid.uuid4(), token=7, done=1, total=2, said=timezone.now()) for _ in range(3))
    assert (prune("default"), Row.objects.count()) == (True, 1)
    assert (prune("default"), Row.objects.count()) == (False, 0)


# The board -------------------------------------------------------------------------------------------------------


class Kept:
    """A board whose thread runs, and what it has brought."""

    def __init__(self, board: Board) -> None:
        self.board, self.stop = board, threading.Event()
        self.thread = threading.Thread(target=board.run, args=(self.stop,), daemon=True)

    def start(self) -> None:
        self.thread.start()
        wait_until(lambda: room._boards.get("default") is self.board)

    def end(self) -> None:
        self.stop.set()
        self.board.close()
        self.thread.join(20)
        assert not self.thread.is_alive() and "default" not in room._boards


@pytest.fixture
def brought() -> list[list[Said]]:
    return []


@pytest.fixture
def kept(brought: list[list[Said]]) -> Iterator[Kept]:
    kept = Kept(Board("default", lambda taken: brought.append(list(taken))))
    yield kept
    kept.end()


def tell(number: int, done: float) -> None:
    """Say something as a running function does."""
    CurrentWork(uuid.UUID(int=number), "default", "name", token=number).progress(done, 1000)


def test_thousands_of_calls_become_few_statements(kept: Kept, brought: list[list[Said]]) -> None:
    """All runs are brought together, each with the newest that it has said, once in each interval."""
    kept.start()
    began = time.monotonic()
    for done in range(1001):
        for number in (1, 2, 3):
            tell(number, done)
    wait_until(lambda: [one.done for one in brought[-1:][0] if brought] == [1000] * 3 if brought else False)
    assert len(brought) <= 2 + (time.monotonic() - began) / room.EVERY
    assert [one.token for one in brought[-1]] == [1, 2, 3]


def test_no_more_than_once_in_an_interval(kept: Kept, brought: list[list[Said]], monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[float] = []
    kept.board._bring = lambda taken: at.append(time.monotonic())
    monkeypatch.setattr(room, "EVERY", 0.3)
    kept.start()
    deadline = time.monotonic() + 60
    while len(at) < 4 and time.monotonic() < deadline:
        tell(1, 1)
        time.sleep(0.001)
    assert min(later - earlier for earlier, later in zip(at, at[1:], strict=False)) >= 0.3


def test_many_runs_are_brought_in_portions_in_turns(kept: Kept, brought: list[list[Said]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST", 2)
    monkeypatch.setattr(room, "EVERY", 0.01)
    for number in (3, 2, 1):
        kept.board.say(Said(uuid.UUID(int=number), number, 1, 1))
    kept.start()
    wait_until(lambda: sum(map(len, brought)) == 3)
    assert [[one.token for one in some] for some in brought] == [[2, 3], [1]]


def test_what_cannot_be_written_is_put_off_and_never_told_to_the_function(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "EVERY", 0.01)
    seen: list[list[Said]] = []

    def fail(taken: Sequence[Said]) -> None:
        seen.append(list(taken))
        if len(seen) == 1:
            tell(1, 2)
        if len(seen) < 3:
            raise OperationalError("database is locked")

    kept.board._bring = fail
    kept.start()
    tell(1, 1)
    wait_until(lambda: len(seen) == 3)
    # What was said meanwhile is not undone by what is older.
    assert [[one.done for one in some] for some in seen] == [[1], [2], [2]]


def test_what_can_never_be_written_is_dropped_and_the_thread_goes_on(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "EVERY", 0.01)
    seen: list[float] = []

    def fail(taken: Sequence[Said]) -> None:
        seen.extend(one.done for one in taken)
        raise ValueError("a mistake")

    kept.board._bring = fail
    kept.start()
    tell(1, 1)
    wait_until(lambda: seen == [1])
    tell(1, 2)
    wait_until(lambda: seen == [1, 2])


def test_a_lost_alarm_is_healed(kept: Kept, brought: list[list[Said]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception of a timeout may come between any two instructions of ``say``."""
    monkeypatch.setattr(room, "REST", 0.05)
    # On a busy machine the rest may be over before the next line but one.
    monkeypatch.setattr(room, "LOOK", 0.5)
    kept.start()
    wait_until(lambda: kept.board._asleep)
    kept.board._newest[1] = Said(uuid.UUID(int=1), 1, 1, 2)
    wait_until(lambda: brought == [[Said(uuid.UUID(int=1), 1, 1, 2)]])


def test_who_speaks_after_a_long_silence_is_heard_at_once(kept: Kept, brought: list[list[Said]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look of its own would come too late for the test."""
    rests: list[int] = []
    monkeypatch.setattr(room, "REST", 0.01)
    monkeypatch.setattr(room, "LOOK", 10 * PATIENCE)
    kept.board._rest = lambda: rests.append(1)  # type: ignore[method-assign]
    kept.start()
    wait_until(lambda: rests)
    tell(1, 1)
    wait_until(lambda: len(brought) == 1)


def test_a_copy_of_the_process_writes_nothing(kept: Kept) -> None:
    kept.start()
    pid = os.fork()
    if pid == 0:
        os._exit(3 if room._boards == {} and not tell(1, 1) else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert room._boards == {"default": kept.board}


@transactional
def test_what_is_said_is_written_by_one_statement_and_the_connection_closed_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "REST", 0.05)
    monkeypatch.setattr(room, "EVERY", 0.05)
    statements: list[str] = []
    rests: list[object] = []

    class Noting(WrittenBoard):
        def _rest(self) -> None:
            super()._rest()
            rests.append(connections["default"].connection)

    execute = Database.execute

    def note_it(db: Database, template: str, params: Sequence[Any] = ()) -> int:
        statements.append(template)
        return execute(db, template, params)

    monkeypatch.setattr(Database, "execute", note_it)
    works = [started(key) for key in "abc"]
    kept = Kept(Noting("default"))
    for done in range(1000):
        for work_id, token in works:
            kept.board.say(Said(work_id, token, done, 1000))
    statements.clear()
    kept.start()
    try:
        wait_until(lambda: [said(work_id) for work_id, _ in works] == [(999, 1000)] * 3)
        assert len([one for one in statements if "{Progress}" in one]) == 1
        wait_until(lambda: rests)
        assert rests[0] is None
    finally:
        kept.end()


@transactional
def test_a_database_that_is_locked_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table on PostgreSQL, the file on SQLite, the row on MariaDB: what was said is written when it is free."""
    work_id, token = started()
    write("default", [Said(work_id, token, 1, 4)])

    def lock() -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"LOCK TABLE {Row._meta.db_table} IN ACCESS EXCLUSIVE MODE")
        else:
            Row.objects.update(total=5)

    kept = Kept(WrittenBoard("default"))
    with another_session(lock):
        kept.start()
        for done in range(1000):
            CurrentWork(work_id, "default", "name", token=token).progress(done, 1000)
    try:
        wait_until(lambda: said(work_id) == (999, 1000))
    finally:
        kept.end()


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("arguments", [(), ("--processes", "1")], ids=["threads", "children"])
def test_a_killed_worker_leaves_no_wrong_progress(main_process: StartMain, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """What the dead run has said is told no more when its attempt is over; the next attempt's own is told instead."""
    quick = {QUICK_VARIABLE: "1"}
    victim = main_process(*arguments, env=quick)
    work_id = Workpool().enqueue(say_the_attempt, str(tmp_path))
    wait_until(lambda: said(work_id) == (1, 10))
    token = RunningWork.objects.get().pk
    with victim_gone(victim, token):
        assert (said(work_id), Row.objects.get().token) == (None, token)
    heir = main_process(*arguments, env=quick)
    wait_until(lambda: said(work_id) == (2, 10))
    assert (Row.objects.count(), Row.objects.get().token != token) == (1, True)
    (tmp_path / "go").touch()
    assert value(work_id) == 2
    wait_for_quiet()
    prune("default")
    assert Row.objects.count() == 0
    heir.terminate()
    assert heir.wait(PATIENCE) == 0, heir.output()


@contextmanager
def victim_gone(victim: MainProcess, token: int) -> Iterator[None]:
    """Kill a process, and have its run recovered by a loop that starts nothing."""
    victim.kill()
    row = RunningWork.objects.get(pk=token)
    RunningWork.objects.filter(pk=token).delete()
    yield
    row.save(force_insert=True)


# The tests of projects -------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_tests_of_projects_see_all_that_a_function_says() -> None:
    Workpool().enqueue(say_and_change, "a")
    Workpool().enqueue(note, "b")
    Workpool().enqueue(say_nonsense)
    first, second, third = run_work()
    assert (first.progress, first.value, Counter.objects.get(name="a").value) == (((0, 5), (1, 5), (2.5, 5)), "a", 1)
    assert (second.progress, third.progress, third.kind) == ((), (), "failed")
    assert "total must be a finite number above 0" in third.error
    assert Row.objects.count() == 0
