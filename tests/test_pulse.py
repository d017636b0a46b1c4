"""The pulse: what an idle process asks and tells once a second, what that costs, and what of it goes on while something is locked."""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models import F, Model

from django_workpool import Workpool, call, eventlog
from django_workpool.configuration import create_rows
from django_workpool.database import Watch, database
from django_workpool.database.parts import one_by_one
from django_workpool.execution import liveness, workers
from django_workpool.loop import poll
from django_workpool.loop.fleet import WORKERS, Fleet, WorkerRow
from django_workpool.models import Globals, InternalState, Lead, PendingCancelation, PendingCompletion, PendingStart, RunningWork, Worker
from django_workpool.runner import outlook, watcher
from django_workpool.runner.intake import Intake
from django_workpool.runner.lead import RENEW_EVERY
from django_workpool.runner.leader import Leader
from django_workpool.runner.outlook import News, Outlook, Queues
from django_workpool.runner.process import Options
from django_workpool.runner.watcher import Watcher
from django_workpool.types import Run

from .other_session import another_session
from .states.rows import POOL, USING
from .works import tasks

pytestmark = pytest.mark.django_db(transaction=True)
on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="one statement, locks of tables")

OPTIONS = Options(threads=1, pools=None, drain=False, grace=1.0)


class Main:
    """A process without its threads."""

    def __init__(self) -> None:
        self.id, self.runs = uuid.uuid4(), []
        self.leader = Leader(USING, self.id, Intake(USING, "here", OPTIONS, lambda: False))
        self.watcher = Watcher(USING, self.leader, self.submit, lambda: None, self.register, self.register())
        self.watch: Watch = database(USING).watch()
        self.runs: list[Run]

    def submit(self, runs: Sequence[Run]) -> None:
        self.runs += runs

    def register(self) -> int:
        row = workers.register(USING, process=self.id, threads=1, coroutines=1, pools=None)
        self.leader.fleet.own = row.id
        return row.id

    def pulse(self) -> list[str]:
        """Let a second pass, and pulse; return the statements."""
        sent: list[str] = []

        def note(execute: Any, sql: str, *args: Any) -> Any:
            sent.append(sql)
            return execute(sql, *args)

        self.leader.watchdog.turned = time.monotonic()
        self.watcher.beaten -= 100.0
        with connection.execute_wrapper(note):
            self.watcher._pulse(self.watch)
        return sent


@pytest.fixture(autouse=True)
def own_connection() -> Iterator[None]:
    """A watch replaces its thread's connection by one that keeps no log: the next tests want theirs back."""
    before = connections[USING]
    yield
    if connections[USING] is not before:
        connections[USING].close()
        connections[USING] = before


@pytest.fixture
def main(own_connection: None) -> Iterator[Main]:
    main = Main()
    yield main
    main.leader.lead.hand_over()
    main.watch.close()


@pytest.fixture
def beside(own_connection: None) -> Iterator[Main]:
    other = Main()
    yield other
    other.watch.close()


@contextmanager
def locked(model: type[Model]) -> Iterator[None]:
    """Let another session lock a table so that nobody can even read it."""

    def lock() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {model._meta.db_table} IN ACCESS EXCLUSIVE MODE")

    with another_session(lock):
        yield


def lead(main: Main) -> None:
    """Let it lead, with a lease that is to be renewed."""
    assert main.leader.lead.take(set())
    main.leader.lead._renewed -= RENEW_EVERY


@on_postgresql
def test_a_pulse_is_one_statement_and_an_idle_loop_adds_none(main: Main) -> None:
    create_rows(USING, ["default", "imports"])
    main.pulse()
    assert main.leader._take_lead()
    main.leader._lead_once()
    before = Lead.objects.get().expires_ms
    main.leader.lead._renewed -= RENEW_EVERY
    assert len(main.pulse()) == 1
    after = Lead.objects.get().expires_ms
    assert before is not None and after is not None and after > before

    def refuse(execute: Any, sql: str, *args: Any) -> Any:
        raise AssertionError(sql)

    with connection.execute_wrapper(refuse):
        main.leader._ear.wake()
        main.leader._lead_once()
    assert main.leader.outlook.polled == main.watcher._pulsed == main.leader.fleet.refreshed


