"""What becomes of the operators' commands when nobody reads them, when streams are closed, and when Ctrl-C comes in between."""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from django_workpool import Workpool, call
from django_workpool.models import Archive, PendingCancelation, Work

from .conftest import MANAGE, ROOT
from .live import PATIENCE
from .states.functions import act
from .states.rows import POOL, finished, given
from .test_operating import run

pytestmark = pytest.mark.django_db(transaction=True)


def started(database_url: str, *arguments: str, **streams: Any) -> "subprocess.Popen[str]":
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url}
    return subprocess.Popen([sys.executable, str(MANAGE), *arguments], env=environment, cwd=ROOT, text=True, **streams)


def test_a_watch_that_nobody_reads_any_more_ends(test_database_url: str) -> None:
    watch = started(test_database_url, "workpool_status", "--watch", "0.1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watch.stdout is not None and watch.stdout.readline().startswith("pool ")
    watch.stdout.close()
    watch.stdout = None
    assert watch.communicate(timeout=PATIENCE)[1] == "" and watch.returncode == 0


@pytest.mark.parametrize(
    "arguments", [("workpool_status",), ("workpool_configure", POOL), ("workpool_prune", "--json")], ids=lambda x: x[0]
)
def test_closed_streams_keep_no_command_from_its_end(test_database_url: str, arguments: tuple[str, ...]) -> None:
    command = " ".join([sys.executable, str(MANAGE), *arguments, "<&- >&-"])
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": test_database_url}
    ended = subprocess.run(["sh", "-c", command], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("json_too", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("what", ["retry", "cancel", "prune"])
def test_an_interrupted_command_tells_what_it_has_done_and_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, what: str, json_too: tuple[str, ...]
) -> None:
    monkeypatch.setattr("django_workpool.management.operations.CHUNK", 2)
    monkeypatch.setattr("django_workpool.archive.PRUNE_CHUNK", 2)
    if what == "cancel":
        Workpool().using(name="n").enqueue_many(act, [call()] * 5)
    else:
        ended = [given(finished("failed")) for _ in range(5)]
        Archive.objects.filter(id__in=ended).update(finished=Archive.objects.get(id=ended[0]).finished - timedelta(hours=3))
    arguments = {
        "retry": ("workpool_retry", "--failed", "--pool", POOL),
        "cancel": ("workpool_cancel", "--all", "--pool", POOL, "--name", "n"),
        "prune": ("workpool_prune", "--older-than", "1h", "--pool", POOL),
    }[what]
    # As Ctrl-C comes in the middle of the second portion.
    portions = 0
    rooms = {"retry": "requeue.requeue", "cancel": "pools.Workpool.cancel_many", "prune": "archive.prune"}

    def interrupted(*given_: Any, **named: Any) -> Any:
        nonlocal portions
        portions += 1
        if portions == 2:
            signal.raise_signal(signal.SIGINT)
        return real(*given_, **named)

    path, _, name = f"django_workpool.{rooms[what]}".rpartition(".")
    owner: Any = Workpool if what == "cancel" else sys.modules[path]
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, interrupted)
    code, shown, told = run(*arguments, *json_too)
    assert (code, portions) == (1, 2) and told.endswith("Interrupted: the rest is as it was.")
    assert ("4" in shown) if not json_too else json.loads(shown)
    done = {
        "retry": lambda: Work.objects.count(),
        "cancel": lambda: PendingCancelation.objects.count(),
        "prune": lambda: 5 - Archive.objects.count(),
    }
    assert done[what]() == 4
    # A Ctrl-C after it is Python's own again.
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("text", ["999999999d", "36501d", "9" * 5000 + "s", "99999999999999w"])
def test_times_beyond_each_calendar_are_refused(text: str) -> None:
    for arguments in (("workpool_prune", "--older-than", text), ("workpool_retry", "--failed", "--pool", POOL, "--since", text)):
        code, shown, told = run(*arguments)
        assert (code, shown) == (2, "") and told.endswith("is longer than a hundred years.")
