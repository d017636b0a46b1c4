"""What tallies sum up to, and how their rows are made fewer without a sum that changes."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workpool import tallies
from django_workpool.database import database
from django_workpool.exceptions import InvalidWork
from django_workpool.models import Tally
from django_workpool.tallies import COUNTS, KEPT, LAGS, Point, Sweep, compact, percentile_ms, series, totals
from django_workpool.types import Lane

from .live import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

USING = "default"


@pytest.fixture
def now() -> int:
    """The minute that is now; it may become the next one."""
    return tallies.minute_of(database(USING).clock_ms())


def tally(minute: int, pool: str = "default", lane: Lane = Lane.WORK, **counts: Any) -> Tally:
    return Tally(pool=pool, lane=lane.value, minute=minute, **counts)


def insert(*rows: Tally) -> None:
    Tally.objects.bulk_create(rows, batch_size=500)


def sums() -> dict[tuple[str, int], dict[str, int]]:
    """Add all rows up, row by row."""
    found: dict[tuple[str, int], Counter[str]] = {}
    for row in Tally.objects.values():
        found.setdefault((row["pool"], row["lane"]), Counter()).update({name: row[name] for name in (*COUNTS, *LAGS)})
    return {of: dict(numbers) for of, numbers in found.items()}


def rows() -> list[tuple[int, str, int, int]]:
    return list(Tally.objects.order_by("minute", "pool", "lane").values_list("minute", "pool", "lane", "started"))


def many(now: int, number: int, seed: int = 1) -> None:
    """Insert rows of all kinds and times."""
    chance = random.Random(seed)
    minutes = [0, 1, now - KEPT - 2, now - KEPT - 1, now - 700, now - 60, now - 3, now - 2, now, now + 1]
    insert(
        *(
            tally(
                chance.choice(minutes),
                chance.choice(["default", "imports"]),
                chance.choice(list(Lane)),
                waiting=chance.choice([None, 3]),
                **{name: chance.randint(0, 9) for name in (*COUNTS, *LAGS)},
            )
            for _ in range(number)
        )
    )


# Series and totals --------------------------------------------------------------------------------------------------------


def test_a_point_is_the_sum_of_its_step() -> None:
    insert(
        tally(999, started=100),
        tally(1000, started=2, lag_100ms=1, lag_1s=1, succeeded=1, waiting=5, running=1),
        tally(1002, started=1, lag_longer=1, failed=1, failed_attempts=3, retried=2, waiting=7),
        tally(1005, canceled=4, returned=1, requeued=1),
        tally(1001, pool="imports", started=1, lag_100ms=1),
        tally(1001, lane=Lane.CALLBACK, started=50),
        tally(1010, started=100),
        tally(0, started=1000),
    )
    first, second, other = series(USING, 1000, 1010, 5)
    none = dict.fromkeys(COUNTS, 0)
    lags = (1, 0, 0, 1, 0, 0, 0, 0, 0, 1)
    counts = none | {"started": 3, "succeeded": 1, "failed": 1, "failed_attempts": 3, "retried": 2}
    assert first == Point(pool="default", minute=1000, waiting=7, running=1, lags=lags, **counts)
    counts = none | {"canceled": 4, "returned": 1, "requeued": 1}
    assert second == Point(pool="default", minute=1005, waiting=None, running=None, lags=(0,) * 10, **counts)
    assert (second.lag_p50_ms, second.lag_p95_ms) == (None, None)
    assert (other.pool, other.minute, other.started) == ("imports", 1000, 1)
    assert [one.minute for one in series(USING, 998, 1011, 4, ["default"])] == [998, 1002, 1010]
    assert series(USING, 1000, 1010, 5, []) == []
    assert [one.started for one in series(USING, 1000, 1010, 5, lane=Lane.CALLBACK)] == [50]
    # All time is no step.
    assert [one.started for one in series(USING, 0, 2000, 2000, ["default"])] == [203]
    assert totals(USING)["default"].started == 1203
    assert set(totals(USING)) == {"default", "imports"}
    assert set(totals(USING, ["imports"])) == {"imports"}
    assert totals(USING, lane=Lane.CALLBACK)["default"].started == 50
    assert all(type(getattr(first, name)) is int for name in COUNTS)


@pytest.mark.parametrize("arguments", [(0, 10, 0), (0, 10, -1), ("0", 10, 1), (0, 10.0, 1), (0, 10, True)])
def test_what_is_no_time_is_refused_before_any_statement(arguments: tuple[Any, ...]) -> None:
    with CaptureQueriesContext(connection) as captured, pytest.raises(InvalidWork, match="minute"):
        series(USING, *arguments)
    assert len(captured) == 0


def test_a_week_of_ten_pools_is_one_statement_that_finds_its_rows_by_the_index(now: int) -> None:
    insert(*(tally(now - minute, f"pool-{pool}", started=1, lag_100ms=1) for minute in range(3, 10_080, 20) for pool in range(10)))
    with CaptureQueriesContext(connection) as captured:
        points = series(USING, now - 10_080, now, 60)
    assert len(captured) == 1
    assert (len({one.pool for one in points}), sum(one.started for one in points)) == (10, 5040)
    assert len(points) <= 10 * 169
    if connection.vendor == "mysql":
        return
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
        with CaptureQueriesContext(connection) as captured:
            series(USING, now - 60, now, 1)
        cursor.execute(f"{explain} {captured[0]['sql'].replace('%%', '%')}")
        assert "workpool_tally_minute" in str(cursor.fetchall())


def histogram(*counts: int) -> tuple[int, ...]:
    return (*counts, *[0] * (len(LAGS) - len(counts)))


@pytest.mark.parametrize(
    ("lags", "share", "expected"),
    [
        (histogram(), 0.5, None),
        (histogram(10), 0.5, 50),
        (histogram(10), 1.0, 100),
        (histogram(1, 1), 0.5, 100),
        (histogram(1, 1), 0.75, 150),
        (histogram(90, 0, 0, 10), 0.95, 750),
        (histogram(0, 0, 4), 0.5, 350),
        (histogram(0, 0, 4), 0.0, 200),
        ((0,) * 8 + (2, 0), 0.5, 330_000),
        ((0,) * 9 + (3,), 0.5, 600_000),
        ((1,) + (0,) * 8 + (3,), 0.95, 600_000),
    ],
)
def test_percentiles_lie_where_an_even_spread_within_an_interval_puts_them(
    lags: tuple[int, ...], share: float, expected: float | None
) -> None:
    assert percentile_ms(lags, share) == expected


def test_what_runs_again_is_counted_in_its_own_column(now: int) -> None:
    tallies.count_requeued(USING, "imports", 3)
    tallies.count_requeued(USING, "imports", lane=Lane.CALLBACK)
    assert totals(USING)["imports"].requeued == 3
    assert totals(USING, lane=Lane.CALLBACK)["imports"].requeued == 1
    assert now <= Tally.objects.values_list("minute", flat=True)[0] <= now + 1


# Fewer rows ---------------------------------------------------------------------------------------------------------------


def test_rows_of_a_minute_that_is_over_become_one(now: int) -> None:
    insert(*(tally(now - 5, started=number, waiting=number or None, running=7 - number) for number in range(4)))
    insert(tally(now - 5, lane=Lane.CALLBACK, started=1), tally(now - 5, "imports", started=1), tally(now - 4, started=1))
    insert(tally(now, started=1), tally(now, started=1), tally(now + 1), tally(now + 1))
    alone = Tally.objects.get(minute=now - 4).id
    assert compact(USING) == 3
    assert rows() == [
        (now - 5, "default", 0, 6),
        (now - 5, "default", 1, 1),
        (now - 5, "imports", 0, 1),
        (now - 4, "default", 0, 1),
        *[(now, "default", 0, 1)] * 2,
        *[(now + 1, "default", 0, 0)] * 2,
    ]
    merged = Tally.objects.get(minute=now - 5, pool="default", lane=0)
    assert (merged.waiting, merged.running) == (3, 7)
    # What is alone is left as it is.
    assert Tally.objects.get(minute=now - 4).id == alone
    before = list(Tally.objects.values())
    assert compact(USING) == 0
    assert list(Tally.objects.values()) == before


def test_what_is_older_than_a_week_and_a_day_becomes_one_for_all_time(now: int) -> None:
    insert(tally(0, started=1), tally(now - KEPT - 3, started=2), tally(now - KEPT - 2, started=4), tally(now - KEPT + 5, started=8))
    insert(tally(now - KEPT - 3, "imports", started=16))
    compact(USING)
    assert rows() == [(0, "default", 0, 7), (0, "imports", 0, 16), (now - KEPT + 5, "default", 0, 8)]
    assert compact(USING) == 0
    assert totals(USING)["default"].started == 15


@pytest.mark.parametrize("chunk", [2, 3, 7, 2_000])
@pytest.mark.parametrize("groups", [1, 100])
def test_no_sum_changes_whatever_a_chunk_holds(monkeypatch: pytest.MonkeyPatch, now: int, chunk: int, groups: int) -> None:
    monkeypatch.setattr(tallies, "CHUNK", chunk)
    monkeypatch.setattr(tallies, "GROUPS", groups)
    many(now, 300)
    before, sweep, steps = sums(), Sweep(USING), 0
    while sweep.prune():
        steps += 1
        assert sums() == before
        assert steps < 1_000
    assert {of: one.started for of, one in tallies.totals_by_lane(USING).items()} == {
        (pool, Lane(lane)): numbers["started"] for (pool, lane), numbers in before.items()
    }
    over = [(minute, pool, lane) for minute, pool, lane, _ in rows() if minute < now - 1]
    assert len(over) == len(set(over))
    assert {minute for minute, *_ in over if 0 < minute < now - KEPT} == set()


def test_one_look_after_another_finds_what_has_come_since(now: int) -> None:
    sweep = Sweep(USING)
    while sweep.prune():
        pass
    insert(tally(now - 2), tally(now - 2), tally(now - 3), tally(now - 3))
    while sweep.prune():
        pass
    assert len(rows()) == 2


class Crash(Exception):
    """The process ends here."""


def test_a_crash_between_insert_and_delete_changes_nothing(monkeypatch: pytest.MonkeyPatch, now: int) -> None:
    many(now, 100)
    before, texts = list(Tally.objects.order_by("id").values()), []
    original = type(database(USING)).execute

    def execute(self: Any, template: str, params: Any = ()) -> int:
        texts.append(template.split()[0])
        if template.startswith("DELETE"):
            raise Crash
        return original(self, template, params)

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(type(database(USING)), "execute", execute)
        compact(USING)
    assert texts == ["INSERT", "DELETE"]
    assert list(Tally.objects.order_by("id").values()) == before


def test_what_somebody_else_has_merged_meanwhile_is_theirs(monkeypatch: pytest.MonkeyPatch, now: int) -> None:
    """Where no row is locked: the number of deleted rows tells."""
    insert(*(tally(now - 5, started=1) for _ in range(4)))
    before, original = sums(), type(database(USING)).execute

    def execute(self: Any, template: str, params: Any = ()) -> int:
        if template.startswith("DELETE"):
            Tally.objects.filter(id=Tally.objects.order_by("id").values_list("id", flat=True)[0]).delete()
        return original(self, template, params)

    with monkeypatch.context() as patched:
        patched.setattr(type(database(USING)), "execute", execute)
        assert compact(USING) == 0
    assert sums() == before
    assert Tally.objects.count() == 4


def concurrently(number: int, act: Any) -> None:
    """Do something on so many threads at once."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(number)

    def body() -> None:
        try:
            barrier.wait(30)
            act()
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=body) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_two_that_merge_at_the_same_time_keep_all_sums(monkeypatch: pytest.MonkeyPatch, now: int) -> None:
    monkeypatch.setattr(tallies, "CHUNK", 20)
    many(now, 600)
    before = sums()

    def merge() -> None:
        # As the leader's connection does, on SQLite: it waits for its turn.
        database(USING).private_connection("loop")
        compact(USING)

    concurrently(3, merge)
    assert sums() == before
    compact(USING)
    over = [(minute, pool, lane) for minute, pool, lane, _ in rows() if minute < now - 1]
    assert len(over) == len(set(over))


