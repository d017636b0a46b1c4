"""The site, the browser and its console: what the other tests rely on, and who gets in."""

import pytest

from .chrome import Browser
from .common import account

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("transactional_db")]


def test_what_a_page_does_wrong_is_seen_in_the_console(browser: Browser) -> None:
    browser.open("/hostile/")
    errors = browser.wait(lambda: sorted(browser.errors()), "errors")
    assert any("Content Security Policy" in one for one in errors), errors
    assert any("/missing.png" in one and "404" in one for one in errors), errors
    # The policy has kept the script from running.
    assert browser.script("return window.__xss") is None


def test_staff_signs_in_and_sees_the_pages_of_the_pools(browser: Browser) -> None:
    account("operator", superuser=True)
    browser.open("/admin/")
    browser.fill("username", "operator")
    browser.fill("password", "operator")
    browser.click("Log in")
    assert "work pool" in browser.text().lower()
    browser.click("Finished work")
    assert "finished work" in browser.text("h1").lower()
