"""The quick start of the manual, run as it is printed: from nothing to a project whose work is seen in the admin."""

import http.cookiejar
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from django.db import connection

ROOT = Path(__file__).parents[1]
SECTION = (ROOT / "README.md").read_text().partition("\n## Quick start\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
URLS = re.findall(r"http://127\.0\.0\.1:8000(/\S*/)", SECTION)
#: Seconds for the processes to answer.
LIMIT = 60


class Browser:
    """As much of one as following links and filling in a form takes."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self._cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))

    def get(self, path: str) -> str:
        with self._opener.open(self.base + path, timeout=LIMIT) as answer:
            return str(answer.read().decode())

    def log_in(self, path: str, user: str, password: str) -> str:
        """Go to a page by way of the login that it asks for."""
        token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(path))[0]
        form = {"username": user, "password": password, "next": path, "csrfmiddlewaretoken": token}
        url = f"{self.base}/admin/login/?{urllib.parse.urlencode({'next': path})}"
        request = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), {"Referer": url})
        with self._opener.open(request, timeout=LIMIT) as answer:
            return str(answer.read().decode())


def until(what: str, shell: "subprocess.Popen[str]", log: Path, attempt: "object") -> str:
    """Return the first answer of ``attempt`` that is not empty."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        try:
            answer = attempt()  # type: ignore[operator]
        except (urllib.error.URLError, ConnectionError):
            answer = ""
        if answer:
            return str(answer)
        assert shell.poll() is None, f"the shell has ended:\n{log.read_text()}"
        time.sleep(0.1)
    raise AssertionError(f"not after {LIMIT} s: {what}\n{log.read_text()}")


@pytest.mark.once
@pytest.mark.timeout(300)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="the quick start's database is SQLite")
def test_each_command_of_the_quick_start_works_as_printed(tmp_path: Path) -> None:
    checkout, log = tmp_path / "checkout", tmp_path / "log"
    checkout.mkdir()
    shutil.copytree(ROOT / "django_workpool", checkout / "django_workpool", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert len(BLOCKS) == 4 and "runserver &" in BLOCKS[-1]
    script = "set -e\n" + "".join(BLOCKS).replace("runserver &", f"runserver --noreload {port} &") + "read end\nkill %1 %2\nwait\n"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "DATABASE_URL", "PYTHON", "WORKPOOL"))}
    with log.open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=checkout,
            env=inherited | {"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        browser = Browser(port)
        enqueue, archive = URLS[:2]
        until(
            "it is installed and the site answers",
            shell,
            log,
            lambda: (tmp_path / "shop/db.sqlite3").exists() and browser.get("/admin/login/"),
        )
        (work_id,) = re.findall(r"work ([0-9a-f-]{36})", browser.get(enqueue))
        browser.log_in(archive, "me", "secret")
        page = until("the work is in the archive", shell, log, lambda: work_id in (page := browser.get(archive)) and page)
        assert "mail.tasks.send_welcome" in page
        assert "welcome, ada" in browser.get(f"{archive}{work_id}/change/")
        status = [str(tmp_path / "shop/.venv/bin/python"), "manage.py", "workpool_status"]
        told = subprocess.run(status, cwd=tmp_path / "shop", env=inherited, capture_output=True, text=True)
        assert (told.returncode, told.stdout.rstrip().splitlines()[-1]) == (0, "all is well"), told
        shell.communicate("end\n", timeout=LIMIT)
        assert "event=process_ended" in log.read_text()
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
