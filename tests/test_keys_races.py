"""Unique keys under real races: processes that take the same key at the same moment, open transactions, works that end meanwhile."""

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction

from django_workpool import Workpool
from django_workpool.database import database
from django_workpool.database.rows import STANDS
from django_workpool.database_errors import is_conflict
from django_workpool.models import UniqueKey, Work

from .conftest import StartMain
from .live import PATIENCE, wait_for_quiet, wait_until
from .other_session import another_session
from .states.functions import act
from .works.models import Event
from .works.tasks import alone

pytestmark = pytest.mark.django_db(transaction=True)
on_servers = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer: its transactions do not meet")
on_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="SQLite has one writer; MariaDB's callers are bound to READ COMMITTED, as README says"
)

ROUNDS = 200


def take(if_taken: Any = "keep") -> uuid.UUID:
    return Workpool().using(unique="a", if_taken=if_taken).enqueue(act)


def standing() -> dict[str, list[uuid.UUID]]:
    """Return for each key the works that have been enqueued with it, are there, and are not being canceled."""
    db = database("default")
    works = {db.read_uuid(row[0]) for row in db.fetch(f"SELECT w.id FROM {{Work}} w WHERE {STANDS}")}
    keys: dict[str, list[uuid.UUID]] = {}
    for work_id, arguments in Work.objects.values_list("id", "arguments"):
        if work_id in works:
            keys.setdefault(arguments.split('"')[3].split()[0], []).append(work_id)
    return keys


def printed(output: str) -> dict[str, str]:
    """Return what a process has got in each round."""
    return dict(line.split() for line in output.splitlines() if line.count(" ") == 1)


def test_of_two_processes_that_take_the_same_key_one_gets_it(main_process: StartMain, tmp_path: Path) -> None:
    """In 200 rounds, a third of them each with keep, replace and raise; some transactions are slow, some of these are rolled back."""
    racers = [main_process(name, str(tmp_path), str(ROUNDS), command="enqueue_unique") for name in "ab"]
    for racer in racers:
        assert racer.wait(100) == 0, racer.output()
    first, second = (printed(racer.output()) for racer in racers)
    assert len(first) == len(second) == ROUNDS
    alive = standing()
    holders = {key.split()[1]: work_id for key, work_id in UniqueKey.objects.values_list("key", "work_id")}
    assert alive == {str(number): [holders[str(number)]] for number in range(ROUNDS)}
    for number in map(str, range(ROUNDS)):
        if first[number] == "undone":
            assert second[number] == str(holders[number])
        elif int(number) % 3 == 1:
            # Replaced: each has got a work, and the later one's is there.
            assert first[number] != second[number] and str(holders[number]) in (first[number], second[number])
        else:
            assert first[number] == second[number] == str(holders[number])


@pytest.mark.slow
def test_works_with_one_key_never_run_beside_each_other(main_process: StartMain) -> None:
    """Two processes work, and enqueue the same key all the time while its works end."""
    for _ in range(2):
        main_process("--threads", "4").wait_for("process_started", PATIENCE)
    deadline, taken = time.monotonic() + 6, set[uuid.UUID]()

    def enqueue() -> None:
        try:
            while time.monotonic() < deadline:
                taken.add(Workpool().using(unique="alone").enqueue(alone, 0.01))
                time.sleep(0.002)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=enqueue) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for_quiet()
    events = list(Event.objects.filter(name__in=("begin", "end")).order_by("at").values_list("name", flat=True))
    assert events == ["begin", "end"] * len(taken)
    assert len(taken) > 2


def waiting_for(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Call ``act`` on another thread, which is to wait in the database."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(act())
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    return thread, results


def lock_waits() -> int:
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.innodb_trx t "
                "JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id "
                "WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()"
            )
            return int(cursor.fetchone()[0])
        # Within a transaction the first look would be shown again.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
        return int(cursor.fetchone()[0])


@on_servers
def test_callers_that_come_to_a_new_key_together_agree_without_a_deadlock() -> None:
    """They have all looked for its row, and found none, when the first one's insert is committed."""
    callers, rounds = 5, 10
    together, taken = threading.Barrier(callers), [set[uuid.UUID]() for _ in range(rounds)]
    failed: list[Exception] = []

    def enqueue() -> None:
        try:
            for number in range(rounds):
                together.wait(PATIENCE)
                with transaction.atomic():
                    taken[number].add(Workpool().using(unique=f"new {number}").enqueue(act))
                    time.sleep(0.01)
        except Exception as error:
            failed.append(error)
            together.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=enqueue) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [len(one) for one in taken] == [1] * rounds
    assert set(Work.objects.values_list("id", flat=True)) == set.union(*taken)


@on_servers
@pytest.mark.parametrize("row", ["new", "old"])
@pytest.mark.parametrize("ends", ["committed", "rolled back"])
def test_whoever_meets_an_open_transaction_with_the_same_key_waits_for_its_end(row: str, ends: str) -> None:
    if row == "old":
        take()
        Work.objects.all().delete()
    with transaction.atomic():
        first = take()
        thread, results = waiting_for(take)
        # MariaDB shows a copy, made anew when nobody has looked at it for a tenth of a second.
        wait_until(lambda: lock_waits() == 1, poll=0.2)
        assert not results
        # Another key waits for nobody.
        Workpool().using(unique="b").enqueue(act)
        if ends == "rolled back":
            transaction.set_rollback(True)
    thread.join(PATIENCE)
    (second,) = results
    assert (second == first) == (ends == "committed")
    assert UniqueKey.objects.get(key="a").work_id == second
    assert Work.objects.filter(id=second).exists()


@on_postgresql
@pytest.mark.parametrize("row", ["new", "old"])
def test_a_caller_that_reads_from_a_snapshot_gets_a_conflict_and_no_second_work(row: str) -> None:
    """REPEATABLE READ: what was committed after the snapshot cannot be seen, so the database refuses, and the caller repeats it."""
    if row == "old":
        take()
        Work.objects.all().delete()

    def in_snapshot(meet: Callable[[], Any]) -> uuid.UUID:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")
            meet()
            return take()

    def meet() -> None:
        with another_session(take):
            pass

    with pytest.raises(DatabaseError) as raised:
        in_snapshot(meet)
    assert is_conflict(raised.value)
    (only,) = Work.objects.values_list("id", flat=True)
    assert in_snapshot(lambda: None) == only


@on_servers
def test_the_end_of_a_work_waits_for_nobody_who_holds_its_key(main_process: StartMain) -> None:
    """A caller's transaction has looked at the key and stays open: the loop and the workers never touch the key's row."""
    main_process()
    with transaction.atomic():
        work_id = Workpool().using(unique="alone").enqueue(alone, 0.5)
    with another_session(lambda: Workpool().using(unique="alone").enqueue(alone, 0)):
        wait_for_quiet()
    assert list(Event.objects.order_by("id").values_list("name", flat=True)) == ["begin", "end"]
    assert UniqueKey.objects.get().work_id == work_id
