"""Many streams of events in one process: they share a few connections to the database."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.db import connection

from django_workpool import Workpool
from django_workpool.database import database
from django_workpool.site import status_url, streams

from .live import wait_until
from .states.functions import act

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.works.site")]

CROWD = 150


@pytest.mark.slow
def test_a_crowd_of_streams_takes_few_connections(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(streams, "EVERY", 5.0)
    # None of them is to end before the last one is told, on however slow a machine.
    monkeypatch.setattr(streams, "LASTS", 110.0)
    looks, at_once, most = [0], [0], [0]
    lock, answer = threading.Lock(), streams.answer

    def looked(link: Any) -> Any:
        with lock:
            looks[0], at_once[0] = looks[0] + 1, at_once[0] + 1
            most[0] = max(most[0], at_once[0])
        try:
            return answer(link)
        finally:
            with lock:
                at_once[0] -= 1

    monkeypatch.setattr(streams, "answer", looked)
    url = status_url(Workpool().using(delay=timedelta(days=1)).enqueue(act)) + "events/"
    told = [0] * CROWD
    browsers: list[asyncio.Queue[dict[str, Any]]] = []

    async def follow(place: int) -> None:
        incoming = browsers[place]
        incoming.put_nowait({"type": "http.request", "body": b""})

        async def send(message: Any) -> None:
            told[place] += message.get("body", b"").count(b"event: state")

        scope = {"type": "http", "method": "GET", "path": url, "query_string": b"", "headers": [(b"host", b"localhost")]}
        await get_asgi_application()(scope, incoming.get, send)  # type: ignore[arg-type]

    async def leave() -> None:
        # Each is told in its turn, and goes when all have been.
        async with asyncio.timeout(streams.LASTS):
            while not all(told):
                await asyncio.sleep(0.05)
        for incoming in browsers:
            incoming.put_nowait({"type": "http.disconnect"})

    async def crowd() -> None:
        browsers.extend(asyncio.Queue() for _ in range(CROWD))
        await asyncio.gather(leave(), *map(follow, range(CROWD)))

    asyncio.run(crowd())
    assert told == [1] * CROWD
    assert most[0] <= streams.LOOKS_AT_ONCE and "a stream of events ends" not in caplog.text
    assert looks[0] >= CROWD
    if connection.vendor == "postgresql":
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        wait_until(lambda: database("default").fetch(sessions) == [(0,)])
