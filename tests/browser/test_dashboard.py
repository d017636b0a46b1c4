"""The dashboard in a browser: it shows what the rows say while works run, without a reload, in each light and width."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.models import Sum

from django_workpool import Workpool, call
from django_workpool.models import Archive, Tally

from ..live import result, results
from ..works.tasks import fail, hold, note
from .chrome import PHONE, WIDE, Browser
from .common import later

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("transactional_db")]

PAGE = "/admin/workpool/globals/dashboard/"
LIVE = "#workpool:is([data-state='live'], [data-state='unwell'])"
CHARTS = {"throughput", "failures", "lag", "waiting", "running"}
#: Counts the pixels of a chart that have nearly the colour of a variable of the page.
PIXELS = """
const root = document.getElementById("workpool"), probe = document.createElement("span");
probe.style.color = `var(${arguments[1]})`;
root.append(probe);
const wanted = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
probe.remove();
const canvas = root.querySelector(`[data-chart="${arguments[0]}"] canvas`);
const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
let found = 0;
for (let at = 0; at < data.length; at += 4)
    if (data[at + 3] > 200 && wanted.every((one, part) => Math.abs(one - data[at + part]) < 12)) found += 1;
return found;
"""
BRIGHTNESS = "return Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number))"
#: How wide the page is, and how wide the window.
WIDTHS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture
def board(operator: Browser) -> Browser:
    """Return the browser with the dashboard, which has got its figures."""
    operator.open(PAGE)
    operator.find(LIVE)
    return operator


def figure(browser: Browser, pool: str, field: str) -> str:
    """Return what a pool's row shows in a column."""
    return browser.text(f"#wp-pools tr[data-pool='{pool}'] [data-field='{field}']")


@pytest.fixture
def an_hour(transactional_db: None) -> Iterator[None]:
    """Let something have happened in each minute of the last hour."""
    now = int(time.time() // 60)
    rows = [
        Tally(pool="imports", minute=now - ago, started=60, succeeded=50 + ago % 7, failed=ago % 5, failed_attempts=9, retried=4,
              canceled=1, lag_100ms=40, lag_200ms=20, waiting=ago, running=3)
        for ago in range(1, 60)
    ]  # fmt: skip
    Tally.objects.bulk_create(rows)
    yield
    Tally.objects.filter(pool="imports", minute__lt=now, started=60).delete()


@pytest.mark.slow
def test_numbers_change_while_works_run_without_a_reload(board: Browser, tmp_path: Path) -> None:
    board.script("window.mark = document.getElementById('wp-tiles'); window.mark.dataset.mark = 'first'")
    ids = Workpool().enqueue_many(hold, [call(str(tmp_path), str(number)) for number in range(3)])
    board.wait(lambda: figure(board, "default", "running").startswith("3 of"), "3 run")
    board.wait(lambda: board.text("[data-field='running']") == "3", "3 run in all")
    (tmp_path / "go").touch()
    ended = [*ids, *Workpool().enqueue_many(note, [call(f"board {number}") for number in range(40)])]
    assert {row.kind for row in results(ended)} == {"success"}
    board.wait(lambda: figure(board, "default", "running").startswith("0 of"), "none runs")
    assert board.script("return document.getElementById('wp-tiles') === window.mark && window.mark.dataset.mark") == "first"
    # One document all the time.
    assert board.script("return performance.getEntriesByType('navigation').length") == 1


@pytest.mark.slow
def test_totals_are_the_number_of_rows(board: Browser) -> None:
    pool = Workpool()
    results([*pool.enqueue_many(note, [call(f"total {number}") for number in range(25)]), *pool.enqueue_many(fail, [call()] * 7)])
    canceled = later("never")
    pool.cancel(canceled)
    results([canceled])
    rows = Archive.objects.filter(pool="default").exclude(fn_type="callback")
    # What was let run again has left the archive, but was counted.
    again = Tally.objects.filter(pool="default").aggregate(again=Sum("requeued"))["again"]
    number = {kind: rows.filter(kind=kind).count() for kind in ("success", "failed", "canceled")}
    wanted = [str(number["success"]), str(number["failed"] + again), str(number["canceled"])]
    fields = ("total-succeeded", "total-failed", "total-canceled")
    board.wait(lambda: [figure(board, "default", field) for field in fields] == wanted, f"{wanted}")
    # All of it was within the hour.
    fields = ("window-succeeded", "window-failed", "window-canceled")
    board.wait(lambda: [figure(board, "default", field) for field in fields] == wanted, f"{wanted} in the window")


def assert_drawn(browser: Browser) -> None:
    """Assert that each chart has a line in the colour that the page has for its first one."""
    for chart in CHARTS:
        color = "--wp-2" if chart == "failures" else "--wp-1"
        browser.wait(lambda chart=chart, color=color: browser.script(PIXELS, chart, color) > 100, f"a line of {chart}")


def test_charts_are_drawn_in_the_light_and_in_the_dark(operator: Browser, an_hour: None) -> None:
    operator.resize(WIDE, dark=False)
    operator.open(f"{PAGE}?pool=imports")
    operator.find(LIVE)
    assert {chart.get_attribute("data-chart") for chart in operator.all("[data-chart]")} == CHARTS
    assert_drawn(operator)
    assert operator.script(BRIGHTNESS) > 200
    operator.resize(WIDE, dark=True)
    assert operator.wait(lambda: operator.script(BRIGHTNESS) < 60, "a dark page")
    # They are drawn again, in the colours that stand out there.
    assert_drawn(operator)


def test_the_longer_window_and_one_pool_are_chosen_and_kept_in_the_address(board: Browser, an_hour: None) -> None:
    waits = later("waits for tomorrow", "imports")
    board.choose("pool", "imports")
    board.wait(lambda: board.all("#wp-pools tr[data-pool='imports']") and not board.all("#wp-pools tr[data-pool='default']"), "one pool")
    board.wait_for_text("waits for tomorrow", "#wp-waiting")
    board.driver.refresh()
    board.find(LIVE)
    assert "pool=imports" in board.driver.current_url
    board.wait_for_text("waits for tomorrow", "#wp-waiting")
    board.click(board.named("waits for tomorrow", "#wp-waiting"))
    assert board.driver.current_url.startswith(f"{board.site}/admin/workpool/work/{waits}/")
    Workpool("imports").cancel(waits)
    results([waits])


@pytest.mark.slow
def test_a_pool_that_is_paused_is_told_to_be(board: Browser) -> None:
    pool = Workpool("imports")
    pool.pause()
    held_up = pool.enqueue(note, "held up")
    board.wait(lambda: "Paused" in figure(board, "imports", "state"), "paused")
    pool.resume()
    board.wait(lambda: "Paused" not in figure(board, "imports", "state"), "not paused any more")
    assert result(held_up).kind == "success"


@pytest.mark.parametrize("page", ["globals/dashboard/", "", "work/", "archive/", "globals/", "globals/default/change/"])
def test_no_page_scrolls_sideways_on_a_phone(operator: Browser, an_hour: None, page: str) -> None:
    results(Workpool().enqueue_many(note, [call(f"phone {number}") for number in range(3)]))
    operator.resize(PHONE)
    operator.open(f"/admin/workpool/{page}")
    if page == "globals/dashboard/":
        operator.find(LIVE)
    needed, wide = operator.script(WIDTHS)
    assert needed <= wide == PHONE[0]
