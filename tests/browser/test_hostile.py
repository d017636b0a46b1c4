"""Texts of an attacker, in all that a work carries: each page shows them as text, and none of them runs."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.utils.safestring import mark_safe

from django_workpool import Workpool, periodic
from django_workpool.models import Archive, Attempt

from ..live import Live, result
from ..works.tasks import ended, fail, note
from . import payloads
from .chrome import Browser
from .common import assert_harmless
from .crawl import walk
from .settings import WORKPOOLS

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("transactional_db")]


@pytest.fixture
def hostile(live: Live, settings: object) -> Archive:
    """Let texts of an attacker come to all tables by the ways that an attacker has; return a failed work."""
    settings.WORKPOOLS = WORKPOOLS  # type: ignore[attr-defined]
    text = mark_safe(payloads.ALL)
    pool = Workpool(payloads.POOL)
    named = pool.using(name=text, on_complete=ended, on_complete_context={text: [text]})
    failed, noted = named.enqueue(fail, text), named.enqueue(note, key=text)
    with pool.batch(name=text) as batch:
        batch.using(name=text).enqueue(fail, text)
    pool.using(name=text, delay=timedelta(days=1), unique=text).enqueue(note, key=text)
    periodic.schedule(text, note, cron="0 0 29 2 *", kwargs={"key": text}, pool=payloads.POOL)
    result(noted)
    return result(failed)


@pytest.fixture(autouse=True)
def nothing_scheduled(live: Live) -> Iterator[None]:
    yield
    periodic.unschedule(payloads.ALL)


@pytest.mark.slow
def test_no_page_runs_what_an_attacker_wrote(operator: Browser, hostile: Archive) -> None:
    opened = []
    for address in walk(operator, "/admin/", "/admin/workpool/"):
        assert_harmless(operator, address)
        opened.append(address)
    assert len(opened) > 25
    operator.open("/admin/")
    assert_harmless(operator, "/admin/")


def test_what_an_attacker_wrote_is_shown_as_text(operator: Browser, hostile: Archive) -> None:
    assert Attempt.objects.filter(work_id=hostile.pk).count() == 1
    operator.open("/admin/workpool/archive/")
    shown = " ".join(operator.text().split())
    assert payloads.IMAGE in shown and payloads.TEMPLATE in shown and payloads.POOL in shown
    operator.open(f"/admin/workpool/archive/{hostile.pk}/change/")
    shown = " ".join(operator.text().split())
    for text in (payloads.IMAGE, payloads.SCRIPT, payloads.ATTRIBUTE, payloads.TEMPLATE, payloads.POOL):
        assert " ".join(text.split()) in shown


def test_the_dashboard_shows_what_an_attacker_wrote_as_text(operator: Browser, hostile: Archive) -> None:
    operator.open("/admin/workpool/globals/dashboard/")
    operator.wait_for_text(payloads.POOL, "#wp-pools")
    operator.choose("pool", payloads.POOL)
    operator.wait_for_text(payloads.IMAGE, "#wp-waiting")
    operator.wait_for_text(payloads.POOL, "#wp-charts")
    assert_harmless(operator, "dashboard")


@pytest.mark.slow
def test_what_an_attacker_wrote_is_harmless_in_forms_and_in_the_log(operator: Browser, hostile: Archive) -> None:
    """A periodic work is what people edit: its name goes through form, confirmation, message and log."""
    operator.open("/admin/workpool/periodic/")
    operator.click(payloads.ALL)
    operator.click("Save")
    assert_harmless(operator, "saved")
    assert payloads.IMAGE in operator.text(".messagelist")
    operator.click(payloads.ALL)
    operator.click("Delete")
    assert payloads.IMAGE in operator.text()
    assert_harmless(operator, "confirmation")
    assert LogEntry.objects.filter(object_repr__contains="onerror").count() == 1
    operator.open("/admin/")
    assert payloads.IMAGE in operator.text("#recent-actions-module")
    assert_harmless(operator, "index")
