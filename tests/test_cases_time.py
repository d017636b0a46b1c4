"""Times: without USE_TZ, in other zones, at the ends of the calendar, in long transactions, by a wrong clock."""

import ast
import logging
import re
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django.utils import timezone as django_timezone

import django_workpool
from django_workpool import InvalidWork, Workpool
from django_workpool.models import PendingStart, Work
from django_workpool.segments import SECOND, YEAR

from .conftest import StartMain
from .live import PATIENCE, database_clock, results, times, wait_for_quiet
from .works.tasks import note

POSTGRESQL = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite's clock is this host's")


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "Europe/London"])
def test_without_use_tz(main_process: StartMain, zone: str) -> None:
    """Works start at their time, whichever way it was said, also in a process that starts later; retries wait as long as they should."""
    environment = {"DJANGO_SETTINGS_MODULE": "tests.works.settings_naive", "WORKPOOL_TEST_ZONE": zone}
    client = main_process(command="enqueue_times", env=environment)
    main = main_process("--grace", "1", env=environment)
    assert client.wait(PATIENCE) == 0, client.output()
    ids = [uuid.UUID(one) for one in client.output().split()]
    now, delayed, after, retried = results(ids)
    assert {one.kind for one in (now, delayed, after, retried)} == {"success"}
    # A process that starts takes longer than half a second here: nothing is early, and nothing waits for an offset of hours.
    for one in (delayed, after):
        assert one.started is not None
        assert 0.5 <= (one.started - one.created).total_seconds() < 10
    first, second = times("attempt", "retry")
    assert 0.2 <= second - first < 1.7
    main.terminate()
    assert main.wait(PATIENCE) == 0
    assert "Traceback" not in main.output() and "TypeError" not in main.output()


@pytest.mark.django_db
def test_naive_time_without_use_tz(settings: LazySettings) -> None:
    """It is meant in TIME_ZONE; with USE_TZ it is refused."""
    naive = datetime(2027, 7, 1, 12)
    with pytest.raises(InvalidWork, match="make_aware"):
        Workpool().using(run_after=naive)
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Shanghai", False
    pool = Workpool().using(run_after=naive)
    settings.TIME_ZONE, settings.USE_TZ = "UTC", True
    pool.enqueue(note, "x")
    assert PendingStart.objects.get().segment == naive.replace(tzinfo=ZoneInfo("Asia/Shanghai")).timestamp() * SECOND


NOW, IN_A_YEAR = 0, YEAR


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (datetime.min.replace(tzinfo=UTC), NOW),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), NOW),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=-14))), NOW),
        (datetime(1, 1, 1, tzinfo=UTC), NOW),
        (datetime(1970, 1, 1, tzinfo=UTC), NOW),
        (datetime.max.replace(tzinfo=UTC), IN_A_YEAR),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), IN_A_YEAR),
        (datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=14))), IN_A_YEAR),
        (timedelta.max, IN_A_YEAR),
        (timedelta(seconds=10**12), IN_A_YEAR),
        (timedelta(days=365 * 3), 3 * YEAR),
        (timedelta(0), NOW),
        (timedelta(microseconds=1), NOW),
    ],
    ids=str,
)
def test_ends_of_the_calendar(when: datetime | timedelta, expected: int, caplog: pytest.LogCaptureFixture) -> None:
    """Too old counts as now, too far in the future as one year from now; both are told in the log."""
    before = database_clock() * SECOND
    with caplog.at_level(logging.ERROR, "django_workpool.client"):
        pool = Workpool().using(delay=when) if isinstance(when, timedelta) else Workpool().using(run_after=when)
        pool.enqueue(note, "x")
    assert -2 <= PendingStart.objects.get().segment - (before + expected) <= 5
    told = [record.getMessage() for record in caplog.records if "it counts as" in record.getMessage()]
    extreme = isinstance(when, datetime) or when > timedelta(days=4 * 365)
    assert len(told) == extreme


def test_long_transaction(main_process: StartMain) -> None:
    """Created, delayed and late by the moment of the enqueue, not of the transaction's start."""
    main = main_process(env={"WORKPOOL_LOG_LEVEL": "INFO"})
    main.wait_for("lead_taken", PATIENCE)
    with transaction.atomic():
        begun = database_clock()
        Work.objects.count()
        time.sleep(0.6)
        called = database_clock()
        work_id = Workpool().using(delay=timedelta(seconds=0.2)).enqueue(note, "x")
        time.sleep(0.5)
    committed = database_clock()
    (ended,) = results([work_id])
    wait_for_quiet()
    assert ended.started is not None
    assert ended.created.timestamp() - begun >= 0.6 and -0.01 <= ended.created.timestamp() - called < 0.5
    assert ended.started.timestamp() >= committed - 0.1 and ended.created <= ended.started
    main.wait_for("event=completed", PATIENCE)
    lag = re.search(r"event=started .* lag_ms=(\d+)", main.output())
    assert lag is not None
    assert int(lag[1]) == pytest.approx((ended.started.timestamp() - called - 0.2) * 1000, abs=150)


@POSTGRESQL
@pytest.mark.django_db
@pytest.mark.parametrize("wrong", [timedelta(hours=1), timedelta(minutes=-10)])
def test_wrong_clock_of_the_client(wrong: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delay is counted from now by the database's clock."""
    right, right_now = time.time, django_timezone.now
    monkeypatch.setattr(time, "time", lambda: right() + wrong.total_seconds())
    monkeypatch.setattr(django_timezone, "now", lambda: right_now() + wrong)
    Workpool().using(delay=timedelta(seconds=30)).enqueue(note, "x")
    segment, created = PendingStart.objects.get().segment, Work.objects.get().created.timestamp()
    assert abs(created - database_clock()) < 5
    assert 30 <= segment / SECOND - created <= 30.2


def test_clocks_in_the_code() -> None:
    """The host's clock is read where the database's is the same, for ids and health files, to tell an absurd time from a real one, to
    refuse cron expressions that never come, for what tests and receivers of a framework are shown, and for what an operator filters by and
    searches; nothing is decided by it."""
    root = Path(django_workpool.__file__).parent
    clocks = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("timezone", "now"), ("date", "today")}
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in clocks:
                found.add(str(path.relative_to(root)))
    shown = {"backend/doubles.py", "backend/results.py", "backend/runs.py", "admin/base.py", "admin/filters.py"}
    assert found == {"database/sqlite.py", "ids.py", "options.py", "runner/probe.py", "periodic.py", "ticks.py"} | shown
