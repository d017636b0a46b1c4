"""What enqueue and its like do to the caller's transaction: a fixed number of statements, and nothing at all if they refuse."""

import math
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext, override_settings

from django_workpool import RetryBehavior, Workpool, WorkpoolError, call, enqueue
from django_workpool.ids import new_work_id
from django_workpool.models import Archive, PendingCancelation, PendingStart, Work
from django_workpool.serialization import decode
from django_workpool.types import WorkState

from .works.models import Counter
from .works.tasks import ended, nap, note

POSTGRESQL = connection.vendor == "postgresql"
#: What one batch costs: the work and its pending start, in one statement where the database can.
INSERT = 1 if POSTGRESQL else 2
#: After a commit, where kicks are needed at all: the notification, which looks at RunStatus itself.
KICK = 1 if POSTGRESQL else 0
BEGIN_COMMIT = 2
#: Outside a transaction, what is one statement needs none of its own.
ALONE = INSERT if POSTGRESQL else BEGIN_COMMIT + INSERT


def statements(act: Callable[[], Any]) -> int:
    """Return how many statements ``act`` sends, BEGIN, COMMIT and savepoints among them."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def inside(act: Callable[[], Any]) -> int:
    """Return how many statements ``act`` sends inside a transaction, which is then rolled back."""
    with transaction.atomic():
        Counter.objects.count()
        number = statements(act)
        transaction.set_rollback(True)
    return number


@pytest.mark.django_db(transaction=True)
def test_number_of_statements() -> None:
    """It depends on nothing but what is asked for, a thousand works at a time."""
    pool = Workpool()
    full = pool.using(on_complete=ended, on_complete_context={"a": 1}, delay=timedelta(hours=1), priority=5, name="n", retry=True)
    for act in (lambda: pool.enqueue(note, "x"), lambda: full.enqueue(note, "x"), lambda: enqueue(note, "x")):
        assert inside(act) == INSERT
    assert statements(lambda: pool.enqueue(note, "x")) == ALONE + KICK
    assert statements(lambda: pool.enqueue_many(note, [call("x")] * 1000)) == ALONE + KICK
    assert statements(lambda: pool.enqueue_many(note, [call("x")] * 1001)) == BEGIN_COMMIT + 2 * INSERT + KICK
    assert inside(lambda: pool.enqueue_many(note, [call("x")] * 1000)) == (1 if POSTGRESQL else 2)
    savepoint = 2
    assert inside(lambda: pool.enqueue_many(note, [call("x")] * 3000)) == 3 * INSERT + savepoint
    assert inside(lambda: pool.enqueue_many(note, [])) == 0
    ids = pool.enqueue_many(note, [call("x")] * 1500)
    assert inside(lambda: pool.cancel(ids[0])) == 1
    assert inside(lambda: pool.cancel(uuid.uuid4())) == 1
    assert inside(lambda: pool.cancel("garbage")) == 0
    # The time by which cancel_all covers is the database's.
    assert inside(pool.cancel_all) == (1 if connection.vendor == "sqlite" else 2)
    assert statements(lambda: pool.status(ids[0])) == 1
    assert statements(lambda: pool.status(uuid.uuid4())) == 2
    assert statements(lambda: pool.status_many(ids)) == 2
    assert {one.state for one in pool.status_many(ids).values()} == {WorkState.PENDING}
    assert list(pool.status_many(ids)) == ids


@pytest.mark.django_db(transaction=True)
def test_rolled_back() -> None:
    """Nothing was enqueued or canceled, and nobody is kicked."""
    work_id = Workpool().enqueue(note, "kept")
    with CaptureQueriesContext(connection) as captured, pytest.raises(RuntimeError), transaction.atomic():
        Workpool().enqueue(note, "x")
        Workpool().enqueue_many(note, [call(str(number)) for number in range(2000)])
        Workpool().cancel(work_id)
        Workpool().cancel_all()
        raise RuntimeError
    assert (Work.objects.get().id, PendingStart.objects.count(), PendingCancelation.objects.count()) == (work_id, 1, 0)
    assert not any("pg_notify" in one["sql"] or "runstatus" in one["sql"].lower() for one in captured)


@pytest.mark.django_db(transaction=True)
def test_notification_comes_after_the_commit() -> None:
    """Not inside the transaction, and once for many works."""
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        for number in range(20):
            Workpool().enqueue(note, str(number))
    sent = [one["sql"] for one in captured]
    assert len(sent) == BEGIN_COMMIT + 20 * INSERT + KICK
    if POSTGRESQL:
        assert sent[-2] == "COMMIT" and "pg_notify" in sent[-1]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outer_raises", [False, True])
def test_work_of_a_rolled_back_block_is_gone(outer_raises: bool) -> None:
    """A of the inner block that was rolled back is gone, B of the outer one stays; if that raises too, nothing is left."""
    hooks = []
    try:
        with transaction.atomic():
            try:
                with transaction.atomic():
                    Workpool().enqueue(note, "A")
                    Workpool().enqueue_many(note, [call("A")] * 1001)
                    raise ValueError
            except ValueError:
                pass
            Workpool().enqueue(note, "B")
            hooks += connection.run_on_commit
            if outer_raises:
                raise LookupError
    except LookupError:
        pass
    assert len(hooks) == 1
    assert [one.arguments for one in Work.objects.all()] == ([] if outer_raises else ['{"args":["B"],"kwargs":{}}'])
    assert PendingStart.objects.count() == (0 if outer_raises else 1)


@pytest.mark.django_db(transaction=True)
def test_inner_block_without_a_savepoint() -> None:
    """Its failure takes the outer block with it, as Django says."""
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
        with pytest.raises(ValueError), transaction.atomic(savepoint=False):
            Workpool().enqueue(note, "A")
            raise ValueError
        Workpool().enqueue(note, "B")
    assert Work.objects.count() == 0
    with transaction.atomic(durable=True):
        Workpool().enqueue(note, "in a durable block")
    assert Work.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_error_of_the_database_in_the_middle() -> None:
    """The caller's transaction behaves as Django says: broken until its block ends, and all of it is rolled back."""
    taken = Workpool().enqueue(note, "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_workpool.client.new_work_id", lambda: taken)
        with pytest.raises(transaction.TransactionManagementError), transaction.atomic():
            Counter.objects.create(name="business")
            with pytest.raises(IntegrityError):
                Workpool().enqueue(note, "same id")
            Counter.objects.count()
        with transaction.atomic():
            Counter.objects.create(name="business with a savepoint")
            with pytest.raises(DatabaseError), transaction.atomic():
                Workpool().enqueue(note, "same id")
            assert Counter.objects.count() == 1
    assert [one.name for one in Counter.objects.all()] == ["business with a savepoint"]
    assert (Work.objects.count(), PendingStart.objects.count()) == (1, 1)


