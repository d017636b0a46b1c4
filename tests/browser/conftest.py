"""What these tests share: one browser, one server with the pages, and two processes that work."""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver import Chrome

from ..conftest import MainProcess, StartMain
from ..live import PATIENCE, Live, live_main, transactional_db
from .chrome import Browser, NoBrowser, chromium
from .common import account

__all__ = ["transactional_db"]

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.browser.settings"}


def start_server(start: StartMain, env: dict[str, str]) -> MainProcess:
    """Start a server of the pages, and wait until it answers."""
    server = start("--noreload", "--insecure", "127.0.0.1:0", command="runserver", env=env)
    server.wait_for("Quit the server", PATIENCE)
    return server


def address(server: MainProcess) -> str:
    """Return where a started server is."""
    found = re.search(r"http://127\.0\.0\.1:\d+", server.output())
    assert found, server.output()
    return found[0]


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    """Run the browser; without one the tests are skipped, and fail where all is required."""
    try:
        with chromium() as started:
            yield started
    except NoBrowser as error:
        (pytest.fail if os.environ.get("REQUIRE_ALL") == "1" else pytest.skip)(str(error))


@pytest.fixture(scope="package")
def live(chrome: Chrome, django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run two ``workpool_main`` and a server for these tests; the server is started last."""
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), env=SETTINGS) as running:
        second = running.start(env=SETTINGS)
        start_server(running.start, SETTINGS)
        second.wait_for("process_started", PATIENCE)
        yield running


@pytest.fixture(scope="package")
def site(live: Live) -> str:
    """Return where the pages are."""
    return address(live.start.started[-1])


@pytest.fixture
def browser(chrome: Chrome, site: str) -> Iterator[Browser]:
    """Return the browser, signed in as nobody; in the end its console must have told no error, and nothing hostile must have run."""
    browser = Browser(chrome, site)
    browser.reset()
    browser.errors()
    yield browser
    marked = browser.script("return window.__xss || ''")
    browser.reset()
    assert browser.errors() == []
    assert marked == ""


@pytest.fixture
def operator(browser: Browser) -> Browser:
    """Return the browser, signed in as somebody who may do everything."""
    browser.sign_in(account("operator", superuser=True))
    return browser