@pytest.fixture
def merging(now: int) -> Iterator[list[int]]:
    """Rows that another transaction is just merging."""
    if connection.vendor == "sqlite":
        pytest.skip("one writer shuts out all others")
    insert(*(tally(now - 5, started=1) for _ in range(4)))
    held, go = threading.Event(), threading.Event()
    ids = list(Tally.objects.values_list("id", flat=True))

    def hold() -> None:
        try:
            with transaction.atomic():
                list(Tally.objects.select_for_update().filter(id__in=ids).order_by("id"))
                held.set()
                go.wait(30)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    wait_until(held.is_set)
    yield ids
    go.set()
    thread.join()


def test_rows_that_somebody_holds_are_passed_over(merging: list[int]) -> None:
    assert compact(USING) == 0
    assert list(Tally.objects.order_by("id").values_list("id", flat=True)) == sorted(merging)


def test_a_minute_of_a_pool_with_a_small_limit_takes_few_statements(now: int) -> None:
    """Thousands of rows in a minute: two thousand of them in each transaction."""
    insert(*(tally(now - 2, started=1) for _ in range(10_000)))
    with CaptureQueriesContext(connection) as captured:
        assert compact(USING) == 9_999
    # The time, what is old, the first minute, its groups; BEGIN, lock, insert, delete, COMMIT.
    assert len(captured) <= 9 * 7
    assert rows() == [(now - 2, "default", 0, 10_000)]
