"""Streams of real works, under ASGI and WSGI, as servers and browsers see them."""

import asyncio
import http.client
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection

from django_workpool import Workpool
from django_workpool.site import status_url, streams

from .live import PATIENCE, Live, live_main, transactional_db, wait_for_quiet
from .works.progress import change_so_far, come_far
from .works.tasks import fail

__all__ = ["transactional_db"]
pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.urls("tests.works.site")]


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` for the tests of this module."""
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), "--threads", "4") as running:
        yield running


class Events:
    """Reads a stream as browsers do; calls back with each event's data."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self.tell = tell
        self.ids: list[str] = []
        self._rest = ""

    def feed(self, piece: bytes) -> None:
        *blocks, self._rest = (self._rest + piece.decode()).split("\n\n")
        for block in blocks:
            fields = dict(line.partition(":")[::2] for line in block.split("\n") if line and not line.startswith(":"))
            if "data" in fields:
                self.ids.append(fields.get("id", "").strip())
                self.tell(json.loads(fields["data"]))


def follow_by_asgi(url: str, events: Events) -> dict[str, str]:
    """Ask the site as an ASGI server does, until it has sent all; return the headers."""

    async def ask() -> dict[str, str]:
        scope = {"type": "http", "method": "GET", "path": url, "query_string": b"", "headers": [(b"host", b"localhost")]}
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        incoming.put_nowait({"type": "http.request", "body": b""})
        headers: dict[str, str] = {}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                assert message["status"] == 200
                headers.update({name.decode(): value.decode() for name, value in message["headers"]})
            events.feed(message.get("body", b""))

        await asyncio.wait_for(get_asgi_application()(scope, incoming.get, send), 2 * PATIENCE)  # type: ignore[arg-type]
        return headers

    return asyncio.run(ask())


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


def follow_by_wsgi(url: str, events: Events) -> dict[str, str]:
    """Ask the site by a WSGI server, on a socket, again and again until the work has ended; return the headers."""
    server = make_server("127.0.0.1", 0, get_wsgi_application(), Server, Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    try:
        while "finished" not in events.ids:
            client.request("GET", url)
            answer = client.getresponse()
            assert answer.status == 200
            while piece := answer.read1():
                events.feed(piece)
            client.close()
        return dict(answer.headers)
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE)


FOLLOW = [follow_by_asgi, follow_by_wsgi]


@pytest.mark.slow
@pytest.mark.parametrize("follow", FOLLOW)
@pytest.mark.parametrize("function", [come_far, change_so_far], ids=["action", "mutation"])
def test_a_stream_follows_a_work_to_its_end(follow: Any, function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EVERY", 0.1)
    shows = function is come_far or connection.vendor != "sqlite"
    pool = Workpool()
    pool.configure(max_parallelism=0)
    work_id = pool.enqueue(function, str(tmp_path), "secret", 3, 4)
    seen: list[tuple[str, Any, Any]] = []

    def tell(told: Any) -> None:
        assert set(told) == {"state", "kind", "progress"}
        seen.append((told["state"], told["kind"], told["progress"] and told["progress"]["fraction"]))
        if told["state"] == "pending":
            # In a thread: under ASGI this is the event loop's.
            run_elsewhere(lambda: pool.configure(max_parallelism=10))
        elif told["progress"] or not shows:
            (tmp_path / "go").touch()

    events = Events(tell)
    headers = {name.lower(): value for name, value in follow(status_url(work_id) + "events/", events).items()}
    assert (headers["content-type"], headers["x-accel-buffering"]) == ("text/event-stream", "no")
    assert "no-store" in headers["cache-control"]
    assert (seen[0], seen[-1]) == (("pending", None, None), ("finished", "success", None))
    # As told by a long look, the pool's first state may be missed between two; what holds until the test says go is not.
    assert ("running", None, 0.75 if shows else None) in seen
    assert len(set(seen)) == len(seen) and events.ids[-1] == "finished" and set(events.ids[:-1]) == {""}
    wait_for_quiet()


def run_elsewhere(step: Callable[[], None]) -> None:
    def run() -> None:
        step()
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)


@pytest.mark.parametrize("follow", FOLLOW)
def test_a_failure_ends_a_stream_without_its_text(follow: Any) -> None:
    work_id = Workpool().enqueue(fail, "secret")
    seen: list[Any] = []
    follow(status_url(work_id) + "events/", Events(seen.append))
    assert seen[-1] == {"state": "finished", "kind": "failed", "progress": None} and "secret" not in str(seen)
    shown: list[Any] = []
    follow(status_url(work_id, show_result=True) + "events/", Events(shown.append))
    assert shown == [{"state": "finished", "kind": "failed", "progress": None, "value": None, "error": "secret"}]
    wait_for_quiet()


@pytest.mark.slow
def test_many_streams_at_once_under_asgi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them waits for another, and none keeps a connection."""
    monkeypatch.setattr(streams, "EVERY", 0.1)
    ids = [Workpool().enqueue(come_far, str(tmp_path), str(number), number, 20) for number in range(8)]
    seen: dict[uuid.UUID, list[str]] = {one: [] for one in ids}

    def follow(work_id: uuid.UUID) -> None:
        def tell(told: Any) -> None:
            seen[work_id].append(told["state"])
            # When each has told something.
            if all(seen.values()):
                (tmp_path / "go").touch()

        follow_by_asgi(status_url(work_id) + "events/", Events(tell))

    threads = [threading.Thread(target=follow, args=(one,)) for one in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert [states[-1] for states in seen.values()] == ["finished"] * 8
    wait_for_quiet()


@pytest.mark.parametrize("follow", [follow_by_asgi])
def test_a_stream_that_lasts_too_long_ends_before_the_work(follow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "EVERY", 0.05)
    monkeypatch.setattr(streams, "LASTS", 0.3)
    work_id = Workpool().enqueue(come_far, str(tmp_path), "a", 1, 4)
    events = Events(lambda told: None)
    follow(status_url(work_id) + "events/", events)
    assert "finished" not in events.ids
    (tmp_path / "go").touch()
    wait_for_quiet()
