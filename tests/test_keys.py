"""Unique keys: in a pool, one work that has not ended has a key; what is taken is kept, replaced or refused."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workpool import InvalidWork, WorkExists, Workpool, call, keys
from django_workpool.database import database
from django_workpool.models import Archive, PendingCancelation, PendingStart, UniqueKey, Work

from .other_session import another_session
from .states.driver import FAILED, SUCCESS, Loop, complete
from .states.functions import act, act_retried
from .states.rows import USING

pytestmark = pytest.mark.django_db
POSTGRESQL = connection.vendor == "postgresql"
needs_row_locks = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer: nobody else holds a row")

Take = Callable[..., uuid.UUID]


def take(key: str = "a", *args: Any, if_taken: Any = "keep", func: Any = act, pool: str = "default") -> uuid.UUID:
    return Workpool(pool).using(unique=key, if_taken=if_taken).enqueue(func, *args)


def holder(key: str = "a", pool: str = "default") -> uuid.UUID:
    return UniqueKey.objects.get(pool=pool, key=key).work_id


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unique": ""}, "text of 1 to 500 characters"),
        ({"unique": "x" * 501}, "not one of 501"),
        ({"unique": 7}, "not 7"),
        ({"unique": b"x"}, "not b'x'"),
        ({"unique": "a\x00b"}, "unique"),
        ({"unique": "\ud83d"}, "unique"),
        ({"unique": "a", "if_taken": "ignore"}, "one of keep, replace, raise, not 'ignore'"),
        ({"unique": "a", "if_taken": None}, "not None"),
        ({"if_taken": "raise"}, "if_taken without unique"),
        ({"unique": None, "if_taken": "raise"}, "if_taken without unique"),
    ],
    ids=str,
)
def test_what_is_no_key_is_refused_before_any_statement(options: Any, text: str) -> None:
    with CaptureQueriesContext(connection) as captured, pytest.raises(InvalidWork, match=text):
        Workpool().using(**options)
    assert len(captured) == 0


@pytest.mark.parametrize("calls", [0, 2])
def test_a_key_is_for_one_work(calls: int) -> None:
    pool = Workpool().using(unique="a")
    with CaptureQueriesContext(connection) as captured, pytest.raises(InvalidWork, match="unique is for one work"):
        pool.enqueue_many(act, [call()] * calls)
    assert len(captured) == 0
    (one,) = pool.enqueue_many(act, [call()])
    assert [one] == pool.enqueue_many(act, [call()]) == [holder()]


def test_what_is_taken_is_kept_unless_something_else_is_said() -> None:
    first = Workpool().using(unique="a").enqueue(act, 1)
    assert Workpool().using(unique="a").enqueue(act, 2) == first
    assert list(Work.objects.values_list("id", "arguments")) == [(first, '{"args":[1],"kwargs":{}}')]
    assert PendingStart.objects.count() == 1
    # Without the key it is another work; so it is with another key, or in another pool, or with the key taken away again.
    others = {Workpool().enqueue(act), take("b"), take("A"), take("a "), take(pool="imports")}
    others.add(Workpool().using(unique="a", if_taken="raise").using(unique=None).enqueue(act))
    assert len(others | {first}) == 7 == Work.objects.count()


def test_what_is_taken_is_refused_if_that_is_wanted_and_the_transaction_goes_on() -> None:
    first = take()
    with transaction.atomic():
        with pytest.raises(WorkExists, match=f"'a' is taken by work {first}") as raised:
            take(if_taken="raise")
        assert raised.value.work_id == first
        other = take("b", if_taken="raise")
    assert set(Work.objects.values_list("id", flat=True)) == {first, other}
    assert (holder(), PendingCancelation.objects.count()) == (first, 0)


def test_what_is_taken_is_canceled_if_it_is_to_be_replaced() -> None:
    loop = Loop()
    first = take()
    second = take(if_taken="replace")
    assert list(PendingCancelation.objects.values_list("work_id", flat=True)) == [first]
    assert holder() == second != first
    # The one that is being canceled does not have the key any more, whatever is wanted now.
    assert take() == second
    assert [run.work_id for run in loop.settle()] == [second]
    assert Archive.objects.get(id=first).kind == "canceled"
    # Work that runs is canceled, too, and goes on; its successor starts beside it.
    third = take(if_taken="replace")
    assert [run.work_id for run in loop.settle()] == [third]
    assert Work.objects.get(id=second).canceled
    assert take() == third


def test_a_replaced_work_of_the_same_transaction_never_starts() -> None:
    loop = Loop()
    with transaction.atomic():
        ids = [take(if_taken="replace") for _ in range(3)]
    assert [run.work_id for run in loop.settle()] == ids[-1:]
    assert sorted(Archive.objects.values_list("id", "kind")) == sorted((one, "canceled") for one in ids[:-1])


def test_the_same_key_twice_in_a_transaction_is_one_work() -> None:
    with transaction.atomic():
        assert take() == take()
        with pytest.raises(WorkExists):
            take(if_taken="raise")
    assert Work.objects.count() == UniqueKey.objects.count() == 1


def test_a_key_is_taken_until_its_work_has_ended_retries_included() -> None:
    loop = Loop()
    first = take(func=act_retried)
    (run,) = loop.settle()
    assert take() == first, "it runs"
    complete(run, FAILED)
    assert take() == first, "its attempt has failed"
    loop.settle()
    assert take() == first, "it waits for its retry"
    PendingStart.objects.update(segment=0)
    (run,) = loop.settle()
    complete(run, SUCCESS)
    # The slot is not yet free, but the work has ended.
    second = take()
    assert (second != first, holder(), Work.objects.count()) == (True, second, 1)


@pytest.mark.parametrize("how", ["cancel", "cancel_all", "marked"])
def test_a_key_is_free_when_its_work_is_being_canceled(how: str) -> None:
    loop = Loop()
    first = take()
    if how == "marked":
        loop.settle()
    Workpool().cancel(first) if how != "cancel_all" else Workpool().cancel_all()
    if how == "marked":
        loop.settle()
        assert Work.objects.get(id=first).canceled
    second = take(if_taken="raise")
    assert second != first
    assert take() == second
    if how != "marked":
        assert [run.work_id for run in loop.settle()] == [second]
        assert Archive.objects.get(id=first).kind == "canceled"


@pytest.mark.parametrize("if_taken", ["keep", "replace", "raise"])
def test_what_is_rolled_back_leaves_the_key_as_it_was(if_taken: str) -> None:
    class Undone(Exception):
        pass

    with pytest.raises(Undone), transaction.atomic():
        take(if_taken=if_taken)
        raise Undone
    assert not UniqueKey.objects.exists() and not Work.objects.exists()
    first = take()
    with transaction.atomic():
        with pytest.raises(Undone), transaction.atomic():
            replaced = take(if_taken="replace")
            assert holder() == replaced
            raise Undone
        assert take() == first
    assert (holder(), PendingCancelation.objects.count(), Work.objects.count()) == (first, 0, 1)


def test_a_work_that_cannot_be_inserted_leaves_the_key_and_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    first = take()
    db = type(database(USING))
    with monkeypatch.context() as patched:
        patched.setattr(db, "insert_work", lambda *args: (_ for _ in ()).throw(ValueError("no room")))
        with transaction.atomic():
            with pytest.raises(ValueError, match="no room"):
                take(if_taken="replace")
            assert Work.objects.count() == 1
    assert (holder(), PendingCancelation.objects.count()) == (first, 0)


def test_the_number_of_statements_is_fixed() -> None:
    """Each in a savepoint: the lock (which inserts the row where there is none), the look at the work, the change, the work."""

    def statements(act: Callable[[], Any]) -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            act()
        return [one["sql"] for one in captured]

    lock, insert, savepoint = 1, 1 if POSTGRESQL else 2, 2
    first = 1 + lock + (lock if POSTGRESQL else 0)
    again = lock + (0 if POSTGRESQL else 1) + 1
    with transaction.atomic():
        assert len(statements(lambda: take())) == savepoint + first + insert
        assert len(statements(lambda: take())) == savepoint + again
        assert len(statements(lambda: take(if_taken="replace"))) == savepoint + again + 2 + insert
        Work.objects.all().delete()
        assert len(statements(lambda: take())) == savepoint + again + 1 + insert


# Pruning ----------------------------------------------------------------------------------------------------------------


def sweep_all(sweep: keys.Sweep) -> int:
    chunks = 1
    while sweep.prune():
        chunks += 1
    return chunks


def test_keys_of_works_that_are_gone_are_pruned_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "PRUNE_CHUNK", 3)
    ids = [take(str(number)) for number in range(8)]
    sweep = keys.Sweep(USING)
    assert sweep_all(sweep) == 3
    assert UniqueKey.objects.count() == 8
    gone = ids[0], ids[3], ids[4], ids[7]
    Work.objects.filter(id__in=gone).delete()
    sweep_all(sweep)
    assert set(UniqueKey.objects.values_list("key", flat=True)) == {"1", "2", "5", "6"}
    again = take("3")
    sweep_all(sweep)
    assert holder("3") == again


def test_an_empty_table_costs_one_statement() -> None:
    with CaptureQueriesContext(connection) as captured:
        assert keys.Sweep(USING).prune() is False
    assert len(captured) == 1


@needs_row_locks
@pytest.mark.django_db(transaction=True)
def test_a_key_that_a_transaction_holds_is_not_pruned_and_nobody_waits_for_it() -> None:
    take()
    Work.objects.all().delete()
    began = time.monotonic()
    with another_session(take):
        assert keys.Sweep(USING).prune() is False
        # The other session lasts until here, or for twice as long.
        assert time.monotonic() - began < 10
    assert Work.objects.get().id == holder()
    assert keys.Sweep(USING).prune() is False
    assert Work.objects.get().id == holder()


@needs_row_locks
@pytest.mark.django_db(transaction=True)
def test_a_key_that_was_given_away_after_the_look_is_not_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work is newer than the look's snapshot: only a statement that begins under the lock may decide."""
    take()
    Work.objects.all().delete()
    look = keys._delete

    def late(db: Any, ids: list[int]) -> None:
        assert len(ids) == 1
        with another_session(take):
            pass
        look(db, ids)

    monkeypatch.setattr(keys, "_delete", late)
    keys.Sweep(USING).prune()
    assert Work.objects.get().id == holder()


@needs_row_locks
@pytest.mark.django_db(transaction=True)
def test_whoever_finds_the_row_pruned_inserts_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.models.query import QuerySet

    take()
    Work.objects.all().delete()
    insert, deleted = QuerySet.bulk_create, []

    def insert_then_prune(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = insert(self, *args, **kwargs)
        if self.model is UniqueKey and not deleted:
            deleted.append(UniqueKey.objects.all().delete())
        return made

    UniqueKey.objects.all().delete()
    monkeypatch.setattr(QuerySet, "bulk_create", insert_then_prune)
    assert take() == holder() == Work.objects.get().id
    assert deleted
