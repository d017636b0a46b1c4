"""Async: views under Django's own ASGI handler that enqueue, the async twins, and many coroutines at once in one process."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.asgi import get_asgi_application
from django.db import connections
from django.test import AsyncClient

from django_workpool import Workpool, call
from django_workpool.models import Archive, Globals, Work

from .live import Live, live_main, results, transactional_db, value, wait_for_quiet
from .works.coroutines import nap_together
from .works.models import Event

__all__ = ["transactional_db"]
pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.urls("tests.works.views")]

MANY = 200


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` for the tests of this module."""
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), "--threads", "2") as running:
        yield running


async def ask(path: str) -> tuple[int, Any]:
    """Send a request to the site as a server does, and return the status and what the answer holds."""
    application = get_asgi_application()
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", b"localhost")]}
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": b""})
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, incoming.get, send)  # type: ignore[arg-type]
    return sent[0]["status"], json.loads(b"".join(one.get("body", b"") for one in sent))


async def ask_all(*paths: str) -> list[tuple[int, Any]]:
    return list(await asyncio.gather(*map(ask, paths)))


def test_views_that_run_at_once_enqueue_what_a_real_process_runs() -> None:
    """On the threads that the handler gives each request: every row is committed with its work, or neither is there."""
    keys = [f"row{number}" for number in range(10)]
    answers = asyncio.run(ask_all(*[f"/row/{key}" for key in keys], "/row/fails", *[f"/plain/{key}" for key in keys]))
    assert [status for status, _ in answers] == [200] * 10 + [409] + [200] * 10
    assert [value(uuid.UUID(answer["id"])) for _, answer in answers[:10]] == keys
    assert [value(uuid.UUID(answer["id"])) for _, answer in answers[11:]] == keys
    assert {answer["state"] for _, answer in answers[11:]} <= {"pending", "running", "finished"}
    assert Event.objects.filter(name="row", key="fails").count() == 0
    assert Archive.objects.count() == 20
    wait_for_quiet()


def test_views_asked_by_djangos_async_client_do_the_same() -> None:
    async def ask_client() -> list[Any]:
        return [await AsyncClient().get(path) for path in ("/plain/client", "/row/client", "/row/fails")]

    plain, row, fails = async_to_sync(ask_client)()
    assert (plain.status_code, row.status_code, fails.status_code) == (200, 200, 409)
    assert [value(uuid.UUID(one.json()["id"])) for one in (plain, row)] == ["client", "client"]
    assert not Event.objects.filter(name="row", key="fails").exists()


def test_the_async_twins_do_what_their_names_say() -> None:
    status, told = asyncio.run(ask("/twins"))
    assert (status, told["canceled"], told["states"][1:]) == (200, [True, False], ["pending", "pending"])
    assert [one.kind for one in results(map(uuid.UUID, told["ids"]))] == ["canceled"] * 3
    assert Globals.objects.values_list("max_parallelism", "log_level").get(pool="imports") == (0, "INFO")
    Workpool("imports").configure(max_parallelism=10)
    assert connections["default"].in_atomic_block is False and Work.objects.count() == 0


def test_hundreds_of_coroutines_wait_at_once_in_one_process(live: Live) -> None:
    """Each takes a second, and ends only when all are there. ``python -m tests.checks.coroutines`` has thousands, and their time."""
    Workpool().configure(max_parallelism=MANY)
    ids = async_to_sync(Workpool().aenqueue_many)(nap_together, [call(nap_together, str(one), MANY, 1.0) for one in range(MANY)])
    assert {one.value.replace(" ", "") for one in results(ids, 60)} == {f"[{MANY},{live.main.process.pid}]"}
    wait_for_quiet()
