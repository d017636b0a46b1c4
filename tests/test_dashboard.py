"""The dashboard: who may see it, what it says of the rows, and what it costs."""

import json
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

import django_workpool
from django_workpool import Workpool, call, health, tallies
from django_workpool.admin import looks, overview
from django_workpool.database import database
from django_workpool.health.reading import Look
from django_workpool.models import Globals, InternalState, PendingStart, RunningWork, Tally, Work, Worker
from django_workpool.types import Lane

from .states.driver import Loop
from .states.rows import POOL, S1, S2, USING, given
from .test_health import lead_for_a_minute
from .works import tasks

pytestmark = pytest.mark.django_db(transaction=True)

PAGE, DATA, WAITING = (f"admin:workpool_dashboard{end}" for end in ("", "_data", "_waiting"))
XSS = "<img src=x onerror=alert(1)>"
STATIC = Path(django_workpool.__file__).parent / "static" / "django_workpool"


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    looks.forget()
    yield
    looks.forget()
    database(USING).release_lead_lock()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks use this thread's connection, so that their statements are counted; nothing is kept for later."""
    monkeypatch.setattr(health, "look", lambda using, pools=None: Look(database(using), None, pools).health())
    monkeypatch.setattr(looks, "NOW_FOR", 0.0)
    monkeypatch.setattr(looks, "TOTALS_FOR", 0.0)


@pytest.fixture
def loop() -> Loop:
    loop = Loop(limit=2)
    lead_for_a_minute(loop)
    return loop


