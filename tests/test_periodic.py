"""Periodic works: what is said, what the leader makes of it at a given time, and that each tick is enqueued once."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workpool import InvalidWork, UnknownPool, UnregisteredFunction, Workpool
from django_workpool.database import database
from django_workpool.database.parts import one_by_one
from django_workpool.exceptions import WorkpoolSettingsError
from django_workpool.loop import periodic as phase
from django_workpool.loop.context import Iteration
from django_workpool.loop.memory import Depth
from django_workpool.models import PendingStart, Periodic, Work
from django_workpool.periodic import aschedule, aunschedule, schedule, unschedule
from django_workpool.runner.outlook import News, Outlook
from django_workpool.ticks import SECOND_MS, Cron

from .other_session import another_session
from .states import functions
from .states.driver import Broken, Loop
from .states.rows import USING

pytestmark = pytest.mark.django_db

SECOND, MINUTE, HOUR, DAY = SECOND_MS, 60_000, 3_600_000, 24 * 3_600_000


def ms(text: str) -> int:
    """Return a time in UTC in milliseconds since 1970."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON = ms("2027-06-01T12:00")


class Clock:
    """The database's time, as the loop is told it."""

    def __init__(self) -> None:
        self.ms = float(NOON)

    def set(self, text: str) -> None:
        """Set it."""
        self.ms = float(ms(text))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    # However busy the machine is.
    monkeypatch.setattr(phase, "BUDGET", float("inf"))
    monkeypatch.setattr(type(database(USING)), "clock_ms_sql", property(lambda self: repr(clock.ms)))
    return clock


@pytest.fixture
def loop(clock: Clock) -> Loop:
    return Loop(limit=0)


def row(name: str = "p") -> Periodic:
    return Periodic.objects.get(name=name)


def look(loop: Loop, clock: Clock) -> None:
    """Let the leader know what the watch's look finds."""
    outlook, next_turns = Outlook(USING), {loop.memory.pool: float("inf")}
    ticks = phase.first_ticks(one_by_one(database(USING), [phase.TICKS]), clock.ms)
    news = News(at=float("inf"), now_ms=clock.ms, workers=[], lead=(None, 0, None), queues=None, ticks=ticks)
    outlook.bring(news)
    outlook.plan_ticks({loop.memory.pool: loop.memory}, next_turns)


def turn(loop: Loop, clock: Clock, at: float | None = None, depth: Depth = Depth.BEHIND) -> Iteration:
    """Look and iterate once, at a time."""
    clock.ms = clock.ms if at is None else at
    look(loop, clock)
    return loop.iterate(depth)


def ticks() -> list[str]:
    """Return the ticks that were enqueued, by the names of their works, in their order; forget them."""
    names = list(Work.objects.order_by("id").values_list("name", flat=True))
    Work.objects.all().delete()
    PendingStart.objects.all().delete()
    return [name.partition(" @ ")[2].removesuffix("+00:00") for name in names]


def events(it: Iteration) -> list[tuple[str, str]]:
    return [(event, level) for event, level, _ in it.events if event in ("periodic_failed", "ticks_dropped")]


# What is said ---------------------------------------------------------------------------------------------------


def test_a_row_holds_what_was_said() -> None:
    schedule("p", functions.act, cron="30 1 * * *", args=(1, "x"), kwargs={"b": None}, time_zone="Europe/London", missed="all", priority=7)
    stored = row()
    assert json.loads(stored.arguments) == {"args": [1, "x"], "kwargs": {"b": None}}
    assert (stored.func_path, stored.fn_type, stored.pool) == ("tests.states.functions.act", "action", "default")
    assert (stored.cron, stored.time_zone, stored.missed, stored.priority) == ("30 1 * * *", "Europe/London", "all", 7)
    assert (stored.enabled, stored.next_ms, stored.last_ms, stored.error) == (True, None, None, "")


