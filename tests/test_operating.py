"""The operators' commands, and a pool that is paused."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_workpool import Workpool, call, configuration
from django_workpool.database import database
from django_workpool.management.operations import duration
from django_workpool.models import Archive, Batch, Globals, PendingCancelation, PendingStart, RunStatus, Work

from .conftest import MANAGE, ROOT, StartMain
from .live import PATIENCE, wait_for_quiet, wait_until
from .states.functions import act, ask
from .states.rows import POOL, S1, S2, USING, finished, given
from .works import tasks
from .works.models import Event

pytestmark = pytest.mark.django_db(transaction=True)


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def run(*arguments: str, typed: str | None = None) -> tuple[int, str, str]:
    """Run a command here; return its exit code and what it has told, on stdout and at its end."""
    out, err = io.StringIO(), io.StringIO()
    try:
        asked = {} if arguments[0] == "workpool_status" else {"stdin": io.StringIO() if typed is None else Terminal(typed)}
        call_command(*arguments, stdout=out, stderr=err, **asked)
    except CommandError as error:
        return error.returncode, out.getvalue(), f"{err.getvalue()}{error}"
    return 0, out.getvalue(), err.getvalue()


def limits(pool: str = POOL) -> tuple[int, int | None]:
    return Globals.objects.values_list("max_parallelism", "paused_limit").get(pool=pool)


# Pauses ---------------------------------------------------------------------------------------------------------


def test_a_pause_keeps_the_limit_and_ends_with_it() -> None:
    pool = Workpool()
    pool.configure(max_parallelism=7)
    assert pool.pause() is True and limits() == (0, 7)
    assert pool.pause() is False and limits() == (0, 7)
    assert pool.resume() is True and limits() == (7, None)
    assert pool.resume() is False and limits() == (7, None)
    pool.configure(max_parallelism=0)
    assert limits() == (0, 7)
    pool.configure(max_parallelism=0, log_level="WARN")
    assert limits() == (0, 7) and Globals.objects.get(pool=POOL).log_level == "WARN"
    pool.configure(log_level="INFO")
    assert limits() == (0, 7)
    pool.configure(max_parallelism=3)
    assert limits() == (3, None)
    assert limits("imports") == (10, None)


def test_a_pause_of_a_pool_that_never_had_a_limit_ends_with_that_of_the_settings(settings: Any) -> None:
    pool = Workpool()
    Globals.objects.update(max_parallelism=0)
    assert pool.resume() is True and limits() == (10, None)
    Globals.objects.update(max_parallelism=0)
    settings.WORKPOOLS = {"default": {"MAX_PARALLELISM": 4}, "imports": {"MAX_PARALLELISM": 0}}
    assert pool.pause() is True and limits() == (0, 0)
    assert pool.resume() is True and limits() == (4, None)
    assert Workpool("imports").pause() is True and Workpool("imports").resume() is True
    assert limits("imports") == (10, None)
    for model in (Globals, RunStatus):
        model._default_manager.all().delete()
    assert pool.pause() is True and limits() == (0, 4)


def test_a_process_that_starts_ends_no_pause(settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"MAX_PARALLELISM": 4}, "imports": {"MAX_PARALLELISM": 6}}
    configuration.apply_settings(USING)
    assert (limits(), limits("imports")) == ((4, None), (6, None))
    Workpool().pause()
    settings.WORKPOOLS = {"default": {"MAX_PARALLELISM": 5}, "imports": {"MAX_PARALLELISM": 0}}
    configuration.apply_settings(USING)
    assert (limits(), limits("imports")) == ((0, 5), (0, None))
    settings.WORKPOOLS = {"default": {}, "imports": {"MAX_PARALLELISM": 8}}
    configuration.apply_settings(USING)
    # What the settings paused, they let go on.
    assert (limits(), limits("imports")) == ((0, 5), (8, None))
    Workpool().resume()
    assert limits() == (5, None)


def test_a_pause_stops_starts_of_two_processes_within_a_second(main_process: StartMain) -> None:
    for _ in range(2):
        main_process("--threads", "2").wait_for("process_started", PATIENCE)
    pool = Workpool()
    pool.configure(max_parallelism=4)
    pool.enqueue_many(tasks.slow_note, [call(str(number), 0.05) for number in range(2_000)])
    wait_until(lambda: Event.objects.count() > 8)
    assert pool.pause() is True
    paused = database(USING).clock_ms()
    # A third one that comes meanwhile changes nothing.
    main_process("--threads", "2").wait_for("process_started", PATIENCE)
    wait_until(lambda: not Work.objects.exclude(id__in=PendingStart.objects.values("work_id")).exists())
    last = Archive.objects.order_by("-started").values_list("started", flat=True)[0]
    assert last is not None
    assert last.timestamp() * 1000 <= paused + 1000
    left = PendingStart.objects.count()
    assert left > 1_000
    code, shown, _ = run("workpool_status", "--pool", POOL)
    assert code == 0 and re.search(rf"{POOL} +paused +{left} ", shown)
    assert PendingStart.objects.count() == left
    assert pool.resume() is True
    wait_until(lambda: PendingStart.objects.count() < left)
    pool.cancel_all()
    wait_for_quiet()


def test_wake_reaches_a_loop_that_sleeps(main_process: StartMain) -> None:
    main = main_process("--threads", "1")
    main.wait_for("lead_taken", PATIENCE)
    Workpool().wake()
    assert Workpool().enqueue(tasks.note, "after it")
    wait_for_quiet()


# Cancel ---------------------------------------------------------------------------------------------------------


def test_works_are_canceled_by_their_ids_wherever_they_are() -> None:
    ids = [Workpool(pool).enqueue(act) for pool in ("default", "imports", "default")]
    code, shown, told = run("workpool_cancel", *map(str, ids[:2]), "--dry-run")
    assert (code, shown, told) == (0, "2 works would be canceled.\n", "") and not PendingCancelation.objects.exists()
    assert run("workpool_cancel", *map(str, ids[:2])) == (0, "The cancelation of 2 works is asked for.\n", "")
    assert {(row.pool, row.work_id) for row in PendingCancelation.objects.all()} == {("default", ids[0]), ("imports", ids[1])}
    code, shown, told = run("workpool_cancel", *map(str, ids), "--json")
    assert (code, json.loads(shown)) == (1, {"dry_run": False, "canceled": 1})
    assert told == "2 works had ended, or been canceled, or are unknown."
    assert run("workpool_cancel", str(uuid.uuid4()))[0::2] == (1, "There is nothing to cancel.")
    assert run("workpool_cancel", str(ids[0]), "--pool", "imports")[0] == 1


def test_all_works_of_a_pool_are_canceled_if_that_is_confirmed() -> None:
    Workpool().enqueue_many(act, [call()] * 3)
    Workpool().using(name="n").enqueue(ask)
    Workpool("imports").enqueue(ask)
    code, shown, told = run("workpool_cancel", "--all", "--pool", POOL, typed="n\n")
    assert (code, shown) == (1, "") and told == "Cancel 4 works of the pool default? [y/N] Nothing was canceled."
    assert not PendingCancelation.objects.exists()
    path = f"{ask.__module__}.ask"
    assert run("workpool_cancel", "--all", "--pool", POOL, "--function", path, "--dry-run")[1] == "1 work would be canceled.\n"
    assert run("workpool_cancel", "--all", "--pool", POOL, "--function", path, "--name", "n", typed="y\n")[0] == 0
    row = PendingCancelation.objects.get()
    assert row.work_id == Work.objects.get(name="n").id
    assert run("workpool_cancel", "--all", "--pool", POOL, "--yes", typed="")[0] == 0
    assert PendingCancelation.objects.filter(pool=POOL, work_id=None).count() == 1
    assert run("workpool_cancel", "--all", "--pool", POOL, "--name", "nothing")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("workpool_cancel",), "Choose one: ids of works, --all with --pool."),
        (("workpool_cancel", "--all"), "--all needs --pool."),
        (("workpool_cancel", "x"), "'x' is not the id of a work."),
        (("workpool_cancel", "--all", "--pool", "nowhere"), "There is no pool 'nowhere'"),
        (("workpool_cancel", str(uuid.uuid4()), "--pool", "nowhere"), "There is no pool 'nowhere'"),
        (("workpool_retry",), "Choose one: ids of works, --failed with --pool."),
        (("workpool_retry", "--failed"), "--failed needs --pool."),
        (("workpool_retry", "x"), "'x' is not the id of a work."),
        (("workpool_retry", str(uuid.uuid4()), "--since", "1h"), "--since goes with --failed."),
        (("workpool_retry", "--failed", "--pool", "nowhere"), "There is no pool 'nowhere'"),
        (("workpool_retry", "--failed", "--pool", POOL, "--since", "soon"), "'soon' is not a time such as 90s"),
        (("workpool_configure", "nowhere"), "There is no pool 'nowhere'"),
        (("workpool_configure", POOL, "--max-parallelism", "-1"), "max_parallelism must be a whole number"),
        (("workpool_configure", POOL, "--log-level", "LOUD"), "log_level must be one of"),
        (("workpool_configure", POOL, "--max-parallelism", "3", "--pause"), "leave out --pause or --resume"),
        (("workpool_prune", "--pool", "nowhere"), "There is no pool 'nowhere'"),
        (("workpool_prune", "--older-than", "1x"), "'1x' is not a time such as 90s"),
        (("workpool_status", "--why", "x"), "'x' is not the id of a work."),
    ],
)
def test_what_cannot_be_taken_is_refused(arguments: tuple[str, ...], told: str) -> None:
    code, shown, text = run(*arguments)
    assert (code, shown) == (2, "") and told in text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("45", 45), ("0", 0)]
)
def test_times_are_read(text: str, seconds: int) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "h", "1.5h", "-1h", "1h 5", "1h5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not a time such as"):
        duration(text)


# Retry ----------------------------------------------------------------------------------------------------------


def test_finished_works_run_again_by_their_ids() -> None:
    ids = [given(finished(kind)) for kind in ("failed", "canceled", "success")] + [given(S1), uuid.uuid4()]
    Archive.objects.filter(id=ids[1]).update(pool="imports")
    code, shown, told = run("workpool_retry", *map(str, ids), "--dry-run", "--json")
    assert code == 1 and json.loads(shown)["retried"] == [str(one) for one in ids[:2]] and Archive.objects.count() == 3
    code, shown, told = run("workpool_retry", *map(str, ids))
    assert (code, shown) == (1, "2 works will run again.\n")
    assert f"{ids[2]}: it has succeeded" in told and f"{ids[3]}: it is unknown" in told and f"{ids[4]}: it is unknown" in told
    assert set(PendingStart.objects.values_list("work_id", "pool")) == {(ids[0], POOL), (ids[1], "imports"), (ids[3], POOL)}
    assert run("workpool_retry", str(ids[0]))[0] == 1


def test_all_that_has_failed_runs_again() -> None:
    ids = [given(finished("failed")) for _ in range(4)] + [given(finished("canceled")), given(finished("success"))]
    Archive.objects.filter(id=ids[0]).update(finished=Archive.objects.get(id=ids[1]).finished - timedelta(hours=2))
    Archive.objects.filter(id=ids[1]).update(fn_type="callback", callback_of=ids[5])
    Archive.objects.filter(id=ids[2]).update(name="n")
    failed = ("workpool_retry", "--failed", "--pool", POOL)
    assert run(*failed, "--dry-run")[1] == "3 works would run again.\n"
    assert run(*failed, "--since", "1h", "--dry-run")[1] == "2 works would run again.\n"
    assert run(*failed, "--since", "1h", "--name", "n", typed="no")[0::2] == (
        1,
        "Let 1 work of the pool default run again? [y/N] Nothing was retried.",
    )
    assert run(*failed, "--since", "1h", "--name", "n", typed="y")[0] == 0
    assert list(Work.objects.values_list("id", flat=True)) == [ids[2]]
    assert run(*failed) == (0, "2 works will run again.\n", "")
    assert run(*failed)[0::2] == (1, "There is nothing to retry.")
    assert run(*failed, "--callbacks") == (0, "1 work will run again.\n", "")
    assert set(Archive.objects.values_list("id", flat=True)) == {ids[4], ids[5]}


def test_more_than_a_chunk_of_works_runs_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_workpool.management.operations.CHUNK", 2)
    ids = [given(finished("failed")) for _ in range(5)]
    code, shown, _ = run("workpool_retry", "--failed", "--pool", POOL, "--json")
    assert code == 0 and json.loads(shown) == {"dry_run": False, "retried": [str(one) for one in ids], "refused": {}}


def test_callbacks_are_called_again_by_the_id_of_their_work() -> None:
    work_id, callback = given(finished("success")), given(finished("failed"))
    Archive.objects.filter(id=callback).update(fn_type="callback", callback_of=work_id, pool="imports")
    Archive.objects.filter(id=work_id).update(callback="failed", pool="imports")
    assert run("workpool_retry", "--callbacks", str(work_id), "--dry-run")[1] == "1 work would run again.\n"
    assert run("workpool_retry", "--callbacks", str(work_id)) == (0, "1 work will run again.\n", "")
    assert Work.objects.get().id == callback
    code, _, told = run("workpool_retry", "--callbacks", str(work_id))
    assert (code, told) == (1, f"{work_id}: none of its callbacks has failed for good")


# Configure ------------------------------------------------------------------------------------------------------


def test_a_pool_is_configured() -> None:
    assert run("workpool_configure", POOL) == (0, "default: max_parallelism 10\n", "")
    assert run("workpool_configure", POOL, "--max-parallelism", "3", "--log-level", "INFO")[1] == (
        "default: max_parallelism 3, log level INFO\n"
    )
    assert run("workpool_configure", POOL, "--pause")[1] == "default: max_parallelism 0, paused; it goes on with 3, log level INFO\n"
    code, shown, told = run("workpool_configure", POOL, "--pause", "--json")
    assert (code, told) == (1, "The pool default was paused already.")
    assert json.loads(shown) == {"pool": POOL, "max_parallelism": 0, "paused_limit": 3, "log_level": "INFO"}
    assert run("workpool_configure", POOL, "--resume")[0] == 0 and limits() == (3, None)
    assert run("workpool_configure", POOL, "--resume")[0::2] == (1, "The pool default is not paused.")
    assert run("workpool_configure", POOL, "--wake")[0] == 0


# Prune ----------------------------------------------------------------------------------------------------------


def test_what_is_old_is_pruned_and_callbacks_only_if_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_workpool.archive.PRUNE_CHUNK", 2)
    ids = [given(finished(kind)) for kind in ("failed", "success", "canceled", "failed", "success")]
    now = Archive.objects.get(id=ids[0]).finished
    Archive.objects.filter(id__in=ids[:4]).update(finished=now - timedelta(hours=3))
    Archive.objects.filter(id=ids[3]).update(fn_type="callback")
    Batch.objects.create(id=uuid.uuid4(), pool=POOL, total=0, created=now, ended=now - timedelta(hours=3))
    lines = "{0}: {1} works and {2} ended batches {3}\nimports: 0 works and 0 ended batches {3}\n"
    assert run("workpool_prune") == (0, lines.format(POOL, 0, 0, "deleted"), "")
    old = ("workpool_prune", "--older-than", "2h")
    assert run(*old, "--dry-run")[1] == lines.format(POOL, 3, 1, "would be deleted")
    assert run(*old, typed="\n")[0] == 1 and Archive.objects.count() == 5
    assert (
        run(*old, "--pool", POOL, "--json")[1]
        == json.dumps({"dry_run": False, "pools": {POOL: {"works": 3, "batches": 1}}}, indent=2) + "\n"
    )
    assert set(Archive.objects.values_list("id", flat=True)) == {ids[3], ids[4]} and not Batch.objects.exists()
    assert run(*old, "--callbacks", "--yes", typed="")[0] == 0
    assert list(Archive.objects.values_list("id", flat=True)) == [ids[4]]


# Status ---------------------------------------------------------------------------------------------------------


def test_the_status_says_why_a_work_does_not_run() -> None:
    work_id, gone = Workpool("imports").using(delay=timedelta(days=1)).enqueue(act), uuid.uuid4()
    code, shown, told = run("workpool_status", "--why", str(work_id))
    assert (code, told) == (0, "") and shown.startswith(f"{work_id}: later: it is not due before ")
    code, shown, told = run("workpool_status", "--why", str(gone), "--why", str(work_id), "--json")
    assert (code, told) == (1, f"unknown, or no longer kept: {gone}")
    assert [(one["work_id"], one["code"], one["pool"]) for one in json.loads(shown)] == [
        (str(gone), "unknown", ""),
        (str(work_id), "later", "imports"),
    ]


@pytest.mark.slow
def test_the_status_is_watched_until_it_is_interrupted(test_database_url: str, main_process: StartMain) -> None:
    watch = main_process("--watch", "0.1", command="workpool_status")
    wait_until(lambda: watch.output().count("all is well") >= 3)
    watch.process.send_signal(signal.SIGINT)
    assert watch.wait(PATIENCE) == 0 and "\x1b" not in watch.output() and "Traceback" not in watch.output()
    # Whose last look found something ends with that.
    given(S1)
    watch = main_process("--watch", "0.1", command="workpool_status")
    # The second time: then the first look has come to its end, and not only to its words.
    wait_until(lambda: watch.output().count("no_worker: ") >= 2)
    watch.process.send_signal(signal.SIGINT)
    assert watch.wait(PATIENCE) == 1


def test_a_terminal_is_drawn_anew_and_shows_how_far_it_has_come(test_database_url: str) -> None:
    ids = [given(finished("failed")) for _ in range(3)]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": test_database_url}
    mine, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    retry = [sys.executable, str(MANAGE), "workpool_retry", "--failed", "--pool", POOL, "--yes"]
    streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    ended = subprocess.run(retry, env=environment, cwd=ROOT, timeout=60, check=False, **streams)
    shown = os.read(mine, 100_000).decode()
    assert ended.returncode == 0 and "retried: 100%" in shown and "3/3" in shown and "3 works will run again." in shown
    assert PendingStart.objects.filter(work_id__in=ids).count() == 3
    Work.objects.all().delete()
    PendingStart.objects.all().delete()
    watch = subprocess.Popen(
        [sys.executable, str(MANAGE), "workpool_status", "--watch", "0.1"], env=environment, cwd=ROOT, start_new_session=True, **streams
    )
    shown = ""
    try:
        wait_until(lambda: os.read(mine, 100_000).decode().count("\x1b[H\x1b[2J") >= 1)
    finally:
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 0
        os.close(mine)
        os.close(theirs)


@pytest.mark.slow
def test_a_database_that_is_away_is_told(tmp_path: Any) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": "postgres://user@127.0.0.1:1/nothing"}
    for arguments in (["workpool_retry", str(uuid.uuid4())], ["workpool_status", "--why", str(uuid.uuid4())]):
        ended = subprocess.run(
            [sys.executable, str(MANAGE), *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 2 and ended.stderr.startswith("CommandError: The database cannot be asked: "), ended.stderr
    assert connection and S2
