"""What users of a site see: signed links, what they tell and what never, streams, and the progress bar's template tag."""

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.core import signing
from django.core.management import call_command
from django.db import DatabaseError, connections
from django.template import engines
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import resolve

from django_workpool import InvalidWork, Progress, RunResult, Status, UnknownPool, Workpool
from django_workpool.models import PendingStart, RunningWork
from django_workpool.models import Progress as Row
from django_workpool.site import status_url, streams
from django_workpool.site.answers import told
from django_workpool.site.links import SALT, Link
from django_workpool.site.streams import Stream
from django_workpool.testing import run_work
from django_workpool.types import ResultKind, WorkState

from .second import SECOND, second_database
from .works.tasks import fail, note

pytestmark = pytest.mark.urls("tests.works.site")
SECRET = "what only the owner may see"
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["GET", "events"])
def suffix(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "GET" else "events/"


def ask(url: str) -> Any:
    answer = Client().get(url)
    assert answer.status_code == 200, answer.content
    return answer.json()


def run_to(work_id: uuid.UUID, done: float, total: float, using: str = "default", pool: str = "default") -> None:
    """Mark a work as running, so far."""
    PendingStart.objects.using(using).filter(work_id=work_id).delete()
    row = RunningWork.objects.using(using).create(work_id=work_id, pool=pool, lane=0, worker_id=0, due=0, started=AT)
    Row.objects.using(using).create(work_id=work_id, token=row.pk, done=done, total=total, said=AT)


# Links -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_link_tells_the_state_and_the_progress() -> None:
    work_id = Workpool().enqueue(note, SECRET)
    url = status_url(work_id)
    assert ask(url) == {"state": "pending", "kind": None, "progress": None}
    run_to(work_id, 1, 4)
    said = {"done": 1.0, "total": 4.0, "fraction": 0.25, "said": "2026-01-01T00:00:00+00:00"}
    assert ask(url) == {"state": "running", "kind": None, "progress": said}
    assert ask(status_url(str(work_id), show_result=True)) == {
        "state": "running",
        "kind": None,
        "progress": said,
        "value": None,
        "error": "",
    }


@pytest.mark.django_db
def test_how_a_work_has_ended_is_told_and_with_what_only_if_the_signer_wants_it() -> None:
    good, bad, stopped = Workpool().enqueue(note, SECRET), Workpool().enqueue(fail, SECRET), Workpool().enqueue(note, SECRET)
    Workpool().cancel(stopped)
    run_work()
    for work_id, kind, value in ((good, "success", SECRET), (bad, "failed", None), (stopped, "canceled", None)):
        for url in (status_url(work_id), status_url(work_id) + "events/"):
            answer = Client().get(url)
            text = answer.getvalue().decode()
            assert SECRET not in text and SECRET not in str(answer.headers) and SECRET not in url
        assert ask(status_url(work_id)) == {"state": "finished", "kind": kind, "progress": None}
        shown = ask(status_url(work_id, show_result=True))
        assert (shown["kind"], shown["value"], SECRET in shown["error"]) == (kind, value, kind == "failed")


@pytest.mark.django_db
def test_each_request_takes_a_fixed_number_of_statements(django_assert_num_queries: Any) -> None:
    work_id = Workpool().enqueue(note, "a")
    for done in (1, 2):
        with django_assert_num_queries(1):
            ask(status_url(work_id))
        run_to(work_id, done, 4) if done == 1 else None
    run_work() if RunningWork.objects.all().delete() else None
    with django_assert_num_queries(2):
        ask(status_url(uuid.uuid4()))
    with django_assert_num_queries(0):
        assert Client().get(status_url(work_id) + "x").status_code == 404


@pytest.mark.django_db
def test_a_link_that_was_changed_leads_nowhere(suffix: str) -> None:
    prefix, _, rest = status_url(uuid.uuid4()).partition("/work/")
    text = rest.rstrip("/")
    gone = Client().get(f"{prefix}/work/nothing/{suffix}")
    assert gone.status_code == 404
    for place in range(0, len(text), 7):
        other = "A" if text[place] != "A" else "B"
        assert Client().get(f"{prefix}/work/{text[:place]}{other}{text[place + 1 :]}/{suffix}").status_code == 404
    # Signed by the same site for something else, or by another version of this one.
    for foreign in (
        signing.dumps([uuid.uuid4().hex, "default", None, False], salt="other"),
        signing.dumps([uuid.uuid4().hex, "default", None, False]),
        signing.dumps(["no id", "default", None, False], salt=SALT),
        signing.dumps([uuid.uuid4().hex, "nowhere", None, False], salt=SALT),
        signing.dumps([uuid.uuid4().hex, 7, None, False], salt=SALT),
        signing.dumps([uuid.uuid4().hex, "default", "soon", False], salt=SALT),
        signing.dumps("text", salt=SALT),
        signing.dumps(None, salt=SALT),
    ):
        answer = Client().get(f"{prefix}/work/{foreign}/{suffix}")
        assert (answer.status_code, answer.content) == (404, gone.content)


@pytest.mark.django_db
@pytest.mark.parametrize(("max_age", "after", "status"), [({}, 6.9, 200), ({}, 7.1, 404), ({"max_age": None}, 4000, 200)])
def test_a_link_ends(max_age: dict[str, Any], after: float, status: int, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = status_url(uuid.uuid4(), **max_age) + suffix
    now = signing.time.time()  # type: ignore[attr-defined]
    monkeypatch.setattr("django.core.signing.time.time", lambda: now + after * 86400)
    assert Client().get(url).status_code == status


@pytest.mark.django_db
def test_a_link_is_for_one_pool(settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}, "other": {}}
    work_id = Workpool().enqueue(note, "a")
    # As of a work that is unknown.
    url = status_url(work_id, "other")
    assert ask(url) == {"state": "finished", "kind": None, "progress": None}
    settings.WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}}
    assert Client().get(url).status_code == 404


