"""Statements that the main thread does not wait for, pruning that takes pieces of a turn, and a writer that waits and is not stuck."""

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection

from django_workpool import archive, batches
from django_workpool.database import database
from django_workpool.execution import persist, workers, writer
from django_workpool.execution.writer import Writer
from django_workpool.models import Worker
from django_workpool.runner import pruner
from django_workpool.runner.clerk import Clerk, Late
from django_workpool.runner.pruner import Pruner
from django_workpool.types import Attempted, FnType, Outcome, Run

from .live import wait_until

USING = "default"


@pytest.fixture
def clerk() -> Iterator[Clerk]:
    clerk = Clerk(USING)
    yield clerk
    clerk.close()


def test_a_clerk_returns_and_raises_what_a_step_does(clerk: Clerk) -> None:
    here = threading.get_ident()
    assert clerk.do(lambda: 7, 10) == 7
    assert clerk.do(threading.get_ident, 10) != here

    def fail() -> None:
        raise ValueError("as asked")

    with pytest.raises(ValueError, match="as asked"):
        clerk.do(fail, 10)
    assert clerk.do(lambda: 8, 10) == 8


def test_nobody_waits_behind_a_step_that_does_not_end(clerk: Clerk) -> None:
    """What comes after it is refused at once, until it has ended after all."""
    go = threading.Event()
    began = time.monotonic()
    with pytest.raises(Late):
        clerk.do(lambda: go.wait(30), 0.05)
    for _ in range(100):
        with pytest.raises(Late):
            clerk.do(lambda: 1, 60)
    assert time.monotonic() - began < 10
    go.set()
    wait_until(lambda: not clerk.silent)
    assert clerk.do(lambda: 2, 10) == 2


def test_whoever_waits_may_stop_waiting(clerk: Clerk) -> None:
    go = threading.Event()
    signals: list[int] = []
    threading.Timer(0.1, signals.append, [1]).start()
    with pytest.raises(Late):
        clerk.do(lambda: go.wait(30), 60, lambda: bool(signals))
    go.set()


def test_pruning_takes_a_piece_of_a_turn_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pruned: list[str] = []

    def prune(using: str, pool: str) -> int:
        pruned.append(pool)
        time.sleep(pruner.BUDGET)
        return archive.PRUNE_CHUNK if pool == "full" else 0

    pools, one = ["a", "b", "full"], Pruner(USING)
    looks = iter([pools])
    monkeypatch.setattr(archive, "prune", prune)
    monkeypatch.setattr(archive, "overdue", lambda using: next(looks))
    monkeypatch.setattr(batches, "overdue", lambda using: [])
    monkeypatch.setattr(one, "_sweeps", dict.fromkeys(one._sweeps, lambda: False))
    for turn in range(3):
        one.prune()
        assert pruned == pools[: turn + 1]
        # As long as a pool waits for its turn, the loop comes back at once.
        assert (one.next_at <= time.monotonic()) == (turn < 2)
    assert one.next_at - time.monotonic() <= pruner.AGAIN
    one.prune()
    assert pruned == pools
    one.next_at = 0.0
    monkeypatch.setattr(pruner, "AGAIN", 0.0)
    wait_until(lambda: one.prune() or len(pruned) == 4)
    assert pruned[-1] == "full"


def test_each_try_of_a_writer_is_progress(monkeypatch: pytest.MonkeyPatch, attempted: Attempted) -> None:
    """It waits for a database that is away for as long as that takes: nobody may take that for a thread that is stuck."""
    monkeypatch.setattr(persist, "WAIT_MAX", 0.01)
    tries: list[int] = []

    def complete_many(using: str, batch: object) -> list[object]:
        tries.append(1)
        if len(tries) < 20:
            raise OperationalError("connection refused")
        return []

    monkeypatch.setattr(writer, "complete_many", complete_many)
    one = Writer(USING, lambda run: None, lambda: False)
    one.put(attempted)
    stop = threading.Event()
    stop.set()
    thread = threading.Thread(target=one.run, args=(stop,))
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and one.idle
    assert len(tries) == 20 and one.rounds >= 20


@pytest.fixture
def attempted() -> Attempted:
    run = Run(
        token=1,
        work_id=uuid.uuid4(),
        pool="default",
        fn_type=FnType.ACTION,
        func_path="",
        name="",
        arguments="",
        attempts=0,
        has_callback=False,
        retryable=False,
        started=None,  # type: ignore[arg-type]
    )
    return Attempted(run=run, outcome=Outcome(kind="success", value="1"), worker="w")


def test_a_writer_whose_results_the_loop_takes_is_not_stuck(attempted: Attempted) -> None:
    """While the loop is busy there is always one that waits for it: that says nothing about the writer's thread."""
    one = Writer(USING, lambda *runs: None, lambda: False)
    one.attach(lambda: None)
    one.put(attempted)
    assert not one.idle and one.progress != one.progress
    one.take("default", 10)
    assert not one.idle and one.progress != one.progress
    one.keep([attempted])
    assert one.progress == one.progress


def test_at_the_end_nothing_waits_for_a_loop_that_may_be_stuck(attempted: Attempted, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Attempted] = []
    monkeypatch.setattr(writer, "complete_many", lambda using, batch: written.extend(batch) or [])
    one = Writer(USING, lambda *runs: None, lambda: False)
    one.attach(lambda: None)
    one.put(attempted)
    stop = threading.Event()
    thread = threading.Thread(target=one.run, args=(stop,), daemon=True)
    thread.start()
    assert one.drain(10) and written == [attempted]
    stop.set()
    one.wake()
    thread.join(10)
    assert not thread.is_alive()


def test_a_writer_that_stops_ends_with_what_the_loop_has_written(attempted: Attempted) -> None:
    one = Writer(USING, lambda *runs: None, lambda: False)
    one.attach(lambda: None)
    one.put(attempted)
    stop = threading.Event()
    stop.set()
    thread = threading.Thread(target=one.run, args=(stop,), daemon=True)
    thread.start()
    one.wake()
    wait_until(lambda: one.rounds > 0)
    one.written([taken.run for taken in one.take("default", 10)])
    one.detach()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.django_db
def test_each_beat_says_whether_the_worker_takes_works() -> None:
    """A stop that could not be told when it began is told by the next beat; a row that is made anew meanwhile begins so."""
    row = workers.register(USING, process=uuid.uuid4(), threads=1, coroutines=1, pools=None)
    part = workers.beating(USING, row.id, accepting=False)
    before = row.beat
    assert len(database(USING).ask(part)) == 1
    row.refresh_from_db()
    assert not row.accepting and 0 <= (row.beat - before).total_seconds() < 60
    again = workers.register(USING, process=uuid.uuid4(), threads=1, coroutines=1, pools=None, accepting=False)
    assert not Worker.objects.get(id=again.id).accepting


@pytest.mark.django_db
def test_a_process_that_registers_twice_has_one_row() -> None:
    """Its connection was lost just after the commit."""
    process = uuid.uuid4()
    first, second = (workers.register(USING, process=process, threads=1, coroutines=1, pools=None) for _ in range(2))
    assert first.id == second.id and connection.vendor
