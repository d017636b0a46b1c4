"""What only MariaDB and MySQL do: deadlocks that undo a transaction in silence, DDL that commits, locks of short tables, alike texts."""

import re
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, connections, transaction

from django_workpool import Workpool, call
from django_workpool.complete import complete_many
from django_workpool.database import database
from django_workpool.database.looking import MySQLWatch
from django_workpool.database_errors import aborts_transaction, is_away, is_conflict, is_connection_loss, lacks_table, may_pass
from django_workpool.execution import limits
from django_workpool.execution.isolation import Isolation
from django_workpool.execution.mutations import FunctionLeftovers, perform_mutation
from django_workpool.execution.statements import Effect, effect_of
from django_workpool.models import Archive, Globals, PendingCompletion, PendingStart, RunningWork, Work
from django_workpool.types import Attempted

from . import conftest
from .other_session import another_session
from .states.driver import SUCCESS, Loop
from .states.functions import act
from .states.rows import POOL, USING
from .works.models import Counter
from .works.tasks import note

on_mysql = pytest.mark.skipif(connection.vendor != "mysql", reason="MariaDB and MySQL only")


def error(number: int, kind: type[Exception] = OperationalError) -> BaseException:
    """Return an error as Django raises it: with the driver's arguments."""
    return kind(number, "as the server says")


@pytest.mark.parametrize(
    ("exc", "conflict", "loss", "away", "passes"),
    [
        (error(1205), True, False, False, True),
        (error(1213), True, False, False, True),
        (error(3572), True, False, False, True),
        (error(2006), False, True, True, True),
        (error(2013), False, True, True, True),
        (error(4031), False, True, True, True),
        (error(1927), False, True, True, True),
        (error(0), False, True, True, True),
        (error(1290), False, False, True, True),
        (error(1836), False, False, True, True),
        # A query that writes, in a read-only transaction.
        (error(1792), False, False, False, False),
        (error(1969), False, False, False, True),
        (error(1054), False, False, False, False),
        (error(1064), False, False, False, False),
    ],
)
def test_errors_are_told_apart_by_their_numbers(exc: BaseException, conflict: bool, loss: bool, away: bool, passes: bool) -> None:
    assert (is_conflict(exc), is_connection_loss(exc), is_away(exc), may_pass(exc)) == (conflict, loss, away, passes)
    assert lacks_table(exc) is (exc.args[0] == 1054)
    assert aborts_transaction(exc) is (exc.args[0] == 1213)


@pytest.mark.parametrize(
    ("statement", "effect"),
    [
        ("SELECT a FROM b WHERE c = 1", Effect.NONE),
        ("INSERT INTO t VALUES ('a@b')", Effect.NONE),
        ("SAVEPOINT s", Effect.NONE),
        ("SET STATEMENT max_statement_time = 1 FOR SELECT 1", Effect.NONE),
        ("SET LOCAL sql_mode = ''", Effect.SESSION),
        ("SET TRANSACTION READ ONLY", Effect.SESSION),
        ("SELECT @a := 1", Effect.SESSION),
        ("SELECT 1 INTO @a", Effect.SESSION),
        ("SELECT 1 /*! INTO @a */", Effect.SESSION),
        ("SELECT GET_LOCK('a', 0)", Effect.SESSION),
        ("HANDLER t OPEN", Effect.SESSION),
        ("CREATE TEMPORARY TABLE t (a int)", Effect.SESSION),
        ("DROP TEMPORARY TABLE t", Effect.NONE),
        ("LOCK TABLES t READ", Effect.SESSION | Effect.TRANSACTION),
        ("CREATE TABLE t (a int)", Effect.TRANSACTION),
        ("alter table t add b int", Effect.TRANSACTION),
        ("TRUNCATE t", Effect.TRANSACTION),
        ("START TRANSACTION", Effect.TRANSACTION),
        ("begin", Effect.TRANSACTION),
        ("SET autocommit = 1", Effect.SESSION | Effect.TRANSACTION),
        ("COMMIT", Effect.TRANSACTION),
    ],
)
def test_effect_of_statements(statement: str, effect: Effect) -> None:
    assert effect_of(statement, None, mysql=True) is effect