def now_minute() -> int:
    return int(database(USING).clock_ms() // 60_000)


def ask(client: Client, name: str = DATA, **values: str) -> Any:
    answer = client.get(reverse(name), values)
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"] == "application/json"
    return json.loads(answer.content)


def pool_of(told: Any, name: str = POOL) -> Any:
    (one,) = [one for one in told["pools"] if one["pool"] == name]
    return one


# Who may see it -----------------------------------------------------------------------------------------------------


def staff(*codenames: str) -> User:
    user = User.objects.create_user(f"staff{User.objects.count()}", password="x", is_staff=True)
    found = Permission.objects.filter(content_type__app_label="workpool", codename__in=codenames)
    assert found.count() == len(codenames)
    user.user_permissions.set(found)
    return user


def statuses(client: Client) -> list[int]:
    return [client.get(reverse(name), {"pool": POOL} if name == WAITING else {}).status_code for name in (PAGE, DATA, WAITING)]


def test_it_opens_for_staff_who_may_view_pools_and_tells_of_works_those_who_may_view_works(client: Client) -> None:
    assert statuses(client) == [302] * 3
    assert client.get(reverse(DATA))["Location"].startswith(reverse("admin:login"))
    opened = {}
    for who in [(), ("view_work", "change_globals", "configure_pool"), ("view_globals",), ("view_globals", "view_work")]:
        client.force_login(staff(*who))
        opened[who] = statuses(client)
    assert list(opened.values()) == [[403] * 3, [403] * 3, [200, 200, 403], [200] * 3]
    client.force_login(User.objects.create_user("customer", password="x"))
    assert statuses(client) == [302] * 3


def test_the_panel_of_works_is_shown_to_those_who_may_view_works(client: Client) -> None:
    shown = []
    for who in [("view_globals",), ("view_globals", "view_work")]:
        client.force_login(staff(*who))
        page = client.get(reverse(PAGE)).content.decode()
        shown.append((reverse(WAITING) in page, "wp-why" in page))
    assert shown == [(False, False), (True, True)]


@pytest.mark.parametrize("name", [PAGE, DATA, WAITING])
def test_it_is_only_read(admin_client: Client, name: str) -> None:
    url = reverse(name)
    answers = [admin_client.generic(method, url) for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD")]
    assert [answer.status_code for answer in answers] == [405] * 5


def test_pages_of_the_admin_link_to_it_for_those_who_may_see_it(client: Client) -> None:
    link = f'href="{reverse(PAGE)}"'
    found = {}
    for codename in ("view_globals", "view_work"):
        client.force_login(staff(codename))
        found[codename] = link in client.get(reverse("admin:app_list", args=["workpool"])).content.decode()
    assert found == {"view_globals": True, "view_work": False}
    client.force_login(staff("view_globals"))
    assert link in client.get(reverse("admin:workpool_globals_changelist")).content.decode()


# What it says of the rows -------------------------------------------------------------------------------------------


def tally(minute: int, pool: str = POOL, **values: Any) -> None:
    Tally.objects.create(pool=pool, minute=minute, **values)


def test_the_charts_are_the_sums_of_the_rows_step_by_step(admin_client: Client) -> None:
    last = now_minute()
    tally(last - 10, succeeded=5, failed=1, failed_attempts=3, retried=2, started=6, lag_100ms=6, waiting=40, running=2)
    tally(last - 10, succeeded=7)
    tally(last - 10, pool="imports", succeeded=100, canceled=4, started=94, lag_2s=94, waiting=2, running=8)
    tally(last - 20, pool="imports", succeeded=9)
    tally(last - 10, lane=Lane.CALLBACK, succeeded=1000)
    tally(last - 70, succeeded=31)
    tally(0, succeeded=500, failed=10, requeued=3)
    told = ask(admin_client)
    history = told["history"]
    minutes = history["minutes"]
    assert (len(minutes), history["step"], minutes[1] - minutes[0], minutes[-1] - last) in [(60, 1, 1, 0), (60, 1, 1, 1)]
    ten, twenty = minutes.index(last - 10), minutes.index(last - 20)
    names = ("succeeded", "failed", "canceled", "retried", "failed_attempts", "started")
    assert [history[name][ten] for name in names] == [112, 1, 4, 2, 3, 100]
    assert [sum(history[name]) for name in names] == [121, 1, 4, 2, 3, 100]
    assert (history["succeeded"][twenty], history["running"][ten], history["running"][twenty]) == (9, 10, 0)
    lags = (6, 0, 0, 0, 94, 0, 0, 0, 0, 0)
    assert history["lag_p50_ms"][ten] == tallies.percentile_ms(lags, 0.5) and history["lag_p95_ms"][twenty] is None
    assert history["spans"][:-1] == [1] * 59 and 0 <= history["spans"][-1] <= 1
    waiting = {line["pool"]: line["values"] for line in history["waiting"]}
    assert (waiting[POOL][ten], waiting["imports"][ten], waiting[POOL][twenty]) == (40, 2, 0)
    one, other = pool_of(told), pool_of(told, "imports")
    assert (one["window"]["succeeded"], one["window"]["failed"], one["total"]["succeeded"], one["total"]["failed"]) == (12, 1, 543, 11)
    assert (one["total"]["requeued"], one["lag_p95_ms"], other["lag_p95_ms"]) == (
        3,
        pytest.approx(95),
        tallies.percentile_ms((0, 0, 0, 0, 94), 0.95),
    )


@pytest.mark.parametrize(
    ("said", "others", "step", "held"),
    [
        ({}, (), 1, [0, 0, 0, 0, 0, 0]),
        ({1: 5, 2: 6}, (), 1, [0, 5, 6, 6, None, None]),
        ({0: 5, 2: 7}, (1, 2, 3, 4), 1, [5, 5, 7, 7, 0, 0]),
        ({0: 5, 4: 7}, (1, 2), 1, [5, 5, 0, 0, 7, 7]),
        ({0: 5, 30: 7}, (), 15, [5, None, 7, None, None, None]),
    ],
    ids=["idle", "nobody leads any more", "a minute left out", "worked off", "wide steps"],
)
def test_what_a_pool_held_when_nobody_said_so(
    said: dict[int, int | None], others: tuple[int, ...], step: int, held: list[int | None]
) -> None:
    past = looks.History(now_ms=0.0, step=step, minutes=range(0, 6 * step, step), points=())
    assert overview._held(past, said, {*said, *others}) == held


def test_one_pool_is_shown_alone_but_problems_of_all(loop: Loop, admin_client: Client) -> None:
    last = now_minute()
    tally(last - 5, succeeded=3)
    tally(last - 5, pool="imports", succeeded=40)
    Worker.objects.update(pools='["imports"]')
    given(S1)
    told = ask(admin_client, pool="imports")
    assert [one["pool"] for one in told["pools"]] == ["imports"]
    assert (sum(told["history"]["succeeded"]), told["summary"]["waiting"], told["summary"]["limit"]) == (40, 0, 10)
    assert [line["pool"] for line in told["history"]["waiting"]] == ["imports"]
    assert told["names"] == ["default", "imports"]
    assert not told["well"] and told["problems"] == [f"{POOL}: no_worker: {health.PoolHealth.advice.fget(_no_worker())}"]


def _no_worker() -> Any:
    class One:
        reason = health.Reason.NO_WORKER

    return One()


@pytest.mark.parametrize(("window", "step", "steps"), [("day", 15, 96), ("week", 120, 84)])
def test_longer_windows_have_longer_steps(admin_client: Client, window: str, step: int, steps: int) -> None:
    last = now_minute()
    for ago in range(0, 7 * 24 * 60, 60):
        tally(last - ago, succeeded=1)
    history = ask(admin_client, window=window)["history"]
    assert (history["step"], len(history["minutes"])) == (step, steps)
    assert all(minute % step == 0 for minute in history["minutes"])
    inside = [last - ago for ago in range(0, 7 * 24 * 60, 60) if last - ago >= history["minutes"][0]]
    at = [(minute - history["minutes"][0]) // step for minute in inside]
    assert history["succeeded"] == [at.count(one) for one in range(steps)]


def test_what_there_is_now_is_what_the_rows_say(loop: Loop, admin_client: Client) -> None:
    loop.configure(5)
    Workpool().enqueue_many(tasks.note, [call()] * 3)
    loop.iterate()
    given(S2, worker_id=loop.worker.id)
    Workpool("imports").enqueue_many(tasks.note, [call()] * 4)
    loop.configure(4)
    told = ask(admin_client)
    one = pool_of(told)
    assert (one["running"], one["max_parallelism"], one["waiting"], one["reason"]) == (4, 4, 0, "ok")
    assert pool_of(told, "imports")["waiting"] == pool_of(told, "imports")["due"] == 4
    names = ("waiting", "due", "running", "callbacks", "limit", "workers", "alive", "capacity")
    assert [told["summary"][name] for name in names] == [4, 4, 4, 0, 14, 1, 1, 100]
    (worker,) = told["workers"]
    assert (worker["id"], worker["alive"], worker["running"], worker["capacity"]) == (loop.worker.id, True, 4, 100)
    runs = [(run["function"], run["pool"], run["number"]) for run in worker["runs"]]
    assert runs == [("tests.works.tasks.note", POOL, 3), ("tests.states.functions.act", POOL, 1)]
    assert all(0 <= run["longest_s"] < 60 for run in worker["runs"])
    assert (told["leader"]["present"], told["leader"]["worker"]) == (True, loop.worker.id)
    assert told["history"]["running"][-1] == 4
    assert {line["pool"]: line["values"][-1] for line in told["history"]["waiting"]} == {POOL: 0, "imports": 4}


def test_many_functions_of_a_worker_are_summed_up(loop: Loop, admin_client: Client) -> None:
    for number in range(6):
        work_id = given(S2, worker_id=loop.worker.id)
        Work.objects.filter(id=work_id).update(func_path=f"a.f{number}")
    runs = ask(admin_client)["workers"][0]["runs"]
    assert [run["function"] for run in runs] == ["a.f0", "a.f1", "a.f2", None] and runs[-1]["number"] == 3


def test_backlogs_of_many_pools_are_six_lines(admin_client: Client) -> None:
    last = now_minute()
    for number in range(9):
        Globals.objects.create(pool=f"p{number}", max_parallelism=1)
        tally(last - 3, pool=f"p{number}", waiting=10 * number)
    lines = ask(admin_client)["history"]["waiting"]
    assert [line["pool"] for line in lines] == ["p4", "p5", "p6", "p7", "p8", None]
    at = ask(admin_client)["history"]["minutes"].index(last - 3)
    assert [line["values"][at] for line in lines] == [40, 50, 60, 70, 80, 0 + 10 + 20 + 30]
    assert lines[-1]["pools"] == 6  # p0 to p3, and the two of the settings


def test_of_very_many_pools_the_gravest_are_told(monkeypatch: pytest.MonkeyPatch, admin_client: Client) -> None:
    monkeypatch.setattr(overview, "ROWS_MAX", 2)
    work_id = given(S1)
    Globals.objects.create(pool="zz", max_parallelism=1)
    PendingStart.objects.filter(work_id=work_id).update(pool="zz")
    told = ask(admin_client)
    assert ([one["pool"] for one in told["pools"]], told["pools_left"], len(told["names"])) == (["default", "zz"], 1, 3)


def test_a_fault_that_one_look_has_seen_is_not_sure_and_one_that_two_have_is(
    monkeypatch: pytest.MonkeyPatch, loop: Loop, admin_client: Client
) -> None:
    monkeypatch.setattr(looks, "NOW_FOR", 0.0)
    Worker.objects.update(accepting=False)
    given(S1)
    first = ask(admin_client)
    assert (first["well"], first["sure"], len(first["problems"])) == (False, False, 1)
    monkeypatch.setattr(health, "AGAIN_AFTER", 0.0)
    second = ask(admin_client)
    assert (second["sure"], second["problems"], pool_of(second)["is_fault"]) == (True, first["problems"], True)
    Worker.objects.update(accepting=True)
    assert ask(admin_client)["well"]
    Worker.objects.update(accepting=False)
    moment = ask(admin_client)
    assert (moment["well"], moment["sure"], pool_of(moment)["reason"]) == (True, True, "ok")


def test_names_are_texts_and_none_is_in_the_page(loop: Loop, admin_client: Client) -> None:
    Globals.objects.create(pool=XSS, max_parallelism=3)
    tally(now_minute() - 1, pool=XSS, waiting=1)
    told = ask(admin_client, pool=XSS)
    assert (pool_of(told, XSS)["pool"], told["history"]["waiting"][0]["pool"]) == (XSS, XSS)
    assert XSS not in admin_client.get(reverse(PAGE), {"pool": XSS, "database": XSS}).content.decode()


# Why it waits -------------------------------------------------------------------------------------------------------


def test_the_oldest_works_that_wait_are_told_with_their_reason_and_where_to_find_them(loop: Loop, admin_client: Client) -> None:
    loop.configure(0)
    ids = [given(S1, due_in=-10 * ago) for ago in range(1, 25)]
    later = given(S1, due_in=36_000)
    Work.objects.filter(id=ids[-1]).update(name=XSS)
    works = ask(admin_client, WAITING, pool=POOL)["works"]
    assert [one["id"] for one in works] == [str(one) for one in reversed(ids)][: overview.WAITING_MAX]
    assert (works[0]["name"], works[0]["function"]) == (XSS, "tests.states.functions.act")
    assert 24 <= works[0]["due_for_s"] < 60
    assert works[0]["url"] == reverse("admin:workpool_work_change", args=[ids[-1]])
    assert admin_client.get(works[0]["url"]).status_code == 200
    why = health.why(USING, ids)
    assert [(one["code"], one["why"]) for one in works] == [
        (why[uuid.UUID(one["id"])].code, why[uuid.UUID(one["id"])].text) for one in works
    ]
    looks.forget()
    PendingStart.objects.exclude(work_id=later).delete()
    (one,) = ask(admin_client, WAITING, pool=POOL)["works"]
    assert one["id"] == str(later) and -3600 <= one["due_for_s"] < -3500


def test_callbacks_that_wait_are_among_them(loop: Loop, admin_client: Client) -> None:
    PendingStart.objects.filter(work_id=given(S1, due_in=-50)).update(lane=Lane.CALLBACK)
    given(S1, due_in=-20)
    assert len(ask(admin_client, WAITING, pool=POOL)["works"]) == 2


# What cannot be answered --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "status", "text"),
    [
        (DATA, {"window": "year"}, 400, "There is no window 'year': it is one of hour, day, week."),
        (DATA, {"pool": "nowhere"}, 404, "There is no pool 'nowhere'."),
        (DATA, {"pool": "a\0b"}, 404, "There is no pool 'a\\x00b'."),
        (WAITING, {"pool": "nowhere"}, 404, "There is no pool 'nowhere'."),
        (WAITING, {}, 404, "There is no pool ''."),
    ],
)
def test_what_there_is_not_is_told(admin_client: Client, name: str, values: dict[str, str], status: int, text: str) -> None:
    answer = admin_client.get(reverse(name), values)
    assert (answer.status_code, answer.json()) == (status, {"error": text})


def test_a_database_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch, admin_client: Client) -> None:
    def away(using: str, pools: object = None) -> None:
        raise health.Unasked("The database 'default' cannot be asked: it is away")

    monkeypatch.setattr(health, "look", away)
    answer = admin_client.get(reverse(DATA))
    assert (answer.status_code, answer.json()) == (503, {"error": "The database 'default' cannot be asked: it is away"})
    monkeypatch.undo()
    looks.forget()

    def broken(*args: object) -> None:
        raise OperationalError("gone\naway")

    monkeypatch.setattr(tallies, "series", broken)
    answer = admin_client.get(reverse(DATA))
    assert (answer.status_code, answer.json()) == (503, {"error": "The database cannot be asked: gone away"})


# What it costs ------------------------------------------------------------------------------------------------------


def statements(name: str, **values: str) -> int:
    ask_for = {DATA: lambda: overview.data(USING, "week", values.get("pool")), WAITING: lambda: overview.waiting(USING, POOL)}[name]
    looks.forget()
    with CaptureQueriesContext(connection) as captured:
        ask_for()
    assert all(one["sql"].upper().lstrip().startswith("SELECT") for one in captured)
    return len(captured)


def test_the_statements_depend_on_neither_pools_nor_rows(here: None, loop: Loop) -> None:
    given(S1)
    given(S2, worker_id=loop.worker.id)
    tally(now_minute(), succeeded=1)
    few = [statements(DATA), statements(DATA, pool=POOL), statements(WAITING)]
    for number in range(40):
        pool = f"pool-{number}"
        Globals.objects.create(pool=pool, max_parallelism=1)
        InternalState.objects.create(pool=pool)
        PendingStart.objects.filter(work_id=given(S1)).update(pool=pool)
        for minute in range(20):
            tally(now_minute() - 13 * minute, pool=pool, succeeded=1, waiting=3)
    for _ in range(30):
        given(S1)
        given(S2, worker_id=loop.worker.id)
    assert [statements(DATA), statements(DATA, pool=POOL), statements(WAITING)] == few
    # Where counts must be told the name of each pool, one statement asks for the names.
    assert few[0] <= (15 if database(USING).correlates else 16)


def test_all_who_look_at_once_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"looks": 0, "series": 0}
    look, series = health.look, tallies.series

    def one_look(using: str) -> Any:
        counted["looks"] += 1
        return look(using)

    def one_series(*args: Any) -> Any:
        counted["series"] += 1
        return series(*args)

    monkeypatch.setattr(health, "look", one_look)
    monkeypatch.setattr(tallies, "series", one_series)
    monkeypatch.setattr(looks, "NOW_FOR", 60.0)
    together = threading.Barrier(10)

    def viewer(number: int) -> int:
        together.wait()
        try:
            return len(overview.data(USING, "day", POOL if number % 2 else None)["pools"])
        finally:
            connection.close()

    with ThreadPoolExecutor(10) as threads:
        assert sorted(threads.map(viewer, range(10))) == [1] * 5 + [2] * 5
    assert counted == {"looks": 1, "series": 1}


