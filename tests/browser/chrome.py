"""A headless Chromium, and what tests do with a page. Nothing is downloaded: browser and driver are those of the system."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.sessions.backends.db import SessionStore
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, TimeoutException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

#: Names of the browser and of its driver, as distributions have them.
BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver", "chromium.chromedriver")
#: The machine may be busy: a wait is long.
PATIENCE = 30
WIDE, PHONE = (1280, 900), (390, 844)

#: Finds what can be clicked by its text, as the page has it before styles change its case.
NAMED = """
const text = one => (one.tagName === "INPUT" ? one.value : one.textContent).replace(/\\s+/g, " ").trim();
return Array.from(document.querySelector(arguments[1]).querySelectorAll("a, button, summary, input[type=submit], input[type=button]"))
    .filter(one => text(one) === arguments[0] && one.checkVisibility());
"""


class NoBrowser(Exception):
    """There is none on this machine."""


def programs() -> tuple[str, str]:
    """Return the paths of the browser and its driver.

    Raises:
        NoBrowser: one of them is missing; the text says what to install.
    """
    found = [next(filter(None, map(shutil.which, names)), None) for names in (BROWSERS, DRIVERS)]
    if found[0] is None or found[1] is None:
        raise NoBrowser("no Chromium with its driver is installed (Debian: chromium, chromium-driver)")
    return found[0], found[1]


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Run a headless Chromium.

    Raises:
        NoBrowser: there is none.
    """
    program, driver = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "headless=new",
        "disable-dev-shm-usage",
        "disable-gpu",
        "disable-background-networking",
        "force-device-scale-factor=1",
    ):
        options.add_argument(f"--{argument}")
    if os.geteuid() == 0:
        # Its sandbox does not work as root. The pages are our own.
        options.add_argument("--no-sandbox")
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        started.set_page_load_timeout(PATIENCE)
        yield started
    finally:
        started.quit()


class Browser:
    """A browser on one site."""

    def __init__(self, driver: webdriver.Chrome, site: str) -> None:
        self.driver = driver
        self.site = site

    def open(self, path: str) -> None:
        """Open a page of the site."""
        self.driver.get(self.site + path)

    def sign_in(self, user: AbstractBaseUser) -> None:
        """Let the browser be signed in as a user from its next request on."""
        session = SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.create()
        cookie = {"name": settings.SESSION_COOKIE_NAME, "value": session.session_key, "url": self.site, "httpOnly": True}
        self.driver.execute_cdp_cmd("Network.setCookie", cookie)

    def resize(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Let the page have a size in CSS pixels, and the user like it dark or not."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def reset(self) -> None:
        """Leave the site, and forget who is signed in and what the page looked like."""
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.resize(WIDE)

    # What the page shows --------------------------------------------------------------------------------------------------

    def find(self, css: str) -> WebElement:
        """Return the first element that is there, waiting for it."""
        return self.wait(lambda: self.driver.find_element(By.CSS_SELECTOR, css), css)

    def all(self, css: str) -> list[WebElement]:
        """Return the elements that are there now."""
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str = "body") -> str:
        """Return the visible text of an element, of the whole page unless told otherwise."""
        return str(self.wait(lambda: (self.driver.find_element(By.CSS_SELECTOR, css).text,), css)[0])

    def script(self, text: str, *arguments: object) -> Any:
        """Run JavaScript in the page and return what it returns."""
        return self.driver.execute_script(text, *arguments)

    def wait(self, condition: Callable[[], Any], what: str = "", seconds: float = PATIENCE) -> Any:
        """Wait until ``condition()`` is true and return what it has returned; fail with the page's text if it is not in time."""
        ignored = (NoSuchElementException, StaleElementReferenceException)
        waiting = WebDriverWait(self.driver, seconds, poll_frequency=0.05, ignored_exceptions=ignored)
        try:
            return waiting.until(lambda driver: condition())
        except TimeoutException:
            pytest.fail(f"not true within {seconds} s: {what or condition}\n{self.driver.current_url}\n{self.text()[:3000]}")

    def wait_for_text(self, text: str, css: str = "body", seconds: float = PATIENCE) -> None:
        """Wait until an element, the page unless told otherwise, shows a text."""
        self.wait(lambda: text in self.text(css), f"{text!r} in {css}", seconds)

    # What a user does ------------------------------------------------------------------------------------------------------

    def fill(self, name: str, text: str) -> None:
        """Type into the field of a form that has this name, instead of what is in it."""
        field = self.find(f"[name='{name}']")
        field.clear()
        field.send_keys(text)

    def choose(self, name: str, shown: str) -> None:
        """Choose what a list of this name shows."""
        Select(self.find(f"select[name='{name}']")).select_by_visible_text(shown)

    def click(self, element: WebElement | str) -> None:
        """Click an element, or the first link or button that has this text, and return when the page that follows is there."""
        target = self.named(element) if isinstance(element, str) else element
        before = self.find("html")
        target.click()
        self.wait(lambda: self._gone(before) and self.script("return document.readyState") == "complete", f"a page after {element}")

    def act_on(self, ids: Iterable[object], act: str) -> None:
        """Choose rows of the admin's list, and let it do something with them."""
        for one in ids:
            self.find(f"input.action-select[value='{one}']").click()
        self.choose("action", act)
        self.click(self.find("button[name='index']"))

    def named(self, text: str, inside: str = "body") -> WebElement:
        """Return the first visible link or button that has this text, in an element or anywhere, waiting for it."""
        return self.wait(lambda: next(iter(self.all_named(text, inside)), None), f"a link or button {text!r} in {inside}")

    def all_named(self, text: str, inside: str = "body") -> list[WebElement]:
        """Return the visible links and buttons that have this text now."""
        return list(self.script(NAMED, " ".join(text.split()), inside))

    @staticmethod
    def _gone(element: WebElement) -> bool:
        try:
            element.is_enabled()
        except (StaleElementReferenceException, NoSuchElementException):
            return True
        except WebDriverException as error:
            # While a page is being replaced, the driver tells it so.
            return "does not belong to the document" in str(error)
        return False

    # What went wrong -------------------------------------------------------------------------------------------------------

    def errors(self) -> list[str]:
        """Return, once, what the console has told as errors: exceptions, what could not be loaded, what the policy forbids."""
        return [str(one["message"]) for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]