@pytest.mark.parametrize("wrong", ["7", None, 7, ""])
def test_links_are_made_for_works_only(wrong: Any) -> None:
    with pytest.raises(InvalidWork, match="not the id of a work"):
        status_url(wrong)
    with pytest.raises(UnknownPool):
        status_url(uuid.uuid4(), "nowhere")
    for max_age in (7, timedelta(0), timedelta(seconds=-1), "7"):
        with pytest.raises(InvalidWork, match="max_age"):
            status_url(uuid.uuid4(), max_age=max_age)  # type: ignore[arg-type]


@pytest.mark.django_db
def test_links_are_read_and_nothing_else(suffix: str) -> None:
    url = status_url(uuid.uuid4()) + suffix
    for method in ("post", "put", "patch", "delete"):
        assert getattr(Client(), method)(url).status_code == 405
    head, got = Client().head(url), Client().get(url)
    assert (head.status_code, head.content, head.headers["Content-Type"]) == (200, b"", got.headers["Content-Type"])
    assert {"no-store", "no-cache", "private"} <= set(got.headers["Cache-Control"].replace(" ", "").split(","))


@pytest.mark.django_db
def test_a_pool_in_another_database_is_asked_there(django_db_blocker: Any, test_database_url: str, settings: Any) -> None:
    with django_db_blocker.unblock(), second_database(test_database_url, "same"):
        call_command("migrate", database=SECOND, verbosity=0)
        settings.WORKPOOLS = {"far": {"DATABASE": SECOND, "FUNCTIONS": ["tests"]}, "default": {}}
        work_id = Workpool("far").enqueue(note, "a")
        run_to(work_id, 3, 4, SECOND, "far")
        url = status_url(work_id, "far")
        with CaptureQueriesContext(connections["default"]) as here:
            assert ask(url)["progress"]["fraction"] == 0.75
            assert '"fraction": 0.75' in Stream(Link(work_id, "far", False), 10).look()
            page = Client().get("/works", {"work": work_id, "pool": "far"})
            (found,) = re.findall(r'data-status="([^"]+)"', page.content.decode())
            assert ask(found)["progress"]["fraction"] == 0.75
        assert len(here) == 0


# Streams ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Status]]:
    """What the database tells, one look after the other."""
    told_by_rows: list[Status] = []
    monkeypatch.setattr(streams, "answer", lambda link: told(told_by_rows.pop(0)))
    yield told_by_rows


PENDING, RUNNING = Status(state=WorkState.PENDING), Status(state=WorkState.RUNNING)
ENDED = Status(state=WorkState.FINISHED, result=RunResult(kind=ResultKind.SUCCESS, value=SECRET))


@pytest.mark.django_db
def test_a_stream_tells_what_has_changed(found: list[Status], monkeypatch: pytest.MonkeyPatch) -> None:
    half = Status(state=WorkState.RUNNING, progress=Progress(done=1, total=2, said=AT))
    found[:] = [PENDING, PENDING, RUNNING, half, half, ENDED]
    monkeypatch.setattr(streams, "EVERY", 0)
    first, *pieces = streams.events_in_thread(Link(uuid.uuid4(), "default", False))
    assert first == "retry: 2000\n\n"
    assert [re.findall(r'"state": "(\w+)"|"fraction": ([\d.]+)', piece) for piece in pieces] == [
        [("pending", "")],
        [("running", "")],
        [("running", ""), ("", "0.5")],
        [("finished", "")],
    ]
    assert [piece.split("\n")[1] for piece in pieces] == ["id", "id", "id", "id: finished"]
    assert all(piece.startswith("event: state\n") and piece.endswith("\n\n") and piece.count("\n\n") == 1 for piece in pieces)


