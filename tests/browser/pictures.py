"""Takes the pictures: of each kind of page, of some also in the dark and on a phone."""

import base64
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.urls import NoReverseMatch, reverse

from django_workpool.models import Archive, Attempt, Batch, Globals, Periodic, RunningWork, Work, Worker

from ..conftest import StartMain
from . import load
from .chrome import PHONE, WIDE, Browser, chromium
from .common import account
from .conftest import address, start_server

#: Seconds of load before the first picture; it goes on while they are taken.
BEFORE = 20
#: Pictures of long lists are cut.
HEIGHT_MAX = 2400
#: Pages that have pictures in the dark and on a phone, too.
ALL_LOOKS = ("dashboard", "list-archive", "list-work", "detail-failed", "pool-images")
MODELS = (Work, Archive, Attempt, Batch, Globals, Periodic, RunningWork, Worker)


@contextmanager
def site(url: str) -> Iterator[str]:
    """Serve the pages of a new database, with two processes that work; yield the address."""
    call_command("migrate", verbosity=0)
    load.a_day_before()
    with tempfile.TemporaryDirectory(prefix="workpool-screens-") as logs:
        start, env = StartMain(url, Path(logs)), {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
        try:
            start(env=env)
            start("--processes", "2", "--pool", "images", "--pool", "reports", env=env)
            server = start_server(start, env)
            load.begin()
            load.run(threading.Event(), BEFORE)
            yield address(server)
        finally:
            for process in start.started:
                process.kill()


def take(browser: Browser, file: Path) -> None:
    """Save a picture of the whole page."""
    size = browser.script("return [document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], HEIGHT_MAX), "scale": 1}
    found = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    file.write_bytes(base64.b64decode(found["data"]))
    print(file, *(f"\n  console: {error}" for error in browser.errors()), flush=True)


def pages() -> dict[str, str]:
    """Return the addresses of what is shown, by the name of its picture."""
    found = {"index": "/admin/workpool/"}
    for model in MODELS:
        found[f"list-{model.__name__.lower()}"] = reverse(f"admin:workpool_{model.__name__.lower()}_changelist")
    rows = {
        "detail-failed": Archive.objects.filter(kind="failed", attempts__gt=1).first() or Archive.objects.filter(kind="failed").first(),
        "detail-success": Archive.objects.filter(kind="success").first(),
        "detail-canceled": Archive.objects.filter(kind="canceled").first(),
        "detail-callback-failed": Archive.objects.filter(callback="failed").first(),
        "detail-waiting": Work.objects.filter(pool="images").last(),
        "detail-retrying": Work.objects.filter(attempts__gt=0).first(),
        "detail-running": Work.objects.filter(pool="reports").first(),
        "detail-batch": Batch.objects.first(),
        "detail-periodic": Periodic.objects.first(),
        "pool-images": Globals.objects.get(pool="images"),
        "pool-stock": Globals.objects.get(pool="stock"),
        "worker": Worker.objects.first(),
    }
    for name, row in rows.items():
        if row is not None:
            found[name] = reverse(f"admin:workpool_{row._meta.model_name}_change", args=[row.pk])
    try:
        found["dashboard"] = reverse("admin:workpool_dashboard")
    except NoReverseMatch:
        print("there is no dashboard")
    return found


def take_all(url: str, folder: Path) -> None:
    """Take all pictures of the pages of a new database."""
    folder.mkdir(parents=True, exist_ok=True)
    with site(url) as where, chromium() as driver:
        stop = threading.Event()
        going_on = threading.Thread(target=load.run, args=(stop,))
        going_on.start()
        try:
            _take_each(Browser(driver, where), folder)
        finally:
            stop.set()
            going_on.join()


def _take_each(browser: Browser, folder: Path) -> None:
    browser.sign_in(account("operator", superuser=True))
    for name, path in pages().items():
        looks = [("", WIDE, False)]
        if name in ALL_LOOKS:
            looks += [("-dark", WIDE, True), ("-phone", PHONE, False)]
        for suffix, size, dark in looks:
            browser.resize(size, dark=dark)
            browser.open(path)
            if name == "dashboard":
                browser.find("#workpool:not([data-state=loading])")
            take(browser, folder / f"{name}{suffix}.png")