@on_postgresql
def test_a_standby_asks_for_no_queues_and_tries_only_when_the_lead_may_be_free(main: Main, beside: Main) -> None:
    lead(main)
    assert not beside.leader._take_lead(), "its first look is its own"
    beside.watch.hold(beside.watcher.worker_id)
    (statement,) = beside.pulse()
    assert "queues" not in statement

    def refuse(execute: Any, sql: str, *args: Any) -> Any:
        raise AssertionError(sql)

    with connection.execute_wrapper(refuse):
        assert not beside.leader._take_lead()
    Lead.objects.update(expires_ms=F("expires_ms") - 20_000)
    beside.pulse()
    assert beside.leader._take_lead()
    main.pulse()
    assert main.leader.lead.is_lost, "whoever led before learns it from its next pulse"
    beside.leader.lead.hand_over()


def test_a_pulse_finds_what_no_hint_has_told(main: Main) -> None:
    Workpool("imports").enqueue(tasks.note)
    lead(main)
    main.pulse()
    queues = main.leader.outlook._news and main.leader.outlook._news.queues
    assert queues is not None and set(queues.due) == {"imports"}
    assert 0 <= queues.now_ms - queues.due["imports"] * 100 < 60_000


def test_what_runs_here_is_not_read_again(main: Main) -> None:
    """Each second would bring all of its arguments, which may be large; what a hint has not told of is read once."""
    lead(main)
    works = Workpool().enqueue_many(tasks.note, [call("x" * 1000) for _ in range(3)])
    started = database(USING).moment(database(USING).clock_ms())
    rows = [RunningWork(work_id=one, pool=POOL, worker_id=main.watcher.worker_id, due=0, started=started) for one in works]
    for row in rows:
        row.save()
    main.pulse()
    assert [run.token for run in main.runs] == [row.id for row in rows]
    main.leader.intake.assignments.take(main.runs[:2])
    del main.runs[:]
    main.pulse()
    assert [run.token for run in main.runs] == [rows[2].id]
    main.leader.intake.assignments.take(main.runs)
    assert not [sql for sql in main.pulse() if "arguments" in sql]


def test_more_than_a_pulse_tells_of_is_read_all_the_same(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "TOKENS_MAX", 2)
    lead(main)
    works = Workpool().enqueue_many(tasks.note, [call(str(number)) for number in range(5)])
    started = database(USING).moment(database(USING).clock_ms())
    for one in works:
        RunningWork(work_id=one, pool=POOL, worker_id=main.watcher.worker_id, due=0, started=started).save()
    main.pulse()
    assert [run.work_id for run in main.runs] == works


def test_the_levels_of_pools_follow_their_rows(main: Main) -> None:
    Globals.objects.filter(pool=POOL).update(log_level="ERROR")
    main.pulse()
    assert eventlog.level_of(POOL) == "ERROR"
    Globals.objects.filter(pool=POOL).update(log_level="")
    main.pulse()
    assert eventlog.level_of(POOL) == ""


def test_a_worker_whose_row_is_gone_begins_again(main: Main) -> None:
    old = main.watcher.worker_id
    Worker.objects.filter(id=old).delete()
    main.pulse()
    assert main.watcher.worker_id != old
    assert Worker.objects.get().id == main.watcher.worker_id


def test_a_worker_whose_beat_stands_still_and_whose_lock_is_free_is_seen_dead(
    main: Main, beside: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "WINDOW", 0.0)
    other = beside.watcher.worker_id
    beside.watch.hold(other)
    for _ in range(2):
        main.pulse()
        assert main.leader.dead == set() and main.leader.others
    beside.watch.close()
    deadline = time.monotonic() + 20
    while not main.leader.dead and time.monotonic() < deadline:
        main.pulse()
    assert main.leader.dead == {other} and not main.leader.others


