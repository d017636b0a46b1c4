"""What Django projects are used to: members of choices as names and numbers, times that have come, commands in a TestCase."""

import enum
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, models

from django_workpool import Workpool
from django_workpool.database import database
from django_workpool.models import PendingStart, Work
from django_workpool.segments import SEGMENT_MS, floor_segment
from django_workpool.signals import work_enqueued
from django_workpool.testing import run_work

from . import helped

MS = timedelta(milliseconds=1)


class Choice(models.TextChoices):
    DEFAULT = "default", "The usual one"


class Mixed(str, enum.Enum):  # noqa: UP042 - its text is not its value, other than that of a StrEnum
    DEFAULT = "default"


class Urgency(models.IntegerChoices):
    HIGH = 50, "High"


class Plain(enum.IntEnum):
    HIGH = 50


@pytest.mark.django_db
@pytest.mark.parametrize("name", [Choice.DEFAULT, Mixed.DEFAULT], ids=["choice", "mixed"])
def test_a_pool_is_named_by_a_member_of_choices(name: Any, caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    """Rows, signals and events have the plain text."""
    settings.WORKPOOLS = settings.WORKPOOLS | {"default": settings.WORKPOOLS["default"] | {"LOG_LEVEL": "DEBUG"}}
    told: list[Any] = []

    def hear(pool: str, **_: Any) -> None:
        told.append(pool)

    work_enqueued.connect(hear)
    try:
        with caplog.at_level(logging.DEBUG, "django_workpool.events"):
            pool = Workpool(name)
            pool.enqueue(helped.add, 1)
            connection.run_on_commit, hooks = [], connection.run_on_commit
            for _, hook, _ in hooks:
                hook()
    finally:
        work_enqueued.disconnect(hear)
    assert (type(pool.name), pool.name, type(pool.using(priority=1).name)) == (str, "default", str)
    assert [(type(one), one) for one in told] == [(str, "default")]
    assert [record.getMessage().split()[1] for record in caplog.records if "event=enqueued" in record.getMessage()] == ["pool=default"]
    assert Work.objects.get().pool == "default"


@pytest.mark.django_db
@pytest.mark.parametrize("member", [Urgency.HIGH, Plain.HIGH], ids=["choice", "plain"])
def test_a_priority_is_a_member_of_choices(member: Any) -> None:
    options = Workpool().using(priority=member)
    options.enqueue(helped.add, 1)
    assert type(options._options.priority) is int
    assert (Work.objects.get().priority, PendingStart.objects.get().priority) == (50, 50)


COME: dict[str, Callable[[], dict[str, Any]]] = {
    "no delay": lambda: {"delay": timedelta(0)},
    "now": lambda: {"run_after": datetime.now(UTC)},
    "just now": lambda: {"run_after": datetime.now(UTC) - timedelta(milliseconds=1)},
}


@pytest.mark.django_db
@pytest.mark.parametrize("when", COME)
def test_what_has_come_is_due_at_once(when: str) -> None:
    """Not with the next segment only: a test that runs what is due would not run it."""
    for _ in range(3):
        work_id = Workpool().using(**COME[when]()).enqueue(helped.add, 1)
        latest = database("default").segment()
        start, created = PendingStart.objects.get(), Work.objects.get(id=work_id).created
        assert floor_segment(created.timestamp() * 1000) <= start.segment <= latest
        assert [one.kind for one in run_work()] == ["success"]


@pytest.mark.django_db
def test_what_is_still_to_come_does_not_start_early() -> None:
    moment = datetime.now(UTC) + timedelta(seconds=20)
    Workpool().using(run_after=moment).enqueue(helped.add, 1)
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) / MS
    segment = PendingStart.objects.get().segment
    assert 0 <= segment * SEGMENT_MS - ms < SEGMENT_MS
    assert run_work() == []


@pytest.mark.django_db
def test_a_process_does_not_begin_inside_a_transaction() -> None:
    """It would wait for ever for works that it cannot see, and a TestCase would lose its connection."""
    Workpool().enqueue(helped.add, 1)
    with pytest.raises(CommandError, match=r"run_work\(\)"):
        call_command("workpool_main", drain=True)
    assert [one.kind for one in run_work()] == ["success"]