@pytest.mark.django_db(transaction=True)
def test_error_of_the_database_outside_a_transaction() -> None:
    """Nothing was enqueued, nobody is kicked, and the connection can be used."""
    taken = Workpool().enqueue(note, "first")
    fresh = new_work_id()
    for ids in ([taken], [fresh, taken], [fresh] * 2):
        remaining = iter(ids)
        with pytest.MonkeyPatch.context() as patch, CaptureQueriesContext(connection) as captured:
            patch.setattr("django_workpool.client.new_work_id", lambda remaining=remaining: next(remaining))
            with pytest.raises(IntegrityError):
                Workpool().enqueue_many(note, [call("x")] * len(ids))
        assert not any("pg_notify" in one["sql"] for one in captured)
        assert (Work.objects.get().id, PendingStart.objects.get().work_id) == (taken, taken)
    assert connection.get_autocommit() and not connection.in_atomic_block
    Workpool().enqueue(note, "second")
    assert Work.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_transactions_by_hand() -> None:
    """Without autocommit the work belongs to the transaction that is open; its kick comes when Django runs such hooks."""
    connection.set_autocommit(False)
    try:
        Workpool().enqueue(note, "lost")
        connection.rollback()
        Workpool().enqueue(note, "kept")
        connection.commit()
        with CaptureQueriesContext(connection) as captured:
            connection.set_autocommit(True)
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert [one.arguments for one in Work.objects.all()] == ['{"args":["kept"],"kwargs":{}}']
    assert ["pg_notify" in one["sql"] for one in captured] == [True] * KICK