@on_postgresql
@pytest.mark.parametrize("model", [Globals, PendingStart], ids=lambda model: model.__name__)
def test_beat_and_lease_do_not_wait_for_a_table_that_somebody_has_locked(main: Main, model: type[Model], caplog: Any) -> None:
    lead(main)
    beat, lease = Worker.objects.get().beat, Lead.objects.get().expires_ms
    main.leader.lead._renewed -= RENEW_EVERY
    with locked(model):
        main.pulse()
    assert "the watch had to wait" in caplog.text
    assert Worker.objects.get().beat > beat
    now = Lead.objects.get().expires_ms
    assert lease is not None and now is not None and now > lease
    assert main.leader.outlook._news is None, "nothing was seen"


def test_the_queues_of_many_pools_are_found_whatever_they_hold() -> None:
    create_names = ["a", "b", "c", "d", "e", "f"]
    InternalState.objects.bulk_create([InternalState(pool=name) for name in create_names])
    starts = [("a", 0, 7), ("a", 1, 5), ("b", 1, 9), ("b", 0, 3), ("b", 0, 4), ("e", 0, 1), ("unknown", 0, 2)]
    PendingStart.objects.bulk_create([PendingStart(work_id=uuid.uuid4(), pool=p, lane=lane, segment=s) for p, lane, s in starts])
    PendingCompletion.objects.bulk_create([PendingCompletion(work_id=uuid.uuid4(), pool="c", segment=4, kind="success", follow="end")] * 1)
    PendingCancelation.objects.bulk_create([PendingCancelation(work_id=uuid.uuid4(), pool=name, segment=4) for name in ("e", "f")])
    db = database(USING)
    assert poll.due_segments(poll.look(db)) == {"a": 5, "b": 3, "c": 0, "e": 0, "f": 0}
    assert one_by_one(db, poll.parts(db)) == poll.look(db)


def test_what_was_brought_does_not_take_the_place_of_what_was_read_later() -> None:
    worker = workers.register(USING, process=uuid.uuid4(), threads=1, coroutines=1, pools=None)
    rows = [WorkerRow(*row) for row in database(USING).fetch(WORKERS.template)]
    old = time.monotonic()
    view, fleet = Outlook(USING), Fleet()
    workers.unregister(USING, worker.id)
    assert fleet.refresh(USING) is False and fleet.workers == {}
    assert view.read_queues() == Queues(due={}, now_ms=pytest.approx(database(USING).clock_ms(), abs=60_000), at=view.polled)
    view.bring(News(at=old, now_ms=0.0, workers=rows, lead=(None, 0, None), queues=Queues(due={"a": 1}, now_ms=0.0, at=old)))
    assert view.read_workers(fleet) is False and fleet.workers == {}
    assert view.read_queues() is None
    new = time.monotonic()
    view.bring(News(at=new, now_ms=0.0, workers=rows, lead=(None, 0, None), queues=Queues(due={"a": 1}, now_ms=0.0, at=new)))
    assert view.read_workers(fleet) is True and set(fleet.workers) == {worker.id}
    assert view.read_queues() == Queues(due={"a": 1}, now_ms=0.0, at=new)
    assert view.read_queues() is None, "each look is judged once"


def test_a_loop_that_is_brought_nothing_looks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    Workpool().enqueue(tasks.note)
    view = Outlook(USING)
    first = view.read_queues()
    assert first is not None and set(first.due) == {POOL}
    assert view.read_queues() is None
    view.polled -= outlook.LATE
    assert view.read_queues() is not None


def test_a_pulse_comes_often_enough() -> None:
    """What is brought must not count as late."""
    assert watcher.PULSE_EVERY < outlook.LATE