# A mutation whose transaction the server ends -----------------------------------------------------------------------------


def mutate(loop: Loop, function: Any) -> Any:
    """Run a mutation with this body as a worker does; return its failure."""
    Workpool().enqueue("tests.states.functions.mutate")
    ((run,),) = loop.iterate().runs.values()

    class Hooked(Isolation):
        def call(self, func: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().call(function)

    isolation = Hooked()
    try:
        return perform_mutation(USING, "here", run, isolation, lambda: False)
    finally:
        limits.end(run)
        isolation.close()


@on_mysql
def test_the_heading_of_a_run_names_the_server_without_a_connection_of_djangos(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made before the first test, when connecting is blocked, as it is in this test."""
    monkeypatch.setattr(conftest, "connection", connections.create_connection("default"))
    assert re.match(r"database: (MySQL \d|\d+\.\d+\.\d+-MariaDB)", conftest.pytest_report_header())


@on_mysql
@pytest.mark.django_db(transaction=True)
def test_a_deadlock_that_a_mutation_swallows_undoes_it_as_a_whole() -> None:
    """The server has rolled back what the function had written, and would commit what it writes next."""
    Counter.objects.bulk_create([Counter(name="a", value=0), Counter(name="b", value=0), Counter(name="heavy", value=0)])
    has_b, meets = threading.Event(), threading.Event()
    tries: list[bool] = []

    def other() -> None:
        with transaction.atomic():
            # The server gives up whoever has changed less.
            Counter.objects.bulk_create([Counter(name=f"heavy {number}", value=1) for number in range(500)])
            Counter.objects.filter(name="b").update(value=1)
            has_b.set()
            assert meets.wait(20)
            Counter.objects.filter(name="a").update(value=1)
        connections.close_all()

    def function() -> int:
        tries.append(True)
        Counter.objects.filter(name="a").update(value=2)
        if len(tries) == 1:
            assert has_b.wait(20)
            meets.set()
            # Not by the ORM, which marks the transaction: nothing but the server knows of it.
            with connection.cursor() as cursor, pytest.raises(OperationalError, match="1213"):
                cursor.execute(f"UPDATE {Counter._meta.db_table} SET value = 2 WHERE name = 'b'")
        Counter.objects.filter(name="heavy").update(value=2)
        return 1

    thread = threading.Thread(target=other)
    thread.start()
    failure = mutate(Loop(), function)
    thread.join(20)
    assert failure is not None and failure.class_path.endswith(FunctionLeftovers.__name__), failure
    assert tries == [True]
    assert dict(Counter.objects.filter(name__in=["a", "b", "heavy"]).values_list("name", "value")) == {"a": 1, "b": 1, "heavy": 0}


@on_mysql
@pytest.mark.django_db(transaction=True)
def test_a_mutation_that_changes_tables_fails() -> None:
    """The server commits before and after such a statement: nothing could be undone any more."""

    def function() -> int:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE of_a_mutation (a int)")
        return 1

    try:
        failure = mutate(Loop(), function)
        assert failure is not None and "ended the transaction with a statement of its own" in failure.text
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS of_a_mutation")


@on_mysql
@pytest.mark.django_db(transaction=True)
def test_a_mutation_that_only_asks_for_a_constant_is_fine() -> None:
    """The server begins a transaction with the first table: before that there is none to be lost."""

    def function() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return 1

    assert mutate(Loop(), function) is None
    assert Archive.objects.get().kind == "success"


# Locks ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(limit=100, threads=100)
    database(USING).private_connection("loop")
    try:
        yield made
    finally:
        connections[USING].close()
        del connections[USING]


@on_mysql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("others", [1, 2, 5])
def test_the_loop_waits_for_no_row_of_a_short_table(loop: Loop, others: int) -> None:
    """Neither for works that somebody enqueues and has not committed, nor for one whose on_complete takes its time."""
    works = Workpool().enqueue_many(act, [call(number) for number in range(3)])
    slow = Workpool().enqueue(act)
    (runs,) = loop.iterate().runs.values()
    canceled = Workpool().using(delay=timedelta(hours=1)).enqueue(act)
    assert Workpool().cancel(canceled)
    due = Workpool().enqueue_many(act, [call(number) for number in range(3)])

    def hold() -> None:
        Workpool().enqueue_many(act, [call(number) for number in range(others)])
        list(Work.objects.select_for_update().filter(id=slow))

    before = database(USING).clock_ms()
    with another_session(hold):
        done = [Attempted(run=run, outcome=SUCCESS, worker="here") for run in runs if run.work_id in works]
        assert len(complete_many(USING, done)) == 3
        loop.iterate()
    assert database(USING).clock_ms() - before < 20_000
    assert not Work.objects.filter(id__in=[*works, canceled]).exists()
    assert set(RunningWork.objects.values_list("work_id", flat=True)) == {slow, *due}
    assert PendingStart.objects.count() == others


@on_mysql
@pytest.mark.django_db(transaction=True)
def test_the_liveness_lock_is_this_databases_own() -> None:
    """Locks have names that the whole server shares."""
    database(USING).private_connection("watch")
    try:
        one = MySQLWatch(database(USING))
        assert len(f"{one._prefix}2147483647") <= 64
        assert one.hold(7) and one.hold(7)
        assert database(USING).fetch("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", [f"{one._prefix}7"]) == [(1,)]
    finally:
        connections[USING].close()
        del connections[USING]


# Texts ------------------------------------------------------------------------------------------------------------------


@on_mysql
@pytest.mark.django_db
def test_texts_are_compared_as_they_are() -> None:
    """Usual collations take these for the same."""
    names = ["email", "Email", "EMAIL", "e\u0301mail", "\u00e9mail", "email ", "\U0001f600"]
    for name in names:
        Globals.objects.create(pool=name, max_parallelism=1)
    assert sorted(Globals.objects.filter(pool__in=names).values_list("pool", flat=True)) == sorted(names)
    assert Globals.objects.filter(pool="email").count() == 1


@on_mysql
@pytest.mark.django_db(transaction=True)
def test_arguments_and_results_come_back_as_they_were() -> None:
    odd = "\U0001f600 \\ ' \" %s %% \\u0000 \u2028 \x7f"
    loop = Loop()
    work_id = Workpool().enqueue(note, odd)
    ((run,),) = loop.iterate().runs.values()
    assert Work.objects.get(id=work_id).arguments == run.arguments
    value = run.arguments
    complete_many(USING, [Attempted(run=run, outcome=type(SUCCESS)("success", value), worker="here")])
    assert Archive.objects.get(id=work_id).value == value
    assert PendingCompletion.objects.get().work_id == work_id


@on_mysql
@pytest.mark.django_db(transaction=True)
def test_many_large_arguments_do_not_end_in_a_packet_too_large() -> None:
    """100 MB at once: each statement brings a part of them."""
    quotes = '"' * 100_000
    ids = Workpool().enqueue_many(note, [call(quotes)] * 100)
    assert Work.objects.count() == PendingStart.objects.count() == 100
    assert list(PendingStart.objects.order_by("id").values_list("work_id", flat=True)) == ids
    assert uuid.UUID(str(ids[0])) == ids[0]


# The schema -------------------------------------------------------------------------------------------------------------


@on_mysql
@pytest.mark.django_db(transaction=True)
def test_indexes_lead_with_the_column_that_is_asked_for() -> None:
    """Conditional indexes are made without their condition: some would find nothing. The way back gives Django's own again."""

    def columns() -> dict[str, list[str]]:
        with connection.cursor() as cursor:
            found = connection.introspection.get_constraints(cursor, Work._meta.db_table)
        return {name: one["columns"] for name, one in found.items() if name.startswith("workpool_work")}

    assert columns() == {"workpool_work_held": ["held_since"], "workpool_work_canceled": ["canceled"], "workpool_work_batch": ["batch_id"]}
    try:
        call_command("migrate", "workpool", "0002", verbosity=0)
        assert columns() == {"workpool_work_held": ["func_path"]}
    finally:
        call_command("migrate", verbosity=0)
    assert columns()["workpool_work_held"] == ["held_since"]
    assert Globals.objects.filter(pool=POOL).exists()
