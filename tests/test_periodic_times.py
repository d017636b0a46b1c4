"""When a cron expression ticks: around both changes of daylight saving time, as the manual's table says, and at all other times."""

import re
import sys
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_workpool import InvalidWork
from django_workpool.exceptions import WorkpoolSettingsError
from django_workpool.periodic import next_times
from django_workpool.ticks import CRON_MAX, Cron, is_available, zone

pytestmark = pytest.mark.anywhere

README = Path(__file__).parents[1] / "README.md"


def ms(text: str) -> int:
    """Return a time, in UTC unless it says otherwise, in milliseconds since 1970."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def between(cron: Cron, begin: int, end: int) -> list[int]:
    """Return the ticks after ``begin`` and up to ``end``."""

    def ticks():
        tick = begin
        while True:
            tick = cron.after(tick)
            yield tick

    return list(takewhile(lambda tick: tick <= end, ticks()))


def local(cron: str, begin: str, end: str, place: str = "Europe/London") -> str:
    """Return the ticks from ``begin`` to ``end``, as a clock on the wall shows them, with the offset's hours."""
    found = between(Cron(cron, place), ms(begin) - 1, ms(end))
    shown = (datetime.fromtimestamp(one / 1000, UTC).astimezone(zone(place)) for one in found)
    return " ".join(f"{one:%H:%M:%S}".removesuffix(":00") + f"{one:%z}"[:3] for one in shown)


#: Local midnight to three (spring: from 01:00 to 02:00 the clock is put forward; autumn: at 02:00 it is put back to 01:00).
SPRING = "2027-03-28T00:00", "2027-03-28T02:00"
AUTUMN = "2027-10-30T23:00", "2027-10-31T03:00"

#: What the manual's table says: expression, spring, autumn.
TABLE = [
    ("30 1 * * *", "02:00+01", "01:30+01"),
    ("0,30 1 * * *", "02:00+01", "01:00+01 01:30+01"),
    ("0 0-2 * * *", "00:00+00 02:00+01", "00:00+01 01:00+01 02:00+00"),
    ("15 30 1 * * *", "02:00:15+01", "01:30:15+01"),
    ("0 * * * *", "00:00+00 02:00+01 03:00+01", "00:00+01 01:00+01 01:00+00 02:00+00 03:00+00"),
    ("30 * * * *", "00:30+00 02:30+01", "00:30+01 01:30+01 01:30+00 02:30+00"),
    (
        "*/30 * * * *",
        "00:00+00 00:30+00 02:00+01 02:30+01 03:00+01",
        "00:00+01 00:30+01 01:00+01 01:30+01 01:00+00 01:30+00 02:00+00 02:30+00 03:00+00",
    ),
    ("*/30 1 * * *", "", "01:00+01 01:30+01 01:00+00 01:30+00"),
    ("0 */2 * * *", "00:00+00 02:00+01", "00:00+01 02:00+00"),
]


@pytest.mark.parametrize(("cron", "spring", "autumn"), TABLE)
def test_the_changes_of_daylight_saving_time(cron: str, spring: str, autumn: str) -> None:
    assert local(cron, *SPRING) == spring
    assert local(cron, *AUTUMN) == autumn


def test_each_minute_and_each_second_of_real_time_ticks_once_at_both_changes() -> None:
    for begin, end in (SPRING, AUTUMN):
        for cron, step in (("* * * * *", 60_000), ("* * * * * *", 1_000), ("*/10 * * * * *", 10_000)):
            assert between(Cron(cron, "Europe/London"), ms(begin) - 1, ms(end)) == list(range(ms(begin), ms(end) + 1, step))


@pytest.mark.parametrize(
    ("place", "cron", "begin", "end", "ticks"),
    [
        # The hour that is skipped is that of midnight.
        ("America/Santiago", "0 0 * * *", "2026-09-05T12:00", "2026-09-06T12:00", "01:00-03"),
        # Half an hour is skipped, and comes twice.
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00", "2026-10-03T20:00", "02:30+11"),
        ("Australia/Lord_Howe", "45 1 * * *", "2027-04-03T12:00", "2027-04-03T20:00", "01:45+11"),
        ("America/New_York", "30 2 * * *", "2027-03-14T00:00", "2027-03-14T12:00", "03:00-04"),
        ("America/New_York", "30 1 * * *", "2027-11-07T00:00", "2027-11-07T12:00", "01:30-04"),
        # No change at all.
        ("UTC", "30 1 * * *", "2027-03-28T00:00", "2027-03-28T03:00", "01:30+00"),
        ("Asia/Kathmandu", "0 6 * * *", "2027-03-28T00:00", "2027-03-28T03:00", "06:00+05"),
    ],
)
def test_other_zones(place: str, cron: str, begin: str, end: str, ticks: str) -> None:
    assert local(cron, begin, end, place) == ticks