def test_what_is_left_out_is_the_default(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    schedule("p", "tests.states.functions.act", cron="* * * * *")
    stored = row()
    assert (stored.time_zone, stored.missed, stored.priority, stored.pool, stored.retry) == ("Asia/Tokyo", "last", 0, "default", "")
    assert json.loads(stored.arguments) == {"args": [], "kwargs": {}}


def test_the_retry_is_that_of_the_function() -> None:
    schedule("p", functions.act_retried, cron="* * * * *")
    assert json.loads(row().retry)["max_attempts"] == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": ""}, InvalidWork),
        ({"name": " "}, InvalidWork),
        ({"name": "x" * 201}, InvalidWork),
        ({"name": "a\0b"}, InvalidWork),
        ({"name": 5}, InvalidWork),
        ({"function": len}, UnregisteredFunction),
        ({"function": "tests.states.functions.nothing"}, UnregisteredFunction),
        ({"function": "os.system"}, UnregisteredFunction),
        ({"cron": "* * *"}, InvalidWork),
        ({"cron": "0 0 31 2 *"}, InvalidWork),
        ({"cron": "* * */20 * 1L"}, InvalidWork),
        ({"cron": None}, InvalidWork),
        ({"args": "text"}, InvalidWork),
        ({"args": [datetime.now(UTC)]}, InvalidWork),
        ({"args": [float("nan")]}, InvalidWork),
        ({"kwargs": [1]}, InvalidWork),
        ({"kwargs": {1: 2}}, InvalidWork),
        ({"pool": "nowhere"}, UnknownPool),
        ({"time_zone": "Europe/Nowhere"}, InvalidWork),
        ({"time_zone": ""}, InvalidWork),
        ({"missed": "some"}, InvalidWork),
        ({"missed": None}, InvalidWork),
        ({"priority": 101}, InvalidWork),
        ({"priority": True}, InvalidWork),
        ({"enabled": 1}, InvalidWork),
    ],
)
def test_what_cannot_be_taken_is_refused_before_any_sql(
    change: dict[str, Any], error: type[Exception], django_assert_num_queries: Any
) -> None:
    said: dict[str, Any] = {"name": "p", "function": functions.act, "cron": "* * * * *", **change}
    with django_assert_num_queries(0), pytest.raises(error):
        schedule(said.pop("name"), said.pop("function"), **said)


def test_without_the_library_nothing_is_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(WorkpoolSettingsError, match="cronsim"):
        schedule("p", functions.act, cron="* * * * *")
    assert not Periodic.objects.exists()


def test_the_same_said_again_keeps_its_place_and_other_times_begin_anew() -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    Periodic.objects.update(next_ms=5, last_ms=4, error="broken")
    schedule("p", functions.act, cron="* * * * *", args=[1], time_zone="UTC", missed="skip", enabled=False)
    stored = row()
    assert (stored.next_ms, stored.last_ms, stored.error, stored.enabled) == (5, 4, "", False)
    assert (json.loads(stored.arguments)["args"], stored.missed) == ([1], "skip")
    schedule("p", functions.act, cron="* * * * *", time_zone="Europe/London")
    assert (row().next_ms, row().last_ms) == (None, 4)
    Periodic.objects.update(next_ms=5)
    schedule("p", functions.act, cron="1 * * * *", time_zone="Europe/London")
    assert row().next_ms is None
    assert Periodic.objects.count() == 1


def test_it_is_rolled_back_with_the_callers_transaction() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        schedule("p", functions.act, cron="* * * * *")
        raise ZeroDivisionError
    assert not Periodic.objects.exists()


def test_unscheduling_removes_the_row_once() -> None:
    schedule("p", functions.act, cron="* * * * *")
    assert [unschedule("p"), unschedule("p"), unschedule("other")] == [True, False, False]
    assert not Periodic.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_async_twins() -> None:
    async def both() -> bool:
        await aschedule("p", functions.act, cron="* * * * *", args=[1])
        assert await Periodic.objects.acount() == 1
        return await aunschedule("p")

    # In this thread, whose connection is the test's.
    assert async_to_sync(both)()
    assert not Periodic.objects.exists()