def test_what_could_not_be_read_is_not_kept_as_long_as_what_could(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "FAILURE_FOR", 0.0)
    shared: looks.Fresh[int] = looks.Fresh()

    def fail() -> int:
        raise OperationalError("away")

    with pytest.raises(OperationalError):
        shared.get(1000, fail)
    assert [shared.get(1000, lambda: 1), shared.get(1000, lambda: 2)] == [1, 1]


# What the browser gets ----------------------------------------------------------------------------------------------


def test_nothing_of_the_page_needs_a_script_or_a_style_in_it(admin_client: Client) -> None:
    page = admin_client.get(reverse(PAGE)).content.decode()
    assert [script for script in re.findall(r"<script[^>]*>", page) if " src=" not in script] == []
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
    assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//", page)


def test_names_get_into_the_page_as_text_only() -> None:
    own = (STATIC / "dashboard.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org)", own)
    assert 'setAttribute("style"' not in own and "cssText" not in own


def test_all_that_the_page_names_is_there(admin_client: Client, settings: Any, tmp_path: Path) -> None:
    page = admin_client.get(reverse(PAGE)).content.decode()
    named = [
        name
        for name in re.findall(rf'(?:src|href)="/?{settings.STATIC_URL.strip("/")}/([^"]+)"', page)
        if name.startswith("django_workpool")
    ]
    assert len(named) == 4
    assert all(finders.find(name) for name in named)
    # Names with a digest of what they hold: each file is read, and what it names must be there.
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}}
    settings.STATIC_ROOT = str(tmp_path)
    call_command("collectstatic", interactive=False, verbosity=0)
    kept = json.loads((tmp_path / "staticfiles.json").read_text())["paths"]
    assert set(named) <= set(kept)


def test_the_library_of_the_charts_is_the_one_that_its_folder_names_with_its_licence() -> None:
    (folder,) = STATIC.glob("uplot-*")
    version = folder.name.removeprefix("uplot-")
    assert f"(v{version})" in (folder / "uPlot.iife.min.js").read_text()[:200]
    assert "MIT" in (folder / "LICENSE").read_text()


def test_running_rows_of_works_that_have_ended_are_told(loop: Loop, admin_client: Client) -> None:
    given(S2, worker_id=loop.worker.id)
    Work.objects.all().delete()
    assert RunningWork.objects.count() == 1
    assert [run["function"] for run in ask(admin_client)["workers"][0]["runs"]] == [""]
