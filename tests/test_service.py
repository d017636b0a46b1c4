"""Supervised threads: restarted when they fail, cut loose when they wait for an answer that never comes, given up when nothing helps."""

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence

import pytest
from django.db import DatabaseError, OperationalError, connection, connections

from django_workpool.database import database
from django_workpool.database_errors import is_connection_loss
from django_workpool.execution import progress
from django_workpool.execution.progress import Said, WrittenBoard
from django_workpool.runner import service
from django_workpool.runner.service import Service

from .live import wait_until

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="needs sessions of a server")


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    stop = threading.Event()
    yield stop
    stop.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STUCK_LOOKS", 3)
    monkeypatch.setattr(service, "WAIT_FIRST", 0.01)
    monkeypatch.setattr(service, "WAIT_MAX", 0.01)


def test_a_thread_that_does_not_get_on_is_cut_loose_then_given_up(stop: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    cuts: list[int] = []
    stuck = Service("stuck", lambda stop: stop.wait() and None, stop, lambda: 0, lambda: cuts.append(1))
    stuck.start()
    with caplog.at_level(logging.ERROR):
        for looks, (times, dead) in {4: (1, False), 6: (1, False), 7: (2, True)}.items():
            while stuck_looks(stuck) < looks:
                stuck.look()
            assert (len(cuts), stuck.is_dead) == (times, dead), looks
    assert "stuck does not get on" in caplog.text


def stuck_looks(stuck: Service) -> int:
    """Return how often it was looked at so far."""
    return stuck._stuck * 3 + stuck._looks + (stuck._seen is not None)


def test_a_thread_that_gets_on_or_begins_again_is_left_alone(stop: threading.Event) -> None:
    cuts: list[int] = []
    numbers = iter(range(1000))
    busy = Service("busy", lambda stop: stop.wait() and None, stop, lambda: next(numbers), lambda: cuts.append(1))
    busy.start()
    begun = threading.Semaphore(0)

    def fail(stop: threading.Event) -> None:
        begun.release()
        raise OperationalError("connection refused")

    failing = Service("failing", fail, stop, lambda: 0, lambda: cuts.append(2))
    failing.start()
    for _ in range(20):
        busy.look()
        # A new beginning counts as progress.
        before = failing._restarts
        wait_until(lambda before=before: failing._restarts > before)
        failing.look()
    assert begun.acquire(timeout=5)
    assert cuts == [] and not busy.is_dead and not failing.is_dead


def test_the_outage_of_a_database_is_told_in_few_lines(stop: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    def fail(stop: threading.Event) -> None:
        raise OperationalError("connection refused")

    away = Service("away", fail, stop)
    with caplog.at_level(logging.WARNING):
        away.start()
        wait_until(lambda: away._restarts > 2 * service.FAILURES_MAX)
        assert not away.is_dead
    assert len(caplog.records) == 1 and "connection refused" in caplog.text


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_statement_that_is_never_answered_ends_when_its_connection_is_cut() -> None:
    db = database("default")
    raised: list[BaseException] = []
    begun = threading.Event()

    def body() -> None:
        db.private_connection("probe")
        try:
            db.fetch("SELECT 1")
            begun.set()
            db.fetch("SELECT pg_sleep(60)")
        except DatabaseError as error:
            raised.append(error)
        finally:
            connections["default"].close()

    thread = threading.Thread(target=body)
    thread.start()
    assert begun.wait(10)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'workpool probe' AND query LIKE '%%pg_sleep%%'"
    wait_until(lambda: db.fetch(waiting) == [(1,)])
    db.cut("another")
    assert thread.is_alive()
    db.cut("probe")
    thread.join(10)
    assert not thread.is_alive()
    assert is_connection_loss(raised[0])
    # The server has not noticed yet.
    db.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'workpool probe'")
    wait_until(lambda: db.fetch("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'workpool probe'") == [(0,)])


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_the_board_of_progress_is_cut_loose_and_goes_on(stop: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing that functions say would be written any more by its process."""
    written: list[Sequence[Said]] = []

    def write(using: str, taken: Sequence[Said]) -> None:
        if not written:
            written.append(())
            database(using).fetch("SELECT pg_sleep(60)")
        written.append(taken)

    monkeypatch.setattr(progress, "write", write)
    monkeypatch.setattr(progress, "EVERY", 0.02)
    board = WrittenBoard("default")
    service = Service("progress", board.run, stop, lambda: board.progress, lambda: database("default").cut("progress"))
    service.start()
    # While nothing is said it may wait for as long as it likes.
    for _ in range(20):
        service.look()
    assert not service.is_dead and service._stuck == 0
    board.say(Said(uuid.UUID(int=1), 1, 2.0, 3.0))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'workpool progress' AND query LIKE '%%pg_sleep%%'"
    wait_until(lambda: database("default").fetch(waiting) == [(1,)])
    while not service._stuck:
        service.look()
    wait_until(lambda: len(written) == 2)
    assert written[1] == [(uuid.UUID(int=1), 1, 2.0, 3.0)] and not service.is_dead
    stop.set()
    board.close()
    assert service.join(20)
    # The server does not see that the other end is gone.
    database("default").fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'workpool progress'")
    wait_until(lambda: database("default").fetch(waiting) == [(0,)])
