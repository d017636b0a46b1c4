"""What the users of a site see: the bar of a work moves while it runs, and tells how it has ended, without a reload."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from django_workpool import Workpool

from ..live import result, wait_until
from ..works.progress import come_far
from ..works.tasks import fail, hold
from .chrome import Browser
from .common import assert_harmless, later

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("transactional_db")]

BAR = "workpool-progress"


def bar(browser: Browser) -> dict[str, Any]:
    """Return what the bar of the page shows."""
    return browser.script(
        "const one = document.querySelector(arguments[0]), inner = one.querySelector('progress');"
        "return {state: one.dataset.state, value: inner.position, text: one.querySelector('[role=status]').textContent}",
        BAR,
    )


def show(browser: Browser, *works: uuid.UUID, **query: str) -> None:
    """Open a page with the bars of works."""
    asked = [*(f"work={one}" for one in works), *(f"{name}={value}" for name, value in query.items())]
    browser.open(f"/site/works?{'&'.join(asked)}")
    browser.find(BAR)


@pytest.mark.parametrize("stream", ["yes", "no"])
def test_the_bar_moves_from_waiting_to_finished(browser: Browser, tmp_path: Path, stream: str) -> None:
    half = Workpool().enqueue(come_far, str(tmp_path), "half", 2, 4)
    wait_until((tmp_path / "begun-half").exists)
    show(browser, half, stream=stream)
    browser.script("window.mark = document.querySelector(arguments[0])", BAR)
    browser.wait(lambda: bar(browser)["value"] == 0.5, "half of it")
    assert bar(browser) == {"state": "running", "value": 0.5, "text": "running"}
    assert "50 %" in browser.text(BAR)
    (tmp_path / "go").touch()
    browser.wait(lambda: bar(browser)["state"] == "success", "its end")
    assert bar(browser) == {"state": "success", "value": 1.0, "text": "finished"}
    assert browser.script("return window.mark === document.querySelector(arguments[0])", BAR)
    assert result(half).kind == "success"


def test_a_bar_without_figures_runs_and_ends(browser: Browser, tmp_path: Path) -> None:
    work = Workpool().enqueue(hold, str(tmp_path), "plain")
    show(browser, work)
    browser.wait(lambda: bar(browser)["state"] == "running", "running")
    # Nobody knows how far it is: the browser shows that by a bar of its own kind.
    assert bar(browser)["value"] == -1
    (tmp_path / "go").touch()
    browser.wait(lambda: bar(browser)["state"] == "success", "its end")
    assert bar(browser)["value"] == 1


def test_what_fails_and_what_is_canceled_is_told(browser: Browser) -> None:
    failed, canceled = Workpool().enqueue(fail, "nobody must read this"), later("of a user who changes his mind")
    show(browser, failed)
    browser.wait(lambda: bar(browser) == {"state": "failed", "value": 0, "text": "failed"}, "failed")
    assert "nobody must read this" not in browser.driver.page_source
    show(browser, canceled)
    browser.wait(lambda: bar(browser)["text"] == "waiting", "waiting")
    assert Workpool().cancel(canceled)
    browser.wait(lambda: bar(browser) == {"state": "canceled", "value": 0, "text": "canceled"}, "canceled")


@pytest.mark.slow
def test_many_bars_of_a_page_all_come_to_their_end(browser: Browser, tmp_path: Path) -> None:
    """More than the connections that a browser has to a site, each of which a stream would hold."""
    works = [Workpool().enqueue(come_far, str(tmp_path), str(number), number, 10) for number in range(8)]
    show(browser, *works, stream="yes")
    browser.wait(lambda: {one.get_attribute("data-state") for one in browser.all(BAR)} == {"running"}, "all run")
    (tmp_path / "go").touch()
    browser.wait(lambda: {one.get_attribute("data-state") for one in browser.all(BAR)} == {"success"}, "all have ended")


def test_a_label_is_text(browser: Browser) -> None:
    work = later("labelled")
    show(browser, work, label="%3Cimg%20src=x%20onerror=%22window.__xss=1%22%3E")
    browser.wait(lambda: bar(browser)["text"] == "waiting", "waiting")
    assert "<img src=x onerror=" in browser.text(BAR)
    assert_harmless(browser, "a bar")
    Workpool().cancel(work)