# What the leader does -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", list(Depth))
def test_a_tick_is_enqueued_once_and_starts_in_the_same_iteration(clock: Clock, depth: Depth) -> None:
    loop = Loop()
    schedule("p", functions.act, cron="*/5 * * * *", args=[3], time_zone="UTC", priority=2)
    turn(loop, clock)
    assert (row().next_ms, row().last_ms, Work.objects.count()) == (NOON + 5 * MINUTE, None, 0)
    it = turn(loop, clock, NOON + 5 * MINUTE, depth)
    (work,) = Work.objects.all()
    assert work.name == "p @ 2027-06-01T12:05:00+00:00"
    assert (work.func_path, work.fn_type, json.loads(work.arguments)["args"], work.priority) == (
        "tests.states.functions.act",
        "action",
        [3],
        2,
    )
    assert [run.work_id for runs in it.runs.values() for run in runs] == [work.id]
    assert (row().next_ms, row().last_ms) == (NOON + 10 * MINUTE, NOON + 5 * MINUTE)
    for _ in range(3):
        turn(loop, clock, NOON + 6 * MINUTE)
    assert Work.objects.count() == 1


def test_the_loop_comes_back_at_the_tick_itself(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="* * * * * *", time_zone="UTC")
    it = turn(loop, clock, NOON + 250)
    assert it.wait == pytest.approx(0.75)
    # No look is needed from now on.
    for second in range(1, 4):
        clock.ms = NOON + second * SECOND + 1
        it = loop.iterate()
        assert it.wait == pytest.approx(0.999)
    assert ticks() == [f"2027-06-01T12:00:0{second}" for second in (1, 2, 3)]


def test_nothing_is_asked_before_the_tick(loop: Loop, clock: Clock) -> None:
    """Iterations of a pool without periodic works, or between two ticks, have no statement of it."""
    loop.iterate()
    assert loop.memory.tick_ms is None
    schedule("p", functions.act, cron="0 13 * * *", time_zone="UTC")
    with CaptureQueriesContext(connection) as without:
        loop.iterate()
    turn(loop, clock)
    assert loop.memory.tick_ms == NOON + HOUR
    with CaptureQueriesContext(connection) as between:
        loop.iterate()
    assert not [one["sql"] for one in (*without, *between) if Periodic._meta.db_table in one["sql"]]


