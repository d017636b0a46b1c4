"""Works in the admin: found in lists, read on their pages, canceled, and let run again in real processes."""

import uuid
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry

from django_workpool import RetryBehavior, Workpool
from django_workpool.models import Archive, Work

from ..live import result, results, texts
from ..works.tasks import fail, fail_once, note
from .chrome import Browser
from .common import later

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("transactional_db")]

WORKS, FINISHED = "/admin/workpool/work/", "/admin/workpool/archive/"
FILTERS = "#changelist-filter"


def shown(browser: Browser) -> set[str]:
    """Return the names of the works in the list."""
    return set(browser.script("return Array.from(document.querySelectorAll('#result_list tbody th'), cell => cell.innerText.trim())"))


def logged(work_id: uuid.UUID) -> list[tuple[str, str]]:
    """Return who has done what with a work, as the admin's log has it."""
    entries = LogEntry.objects.filter(object_id=str(work_id)).order_by("id")
    return [(entry.user.get_username(), entry.get_change_message()) for entry in entries]


@pytest.fixture
def waiting() -> dict[str, uuid.UUID]:
    """Enqueue works that wait, in two pools."""
    return {name: later(name, pool) for name, pool in (("apples", "default"), ("pears", "default"), ("plums", "imports"))}


@pytest.mark.slow
def test_the_list_is_narrowed_by_pool_and_state_and_searched_by_id_and_name(operator: Browser, waiting: dict[str, uuid.UUID]) -> None:
    operator.open(WORKS)
    assert shown(operator) >= set(waiting)
    operator.click(operator.named("imports", FILTERS))
    assert shown(operator) == {"plums"}
    operator.click(operator.named("later", FILTERS))
    assert shown(operator) == {"plums"}
    operator.click(operator.named("running", FILTERS))
    assert shown(operator) == set()
    operator.open(WORKS)
    operator.fill("q", "pear")
    operator.click("Search")
    assert shown(operator) == {"pears"}
    operator.fill("q", str(waiting["apples"]))
    operator.click("Search")
    assert shown(operator) == {"apples"}
    operator.click("apples")
    assert str(waiting["apples"]) in operator.text("#content")


def test_the_page_of_a_failed_work_has_its_traceback_and_its_time_line(operator: Browser) -> None:
    twice = RetryBehavior(max_attempts=2, initial_backoff=timedelta(milliseconds=10))
    work_id = Workpool().using(name="breaks twice", retry=twice).enqueue(fail, "out of flour")
    assert result(work_id).attempts == 2
    operator.open(FINISHED)
    operator.click(operator.named("failed", FILTERS))
    operator.click("breaks twice")
    page = operator.text("#content")
    assert "out of flour" in page and str(work_id) in page
    told = operator.text("ol.workpool-timeline")
    places = [
        told.index(one) for one in ("created", "attempt 1 started", "attempt 1 failed", "attempt 2 started", "attempt 2 failed", "finished")
    ]
    assert places == sorted(places)
    assert told.count("started") == 2
    # The last attempt comes first. A page is not full of tracebacks: each is unfolded by a click.
    first = operator.all("details")[0]
    assert "Traceback" not in operator.text("#content")
    first.find_element("css selector", "summary").click()
    operator.wait_for_text("Traceback (most recent call last)", "details")
    assert "raise ValueError(text)" in operator.text("details")


def test_a_waiting_work_is_canceled_from_its_page(operator: Browser) -> None:
    work_id = later("to be canceled alone")
    operator.open(f"{WORKS}{work_id}/change/")
    operator.click(operator.named("Cancel", "#content"))
    assert "Asked to cancel" in operator.text(".messagelist")
    assert result(work_id).kind == "canceled"
    assert logged(work_id) == [("operator", "Asked to cancel")]
    # The page of a work that has ended is that of the finished work.
    operator.open(f"{WORKS}{work_id}/change/")
    assert operator.driver.current_url == f"{operator.site}{FINISHED}{work_id}/change/"
    assert "canceled" in operator.text("#content")


def test_a_work_of_tomorrow_is_run_now(operator: Browser) -> None:
    work_id = later("long before its time")
    operator.open(f"{WORKS}{work_id}/change/")
    operator.click("Run now")
    assert "Due now" in operator.text(".messagelist")
    assert result(work_id).kind == "success"
    assert logged(work_id) == [("operator", "Due now")]


def test_works_are_canceled_from_the_list(operator: Browser) -> None:
    several = {name: later(name) for name in ("first of three", "second of three", "third of three")}
    chosen = [several["first of three"], several["third of three"]]
    operator.open(f"{WORKS}?q=of+three")
    operator.act_on(chosen, "Cancel")
    assert "Asked to cancel: 2." in operator.text(".messagelist")
    assert {row.kind for row in results(chosen)} == {"canceled"}
    assert [logged(one) for one in chosen] == [[("operator", "Asked to cancel")]] * 2
    assert Work.objects.filter(pk=several["second of three"]).exists() and logged(several["second of three"]) == []


@pytest.mark.parametrize("place", ["page", "list"])
def test_a_failed_work_is_let_run_again_and_succeeds(operator: Browser, place: str) -> None:
    work_id = Workpool().using(name=f"once more from its {place}", retry=False).enqueue(fail_once, place)
    assert result(work_id).kind == "failed"
    label = "Let run again"
    if place == "page":
        operator.open(f"{FINISHED}{work_id}/change/")
        operator.click(label)
    else:
        operator.open(f"{FINISHED}?q={work_id}")
        operator.act_on([work_id], label)
    assert "Enqueued again" in operator.text(".messagelist")
    assert result(work_id).kind == "success"
    assert texts("attempt", place) == ["", ""]
    assert logged(work_id) == [("operator", "Enqueued again")]
    operator.open(f"{FINISHED}{work_id}/change/")
    assert "success" in operator.text("#content") and not operator.all_named(label)


def test_a_work_that_has_succeeded_is_not_let_run_again(operator: Browser) -> None:
    work_id = Workpool().enqueue(note, "only once")
    assert result(work_id).kind == "success"
    operator.open(f"{FINISHED}?q={work_id}")
    operator.act_on([work_id], "Let run again")
    assert "Enqueued again: 0." in operator.text(".messagelist")
    assert Archive.objects.filter(pk=work_id).exists() and logged(work_id) == []