@pytest.mark.django_db
def test_texts_that_quoting_or_splitting_could_spoil() -> None:
    """A batch goes as one text: each item comes back as it was given, with its own id."""
    odd = ["", "\x1e", "\x1e\n,", '"', "'", "\\", "\\x1e", "NULL", "{}", "{a,b}", "%s", "%%", "$1", "é漢🎉", "\u2028", "E'\\''"]
    calls = [call(text, {text: [text]}) for text in odd]
    ids = Workpool().enqueue_many(note, calls)
    stored = dict(Work.objects.values_list("id", "arguments"))
    assert [decode(stored[work_id]) for work_id in ids] == [{"args": list(one.args), "kwargs": {}} for one in calls]
    assert sorted(PendingStart.objects.values_list("work_id", flat=True)) == sorted(ids)
    # In the order of their ids, so that the indexes grow at their ends.
    assert ids == sorted(ids) == list(PendingStart.objects.order_by("id").values_list("work_id", flat=True))
    assert len(set(Work.objects.values_list("created", flat=True))) == 1
    assert len(set(PendingStart.objects.values_list("segment", flat=True))) == 1


@pytest.mark.skipif(not POSTGRESQL, reason="SQLite's driver keeps its statements by itself")
@pytest.mark.django_db
@pytest.mark.parametrize(("threshold", "prepared"), [(None, 0), (1, 1)])
def test_statements_are_prepared_only_where_the_project_allows_it(threshold: int | None, prepared: int) -> None:
    """And Django's own cursors stay as they are."""
    connection.ensure_connection()
    raw: Any = connection.connection
    usual, before = raw.cursor_factory, raw.prepare_threshold
    raw.prepare_threshold = threshold
    try:
        assert statements(lambda: [Workpool().enqueue(note, "x") for _ in range(4)]) == 4
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE %s", ["%workpool_pendingstart%"])
            assert cursor.fetchone() == (prepared,)
    finally:
        raw.prepare_threshold = before
    assert raw.cursor_factory is usual


class Odd:
    """Nothing that JSON knows."""


def unregistered() -> None:
    """Not decorated."""