def test_a_new_leader_finds_what_is_due_in_its_first_iteration(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    turn(loop, clock)
    clock.ms += MINUTE
    loop.take_over()
    loop.iterate()
    assert ticks() == ["2027-06-01T12:01:00"]


def test_a_leader_that_lost_its_lead_enqueues_nothing(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    turn(loop, clock)
    clock.ms += MINUTE
    deposed = loop.take_over()
    with pytest.raises(Exception, match="is over"):
        deposed.iterate()
    loop.iterate()
    assert ticks() == ["2027-06-01T12:01:00"]


@pytest.mark.django_db(transaction=True)
def test_an_iteration_that_fails_takes_its_ticks_back(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    turn(loop, clock)
    clock.ms += MINUTE
    with pytest.raises(Broken):
        loop.iterate(fail=True)
    assert (Work.objects.count(), row().next_ms) == (0, NOON + MINUTE)
    loop.iterate()
    assert ticks() == ["2027-06-01T12:01:00"]


DST = [
    ("30 1 * * *", "2027-03-28T00:00", "2027-03-28T02:00", ["2027-03-28T01:00:00"]),
    ("30 1 * * *", "2027-10-30T23:00", "2027-10-31T03:00", ["2027-10-31T00:30:00"]),
    ("0 * * * *", "2027-03-28T00:00", "2027-03-28T02:00", [f"2027-03-28T0{hour}:00:00" for hour in (1, 2)]),
    ("0 * * * *", "2027-10-30T23:30", "2027-10-31T03:00", [f"2027-10-31T0{hour}:00:00" for hour in (0, 1, 2, 3)]),
    ("*/30 1 * * *", "2027-03-28T00:00", "2027-03-28T02:00", []),
    (
        "*/30 1 * * *",
        "2027-10-30T23:30",
        "2027-10-31T03:00",
        [f"2027-10-31T0{time}:00" for time in ("0:00", "0:30", "1:00", "1:30")],
    ),
]


@pytest.mark.parametrize(("cron", "begin", "end", "expected"), DST)
@pytest.mark.parametrize("missed", ["skip", "all"])
def test_what_is_enqueued_around_the_changes_of_daylight_saving_time(
    loop: Loop, clock: Clock, cron: str, begin: str, end: str, expected: list[str], missed: str
) -> None:
    schedule("p", functions.act, cron=cron, time_zone="Europe/London", missed=missed)
    clock.set(begin)
    turn(loop, clock)
    while clock.ms < ms(end):
        turn(loop, clock, clock.ms + 5 * MINUTE)
    assert ticks() == expected


# Missed ticks ---------------------------------------------------------------------------------------------------


def missing(loop: Loop, clock: Clock, missed: str, late: float, cron: str = "*/5 * * * *") -> list[str]:
    """Return what is enqueued if nobody leads from noon until so long after it."""
    schedule("p", functions.act, cron=cron, time_zone="UTC", missed=missed)
    turn(loop, clock)
    clock.ms += late
    loop.take_over()
    while loop.iterate().again:
        pass
    assert row().next_ms > clock.ms
    return ticks()


@pytest.mark.parametrize("missed", ["all", "last", "skip"])
@pytest.mark.parametrize("late", [0, SECOND, phase.MISSED_MS])
def test_up_to_a_minute_late_is_in_time(loop: Loop, clock: Clock, missed: str, late: float) -> None:
    assert missing(loop, clock, missed, 5 * MINUTE + late) == ["2027-06-01T12:05:00"]


LATER = 5 * MINUTE + phase.MISSED_MS + 1


@pytest.mark.parametrize(
    ("missed", "late", "expected"),
    [
        ("all", LATER, ["12:05"]),
        ("last", LATER, ["12:05"]),
        ("skip", LATER, []),
        ("all", 18 * MINUTE, ["12:05", "12:10", "12:15"]),
        ("last", 18 * MINUTE, ["12:15"]),
        ("skip", 18 * MINUTE, []),
        # One that is in time stands for those before it.
        ("all", 15 * MINUTE + SECOND, ["12:05", "12:10", "12:15"]),
        ("last", 15 * MINUTE + SECOND, ["12:15"]),
        ("skip", 15 * MINUTE + SECOND, ["12:15"]),
        ("skip", 15 * MINUTE + phase.MISSED_MS, ["12:15"]),
    ],
)
def test_what_becomes_of_missed_ticks(loop: Loop, clock: Clock, missed: str, late: float, expected: list[str]) -> None:
    assert missing(loop, clock, missed, late) == [f"2027-06-01T{time}:00" for time in expected]


@pytest.mark.parametrize("missed", ["all", "last", "skip"])
def test_each_second_of_a_change_of_the_lead_is_enqueued(loop: Loop, clock: Clock, missed: str) -> None:
    assert missing(loop, clock, missed, 12 * SECOND, "* * * * * *") == [f"2027-06-01T12:00:{second:02}" for second in range(1, 13)]


@pytest.mark.parametrize("missed", ["last", "skip"])
def test_what_is_in_time_is_enqueued_each_though_more_was_missed(loop: Loop, clock: Clock, missed: str) -> None:
    assert missing(loop, clock, missed, 5 * MINUTE, "*/20 * * * * *") == [
        f"2027-06-01T12:0{time}" for time in ("4:00", "4:20", "4:40", "5:00")
    ]


def test_millions_of_missed_ticks_become_one(loop: Loop, clock: Clock) -> None:
    assert missing(loop, clock, "last", 300 * DAY + MINUTE / 2, "* * 3 * * *") == ["2028-03-27T03:59:59"]


def test_all_are_made_up_in_bounded_batches(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase, "TICKS_MAX", 10)
    for name in "pq":
        schedule(name, functions.act, cron="* * * * *", time_zone="UTC", missed="all")
    turn(loop, clock)
    clock.ms += 12 * MINUTE
    it = loop.iterate()
    assert (it.again, Work.objects.count()) == (True, 10)
    assert sorted({work.name[0] for work in Work.objects.all()}) == ["p", "q"]
    loop.iterate()
    it = loop.iterate()
    assert (it.again, Work.objects.count()) == (False, 24)
    assert len({work.name for work in Work.objects.all()}) == 24


def test_what_is_older_than_a_week_is_dropped_and_told(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule("p", functions.act, cron="0 12 * * *", time_zone="UTC", missed="all")
    turn(loop, clock)
    it = turn(loop, clock, NOON + 10 * DAY + MINUTE)
    assert events(it) == [("ticks_dropped", "WARN")]
    (told,) = [fields for event, _, fields in it.events if event == "ticks_dropped"]
    assert told == {"name": "p", "since": "2027-06-02T12:00:00+00:00", "until": "2027-06-05T11:59:59+00:00", "missed": "all"}
    assert ticks() == [f"2027-06-{day:02}T12:00:00" for day in range(5, 12)]


def test_the_last_one_is_made_up_however_old_it_is(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="0 12 2 * *", time_zone="UTC", missed="all")
    turn(loop, clock)
    turn(loop, clock, NOON + 80 * DAY)
    assert ticks() == ["2027-08-02T12:00:00"]


def test_a_disabled_work_enqueues_nothing_and_has_missed_its_ticks_when_it_is_enabled(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="*/5 * * * *", time_zone="UTC")
    turn(loop, clock)
    schedule("p", functions.act, cron="*/5 * * * *", time_zone="UTC", enabled=False)
    turn(loop, clock, NOON + 12 * MINUTE)
    assert ticks() == []
    assert loop.memory.tick_ms is None
    schedule("p", functions.act, cron="*/5 * * * *", time_zone="UTC")
    turn(loop, clock)
    assert ticks() == ["2027-06-01T12:10:00"]


# Clocks and people ----------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_brings_no_tick_twice(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="*/5 * * * *", time_zone="UTC")
    turn(loop, clock)
    turn(loop, clock, NOON + 10 * MINUTE)
    assert ticks() == ["2027-06-01T12:10:00"]
    for minutes in range(1, 11):
        turn(loop, clock, NOON + minutes * MINUTE)
    assert ticks() == []
    # Other times, while it is early once more: what was enqueued does not come again.
    clock.ms = NOON + 2 * MINUTE
    schedule("p", functions.act, cron="*/2 * * * *", time_zone="UTC")
    turn(loop, clock)
    assert row().next_ms == NOON + 12 * MINUTE


def test_a_clock_that_was_years_ahead_does_not_silence_it_for_years(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="*/5 * * * *", time_zone="UTC")
    Periodic.objects.update(last_ms=NOON + 3_000 * DAY)
    turn(loop, clock)
    assert row().next_ms == NOON + 5 * MINUTE


def test_ticks_of_a_clock_that_was_months_ahead_do_not_silence_it_for_months(loop: Loop, clock: Clock) -> None:
    """What was planned by that clock is planned anew once it has been set right; nobody need touch the row."""
    for name in "pq":
        schedule(name, functions.act, cron="*/5 * * * *", time_zone="UTC")
    turn(loop, clock)
    turn(loop, clock, NOON + 90 * DAY)
    ticks()
    Periodic.objects.filter(name="q").update(next_ms=NOON + 5 * MINUTE, last_ms=NOON)
    turn(loop, clock, NOON + MINUTE)
    assert (row("p").next_ms, row("p").last_ms) == (NOON + 5 * MINUTE, None)
    assert ticks() == []
    turn(loop, clock, NOON + 5 * MINUTE)
    assert ticks() == ["2027-06-01T12:05:00"] * 2


@pytest.mark.parametrize("missed", ["all", "last", "skip"])
@pytest.mark.parametrize("next_ms", [-1, -(2**53), -(2**63)])
def test_a_tick_that_no_clock_has_shown_is_worked_out_anew(loop: Loop, clock: Clock, missed: str, next_ms: int) -> None:
    schedule("p", functions.act, cron="*/5 * * * *", time_zone="UTC", missed=missed)
    Periodic.objects.update(next_ms=next_ms)
    assert events(turn(loop, clock)) == []
    assert (row().next_ms, row().error, ticks()) == (NOON + 5 * MINUTE, "", [])


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer: nobody else is changing a row meanwhile")
def test_the_loop_does_not_wait_for_somebody_who_changes_a_row(loop: Loop, clock: Clock) -> None:
    for name in "pq":
        schedule(name, functions.act, cron="* * * * *", time_zone="UTC")
    turn(loop, clock)
    with another_session(lambda: schedule("p", functions.act, cron="* * * * *", time_zone="UTC", priority=5)):
        it = turn(loop, clock, NOON + MINUTE)
        assert [work.name[0] for work in Work.objects.all()] == ["q"]
        # It is left to the next look: the loop does not spin.
        assert (it.again, it.wait) == (False, pytest.approx(60))
    turn(loop, clock)
    assert sorted((work.name[0], work.priority) for work in Work.objects.all()) == [("p", 5), ("q", 0)]


def test_what_changes_between_the_read_and_the_write_wins(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is locked the change of the row is guarded by what was read."""
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    turn(loop, clock)
    real = phase._plan

    def edited(*args: Any) -> Any:
        Periodic.objects.update(next_ms=None)
        return real(*args)

    monkeypatch.setattr(phase, "_plan", edited)
    turn(loop, clock, NOON + MINUTE)
    assert (ticks(), row().next_ms) == ([], None)


BROKEN = [
    {"cron": "nonsense"},
    {"cron": "0 0 31 2 *"},
    {"cron": "* * */20 * 1L"},
    {"time_zone": "Europe/Nowhere"},
    {"fn_type": ""},
    {"fn_type": "callback"},
    {"priority": 3_000},
    {"missed": "some"},
    {"retry": "nonsense"},
    {"retry": '{"max_attempts": 3}'},
]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_a_row_that_cannot_be_worked_out_is_told_once_and_stops_nobody(
    loop: Loop, clock: Clock, broken: dict[str, Any], known: bool
) -> None:
    for name in "pq":
        schedule(name, functions.act, cron="* * * * *", time_zone="UTC")
    turn(loop, clock)
    Periodic.objects.filter(name="p").update(**broken, **({} if known else {"next_ms": None}))
    it = turn(loop, clock, NOON + MINUTE)
    assert events(it) == [("periodic_failed", "ERROR")]
    assert [work.name[0] for work in Work.objects.all()] == ["q"]
    assert row().error
    assert not events(turn(loop, clock, NOON + 2 * MINUTE))
    (warning,) = [one for one in checks.run_checks(databases=[USING]) if one.id == "workpool.W010"]
    assert row().error in warning.msg
    # Whoever mends it says so once more.
    ticks()
    schedule("p", functions.act, cron="* * * * *", time_zone="Europe/London")
    turn(loop, clock)
    turn(loop, clock, NOON + 3 * MINUTE)
    assert len(ticks()) == 2


def test_whatever_the_library_raises_stops_nobody(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    work_id = Workpool().enqueue(functions.act, 1)

    def raising(*args: Any) -> Any:
        raise AssertionError("what is this")

    monkeypatch.setattr(Cron, "after", raising)
    it = turn(loop, clock)
    assert events(it) == [("periodic_failed", "ERROR")]
    assert "what is this" in row().error
    assert Workpool().status(work_id).state == "pending"


def test_a_function_that_is_gone_is_enqueued_and_held_like_any_other(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    Periodic.objects.update(func_path="tests.states.functions.gone")
    turn(loop, clock)
    turn(loop, clock, NOON + MINUTE)
    assert ticks() == ["2027-06-01T12:01:00"]
    (warning,) = [one for one in checks.run_checks(databases=[USING]) if one.id == "workpool.W010"]
    assert "tests.states.functions.gone" in warning.msg


def test_a_leader_without_the_library_goes_on_and_says_so_once(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    monkeypatch.setitem(sys.modules, "cronsim", None)
    it = turn(loop, clock)
    assert events(it) == [("periodic_failed", "ERROR")]
    assert not events(turn(loop, clock, NOON + MINUTE))
    assert (row().next_ms, row().error, loop.memory.tick_ms) == (None, "", None)
    (error,) = [one for one in checks.run_checks(databases=[USING]) if one.id.endswith("010")]
    assert (error.id, error.hint) == ("workpool.E010", "pip install 'django_workpool[cron]', wherever workpool_main runs.")
    # The next leader has it.
    monkeypatch.undo()
    assert not [one for one in checks.run_checks(databases=[USING]) if one.id.endswith("010")]


def test_a_row_of_a_pool_that_nobody_knows_troubles_nobody(loop: Loop, clock: Clock) -> None:
    schedule("p", functions.act, cron="* * * * *", time_zone="UTC")
    Periodic.objects.update(pool="gone")
    assert phase.first_ticks(one_by_one(database(USING), [phase.TICKS]), clock.ms) == {}
    turn(loop, clock, NOON + MINUTE)
    assert ticks() == []
    assert [one.id for one in checks.run_checks(databases=[USING]) if "'gone'" in one.msg] == ["workpool.W010"]


def test_news_that_are_older_than_an_iteration_change_nothing(loop: Loop, clock: Clock) -> None:
    loop.iterate()
    outlook, next_turns = Outlook(USING), {loop.memory.pool: 50.0}
    old: dict[str, Any] = {"now_ms": clock.ms, "workers": [], "lead": (None, 0, None), "queues": None}
    outlook.bring(News(at=loop.memory.read_ticks - 1, ticks={loop.memory.pool: 0.0}, **old))
    outlook.plan_ticks({loop.memory.pool: loop.memory}, next_turns)
    assert (loop.memory.tick_ms, next_turns) == (None, {loop.memory.pool: 50.0})
    at = loop.memory.read_ticks + 1
    outlook.bring(News(at=at, ticks={loop.memory.pool: clock.ms + 2_000}, **old))
    outlook.plan_ticks({loop.memory.pool: loop.memory}, next_turns)
    assert loop.memory.tick_ms == clock.ms + 2_000
    assert next_turns == {loop.memory.pool: min(50.0, at + 2)}


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    """Each begins without periodic works."""
    assert not Periodic.objects.exists()
    yield


def test_many_rows_at_the_same_moment_are_enqueued_in_bounded_batches(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase, "ROWS", 3)
    for number in range(8):
        schedule(f"p{number}", functions.act, cron="* * * * *", time_zone="UTC")
    while turn(loop, clock).again:
        pass
    clock.ms += MINUTE
    counts = []
    while loop.iterate().again:
        counts.append(Work.objects.count())
    assert (counts, Work.objects.count()) == ([3, 6], 8)
    assert {one.next_ms for one in Periodic.objects.all()} == {NOON + 2 * MINUTE}


def test_many_rows_do_not_hold_up_works_that_wait(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over, an iteration starts works, and leaves the other rows to the next one."""
    monkeypatch.setattr(phase, "BUDGET", 0.0)
    loop.configure(1)
    for number in range(3):
        schedule(f"p{number}", functions.act, cron="* * * * *", time_zone="UTC")
    while turn(loop, clock).again:
        pass
    clock.ms += MINUTE
    waits = Workpool().enqueue(functions.act)
    it = loop.iterate()
    assert ([one.work_id for one in it.started], it.again, Work.objects.count()) == ([waits], True, 2)
    turns = 1
    while loop.iterate().again:
        turns += 1
    assert (turns, Work.objects.count()) == (2, 4)
    assert {one.next_ms for one in Periodic.objects.all()} == {NOON + 2 * MINUTE}


def test_time_goes_on_by_the_clock_of_the_database_only() -> None:
    """The row's times are those of the loop's clock, whatever this process's own says."""
    loop = Loop(limit=0)
    schedule("p", functions.act, cron="* * * * * *", time_zone="UTC")
    loop.iterate()
    assert abs(row().next_ms / 1000 - datetime.now(UTC).timestamp()) < timedelta(minutes=1).total_seconds()
