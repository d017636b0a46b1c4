"""Who sees and does what: staff who may only look are offered nothing to do, staff who may not look see nothing."""

import pytest
from django.contrib.admin.models import LogEntry

from django_workpool import Workpool
from django_workpool.models import Archive, Globals, Work

from ..live import result
from ..works.tasks import fail
from .chrome import Browser
from .common import account, later

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("transactional_db")]

#: What any page of the pools offers to do.
ACTS = ("Cancel", "Let run again", "Run now", "Pause", "Go on", "Wake the main loop", "Cancel all works",
        "Change limit or level of events", "Save", "Delete")  # fmt: skip
DOES = "select[name='action'], #content form[method='post'] [type='submit']"


def assert_offers_nothing(browser: Browser) -> None:
    """Assert that the page that is open has no button and no action that changes anything."""
    assert [one.get_attribute("outerHTML") for one in browser.all(DOES)] == []
    assert [name for name in ACTS if browser.all_named(name, "#content")] == []


@pytest.mark.slow
def test_who_may_only_view_is_offered_nothing_to_do(browser: Browser) -> None:
    waiting, failed = later("looked at"), Workpool().enqueue(fail)
    assert result(failed).kind == "failed"
    browser.sign_in(account("viewer", "view_work", "view_archive", "view_globals", "view_worker", "view_attempt"))
    for page in ("work/", f"work/{waiting}/change/", "archive/", f"archive/{failed}/change/", "globals/", "globals/default/change/"):
        browser.open(f"/admin/workpool/{page}")
        assert browser.errors() == []
        assert_offers_nothing(browser)
    assert Work.objects.filter(pk=waiting).exists() and Archive.objects.filter(pk=failed).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codename", "offered"),
    [
        ("cancel_work", {"Cancel", "Cancel all works"}),
        ("retry_work", {"Let run again", "Run now"}),
        ("configure_pool", {"Pause", "Wake the main loop", "Change limit or level of events"}),
    ],
)
def test_a_permission_offers_what_it_is_for(browser: Browser, codename: str, offered: set[str]) -> None:
    waiting, failed = later(f"for {codename}"), Workpool().enqueue(fail)
    assert result(failed).kind == "failed"
    browser.sign_in(account(f"with {codename}", "view_work", "view_archive", "view_globals", codename))
    found = set()
    for page in (f"work/{waiting}/change/", f"archive/{failed}/change/", "globals/default/change/"):
        browser.open(f"/admin/workpool/{page}")
        found |= {name for name in ACTS if browser.all_named(name, "#content")}
    assert found == offered


@pytest.mark.parametrize("page", ["work/", "archive/", "globals/", "worker/", "attempt/", "globals/dashboard/"])
def test_staff_without_the_permission_to_view_is_refused(browser: Browser, page: str) -> None:
    browser.sign_in(account("stranger"))
    browser.open(f"/admin/workpool/{page}")
    assert "403 Forbidden" in browser.text("h1")
    errors = browser.errors()
    assert len(errors) == 1 and "403" in errors[0], errors


def test_who_lost_a_permission_meanwhile_is_refused(browser: Browser) -> None:
    user = account("demoted", "view_globals", "configure_pool")
    browser.sign_in(user)
    browser.open("/admin/workpool/globals/default/change/")
    user.user_permissions.set([])
    limit = Globals.objects.get(pool="default").max_parallelism
    browser.click("Pause")
    assert "403 Forbidden" in browser.text("h1")
    assert ["403" in one for one in browser.errors()] == [True]
    assert Globals.objects.get(pool="default").max_parallelism == limit > 0
    assert not LogEntry.objects.filter(user=user).exists()


def test_whoever_is_not_signed_in_is_asked_to(browser: Browser) -> None:
    browser.open("/admin/workpool/work/")
    assert browser.find("input[name='password']").is_displayed()