BAD: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "an unknown option": (lambda: Workpool().using(prioritty=1), ValueError),  # type: ignore[call-arg]
    "an unknown pool": (lambda: Workpool("nowhere"), ValueError),
    "no name of a pool": (lambda: Workpool(None), ValueError),  # type: ignore[arg-type]
    "an unregistered function": (lambda: enqueue(unregistered), ValueError),
    "a lambda": (lambda: enqueue(lambda: None), ValueError),
    "a path that leads nowhere": (lambda: enqueue("tests.works.tasks.nothing"), ValueError),
    "a path outside of the project": (lambda: enqueue("os.system", "true"), ValueError),
    "a callback as a work": (lambda: enqueue(ended, None), ValueError),  # type: ignore[arg-type]
    "a work as a callback": (lambda: Workpool().using(on_complete=note), ValueError),  # type: ignore[arg-type]
    "a context without a callback": (lambda: Workpool().using(on_complete_context=1), ValueError),
    "a negative limit": (lambda: Workpool().configure(max_parallelism=-1), ValueError),
    "a boolean limit": (lambda: Workpool().configure(max_parallelism=True), ValueError),
    "no change": (lambda: Workpool().configure(), ValueError),
    "an unknown level": (lambda: Workpool().configure(log_level="LOUD"), ValueError),
    "a naive time": (lambda: Workpool().using(run_after=datetime(2030, 1, 1)), ValueError),
    "a date": (lambda: Workpool().using(run_after=date(2030, 1, 1)), ValueError),  # type: ignore[typeddict-item]
    "two times": (lambda: Workpool().using(run_after=datetime.now(UTC), delay=timedelta(1)), ValueError),
    "a negative delay": (lambda: Workpool().using(delay=timedelta(seconds=-5)), ValueError),
    "a delay in seconds": (lambda: Workpool().using(delay=math.inf), ValueError),  # type: ignore[typeddict-item]
    "a priority out of range": (lambda: Workpool().using(priority=101), ValueError),
    "a boolean priority": (lambda: Workpool().using(priority=True), ValueError),
    "a retry of another type": (lambda: Workpool().using(retry=3), ValueError),  # type: ignore[typeddict-item]
    "no attempts": (lambda: RetryBehavior(max_attempts=0), ValueError),
    "a base below one": (lambda: RetryBehavior(base=0.5), ValueError),
    "a wait of ten years": (lambda: RetryBehavior(initial_backoff=timedelta(days=3650)), ValueError),
    "a NUL": (lambda: enqueue(note, "a\x00b"), ValueError),
    "a NUL deep inside": (lambda: enqueue(note, [{"k": ["a\x00b"]}]), ValueError),  # type: ignore[arg-type]
    "a NUL in a key": (lambda: enqueue(note, {"a\x00b": 1}), ValueError),  # type: ignore[arg-type]
    "a NUL in the context": (lambda: Workpool().using(on_complete=ended, on_complete_context="\x00"), ValueError),
    "a NUL in the name": (lambda: Workpool().using(name="a\x00"), ValueError),
    "half of an emoji": (lambda: enqueue(note, "\ud83d"), ValueError),
    "not a number": (lambda: enqueue(nap, math.nan), ValueError),
    "infinity": (lambda: enqueue(nap, -math.inf), ValueError),
    "a set": (lambda: enqueue(note, {1}), TypeError),  # type: ignore[arg-type]
    "bytes": (lambda: enqueue(note, b"x"), TypeError),  # type: ignore[arg-type]
    "a decimal": (lambda: enqueue(note, Decimal(1)), TypeError),  # type: ignore[arg-type]
    "an object": (lambda: enqueue(note, Odd()), TypeError),  # type: ignore[arg-type]
    "a bad item of many": (lambda: Workpool().enqueue_many(note, [call("x")] * 1500 + [call("\x00")]), ValueError),
    "an item that is no call": (lambda: Workpool().enqueue_many(note, ["x"]), ValueError),  # type: ignore[list-item]
    "the status of no id": (lambda: Workpool().status("x\x00"), ValueError),
}


@pytest.mark.django_db
@pytest.mark.parametrize("what", BAD)
def test_bad_input(what: str) -> None:
    """An error of the package's own, no statement, no row, and the transaction can be used."""
    act, builtin = BAD[what]
    with transaction.atomic():
        Counter.objects.create(name="before")
        with CaptureQueriesContext(connection) as captured, pytest.raises(WorkpoolError) as caught:
            act()
        assert isinstance(caught.value, builtin)
        assert len(captured) == 0
        assert len(connection.run_on_commit) == 0
        Counter.objects.create(name="after")
    assert Counter.objects.count() == 2
    assert (Work.objects.count(), PendingStart.objects.count(), PendingCancelation.objects.count(), Archive.objects.count()) == (0, 0, 0, 0)


@pytest.mark.django_db
def test_bad_setting() -> None:
    """An unknown key is refused before any SQL, also as what Django expects of a setting."""
    with override_settings(WORKPOOLS={"default": {"MAX_PARALELISM": 3}}), CaptureQueriesContext(connection) as captured:
        with pytest.raises(ImproperlyConfigured, match="MAX_PARALELISM") as caught:
            Workpool().enqueue(note, "x")
        assert isinstance(caught.value, WorkpoolError)
        assert len(captured) == 0


@pytest.mark.django_db
def test_bad_item_is_named() -> None:
    """The text says which of the calls cannot be taken."""
    with pytest.raises(WorkpoolError, match="item 1500"):
        Workpool().enqueue_many(note, [call("x")] * 1500 + [call("\x00")])