@pytest.mark.django_db
def test_a_stream_is_not_silent_and_not_endless(found: list[Status], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("django_workpool.site.streams.time.monotonic", lambda: clock[0])
    found[:] = [RUNNING] * 5
    stream, sent = Stream(Link(uuid.uuid4(), "default", False), 60), []
    for at in (100, 114, 115, 129, 160):
        clock[0] = at
        sent.append(stream.look())
        assert stream.over == (at == 160)
    assert [piece[:6] for piece in sent] == ["event:", "", ":\n\n", "", ":\n\n"]


@pytest.mark.django_db
def test_a_stream_ends_when_the_database_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(link: Link) -> Any:
        raise DatabaseError("away")

    monkeypatch.setattr(streams, "answer", fails)
    assert list(streams.events_in_thread(Link(uuid.uuid4(), "default", False))) == ["retry: 2000\n\n"]


@pytest.mark.django_db
def test_who_has_the_end_need_not_come_again() -> None:
    url = status_url(uuid.uuid4()) + "events/"
    answer = Client().get(url)
    assert (answer.headers["Content-Type"], answer.headers["X-Accel-Buffering"]) == ("text/event-stream", "no")
    assert "id: finished\n" in answer.getvalue().decode()
    again = Client().get(url, headers={"Last-Event-ID": "finished"})
    assert (again.status_code, again.getvalue()) == (204, b"")


def test_the_kind_of_server_decides_how_a_stream_is_sent() -> None:
    url = status_url(uuid.uuid4()) + "events/"
    view, args, kwargs = resolve(url)
    assert view(RequestFactory().get(url), *args, **kwargs).is_async is False
    assert view(AsyncRequestFactory().get(url), *args, **kwargs).is_async is True


# The tag ---------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """All tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def render(**context: Any) -> Elements:
    template = "{% load workpool %}{% workpool_progress work pool=pool label=label status=status stream=stream %}"
    shown = {"work": uuid.uuid4(), "pool": "default", "label": "", "status": None, "stream": None, **context}
    return Elements(engines["django"].from_string(template).render(shown))


XSS = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 }}"


def test_a_label_stays_text() -> None:
    page = render(label=XSS)
    assert [tag for tag, _ in page.tags] == ["workpool-progress", "span", "progress", "span", "span"]
    assert page.of("progress")[0]["aria-label"] == XSS and XSS in page.text


def test_pages_run_nothing_inline_and_ask_no_database() -> None:
    """Several bars on one page; the tests of this function may not use a database at all."""
    ids = [uuid.uuid4(), uuid.uuid4()]
    answer = Client().get("/works", {"work": ids, "label": XSS})
    page = Elements(answer.content.decode())
    assert len(page.of("workpool-progress")) == 2
    assert page.of("script") == [{"src": "/static/django_workpool/progress.js", "defer": None}]
    assert page.of("link") == [{"rel": "stylesheet", "href": "/static/django_workpool/progress.css"}]
    assert not [tag for tag, attrs in page.tags if "style" in attrs or any(name.startswith("on") for name in attrs)]
    for name in ("progress.js", "progress.css"):
        assert finders.find(f"django_workpool/{name}")


def test_the_script_sets_text_only() -> None:
    script = Path(str(finders.find("django_workpool/progress.js"))).read_text()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|\.style\b", script)


@pytest.mark.parametrize(
    ("status", "state", "value", "text"),
    [
        (None, "", None, ""),
        (PENDING, "pending", None, "waiting"),
        (RUNNING, "running", None, "running"),
        (Status(state=WorkState.RUNNING, progress=Progress(done=2, total=3, said=AT)), "running", "0.6667", "running 66 %"),
        (ENDED, "success", "1.0000", "finished"),
        (Status(state=WorkState.FINISHED, result=RunResult(kind=ResultKind.FAILED, error=SECRET)), "failed", "0.0000", "failed"),
        (Status(state=WorkState.FINISHED, result=RunResult(kind=ResultKind.CANCELED, error=SECRET)), "canceled", "0.0000", "canceled"),
        (Status(state=WorkState.FINISHED), "finished", "1.0000", "finished"),
    ],
)
def test_a_status_is_shown_before_the_browser_asks(status: Status | None, state: str, value: str | None, text: str, settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = "de", True
    page = render(status=status)
    assert page.of("workpool-progress")[0]["data-state"] == state
    assert page.of("progress")[0].get("value") == value
    assert " ".join(page.text.split()) == text
    assert SECRET not in str(page.tags)


def test_a_bar_listens_where_a_stream_costs_no_thread_of_the_server() -> None:
    from .works.site import page

    def listens(request: Any) -> bool:
        (bar,) = Elements(page(request, works=[uuid.uuid4()], pool="default", label="").content.decode()).of("workpool-progress")
        assert str(bar["data-status"]).startswith("/work/")
        return "data-events" in bar

    assert listens(AsyncRequestFactory().get("/")) and not listens(RequestFactory().get("/"))
    assert "data-events" in render(stream=True).of("workpool-progress")[0]
    assert json.loads(json.dumps(told(ENDED))) == {"state": "finished", "kind": "success", "progress": None}