def test_the_table_of_the_manual_is_the_one_that_is_tested() -> None:
    section = README.read_text().partition("## Periodic works")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `([^`]+ [^`]+)` \| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE)
    tested = {cron: (spring, autumn) for cron, spring, autumn in TABLE}
    assert len(told) >= 5
    for cron, spring, autumn in told:
        assert tested[cron] == tuple("" if one == "none" else one.replace(",", "") for one in (spring, autumn)), cron


EXPRESSIONS = ["* * * * * *", "*/7 * * * *", "30 1 * * *", "0,30 1,2 * * 0", "0 0 1 * *", "15 30 1 * * *", "* * 3 * * *", "*/20 1 * * *"]
BEGIN, END = ms("2027-03-01T00:00"), ms("2027-11-30T00:00")


@settings(derandomize=True, database=None, deadline=None, max_examples=80)
@given(st.sampled_from(EXPRESSIONS), st.integers(BEGIN, END), st.integers(0, 300_000_000))
def test_the_last_tick_is_the_one_that_none_follows(cron: str, begin: int, span: int) -> None:
    expression = Cron(cron, "Europe/London")
    first = expression.after(begin)
    last = expression.last(first, first + span)
    assert first <= last <= first + span < expression.after(last)
    # It is one of those that come one after the other.
    assert expression.after(last - 1) == last


def test_a_tick_is_later_than_the_moment_it_follows_also_in_the_second_of_two_equal_hours() -> None:
    second = ms("2027-10-31T01:10+00:00")
    assert local("30 1 * * *", "2027-10-31T01:10", "2027-11-01T02:00") == "01:30+00"
    assert Cron("30 1 * * *", "Europe/London").after(second) == ms("2027-11-01T01:30")


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "x * * * *", "1/0 * * * *", "@daily", "* * * * ²L",
     "\0 * * * *", "*" * (CRON_MAX + 1), None, 5, b"* * * * *", "60 * * * * *"],
)  # fmt: skip
def test_what_is_no_expression_is_refused(cron: object) -> None:
    with pytest.raises(InvalidWork, match="cron"):
        Cron(cron, "UTC")


@pytest.mark.parametrize("cron", ["0 0 31 2 *", "0 0 30 2 *", "* * */20 * 1L", "0 0 31 4,6,9,11 *"])
def test_what_never_comes_is_refused(cron: str) -> None:
    with pytest.raises(InvalidWork, match="never ticks|not a cron expression"):
        next_times(cron, "Europe/London")


@pytest.mark.parametrize("place", ["", "Europe", "Europe/Nowhere", "../etc/passwd", "/etc/localtime", "x" * 65, None, 1, "\0", "É"])
def test_what_is_no_zone_is_refused(place: object) -> None:
    with pytest.raises(InvalidWork, match="no time zone"):
        zone(place)


def test_beyond_the_calendar_nothing_ticks() -> None:
    with pytest.raises(InvalidWork, match="never ticks"):
        Cron("* * * * *", "UTC").after(1e18)
    with pytest.raises(InvalidWork, match="never ticks"):
        Cron("* * * * *", "UTC").after(-1e18)


def test_the_next_times_are_those_from_now_on_in_their_zone() -> None:
    times = next_times("0 12 * * *", "Asia/Tokyo", 3)
    assert [f"{one:%H:%M %z}" for one in times] == ["12:00 +0900"] * 3
    assert [(b - a).days for a, b in zip(times, times[1:], strict=False)] == [1, 1]
    assert times[0] > datetime.now(UTC)
    # Few come within 50 years, and fewer than asked for are given.
    assert len(next_times("0 0 29 2 *", "UTC", 13)) >= 12


@pytest.mark.parametrize("count", [0, -1, 1001, True, 2.0, "3"])
def test_the_number_of_next_times_is_bounded(count: object) -> None:
    with pytest.raises(InvalidWork, match="count"):
        next_times("* * * * *", "UTC", count)  # type: ignore[arg-type]


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_available()
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert not is_available()
    with pytest.raises(WorkpoolSettingsError, match=r"pip install 'django_workpool\[cron\]'"):
        next_times("* * * * *")
