"""Rows that must always be there are gone, as somebody has emptied tables under a running process: it makes them again."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_workpool import Workpool, enqueue
from django_workpool.models import Globals, InternalState, Lead, RunStatus, Worker

from .live import Live, live_main, result, transactional_db, wait_until
from .works.tasks import note

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

OF_A_POOL = (Globals, InternalState, RunStatus)
SINGLE = (*OF_A_POOL, Lead)


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` for all tests of this module."""
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main")) as running:
        yield running


def empty(*models: type) -> None:
    with connection.cursor() as cursor:
        for model in models:
            cursor.execute(f"DELETE FROM {model._meta.db_table}")  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(
    "models", [*((one,) for one in SINGLE), SINGLE, (*SINGLE, Worker)], ids=lambda models: "-".join(one.__name__ for one in models)
)
def test_work_goes_on_after_rows_are_gone(live: Live, models: tuple[type, ...]) -> None:
    Workpool().configure(max_parallelism=7)
    result(enqueue(note, "before"))

    empty(*models)

    assert result(enqueue(note, "after")).kind == "success"
    # Without a status alone the loop does not ask for it, and whoever enqueues kicks: the next leader makes it again.
    made = [model for model in OF_A_POOL if models != (model,) or model is not RunStatus]
    wait_until(lambda: Lead.objects.count() == 1 and all(model.objects.filter(pool="default").exists() for model in made))
    # What only an operator knew is lost with its row: the limit is that of the settings again.
    assert (Globals.objects.get(pool="default").max_parallelism == 7) == (Globals not in models)
    assert live.main.process.poll() is None


@pytest.mark.slow
def test_work_goes_on_after_flush(live: Live) -> None:
    result(enqueue(note, "before"))

    call_command("flush", interactive=False, verbosity=0)

    assert result(enqueue(note, "after")).kind == "success"
    assert live.main.process.poll() is None
