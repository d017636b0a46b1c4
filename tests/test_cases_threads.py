"""What functions leave on their thread, and what they raise: the next one on the same thread must not notice. One thread."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_workpool import Workpool, call

from .conftest import ROOT
from .live import Live, failures, live_main, result, results, texts, transactional_db, value, wait_for_quiet
from .works.models import Counter, Event
from .works.tasks import UNCHANGED_SESSION, ended, leave_behind, look_around, note, raise_of_class

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any, test_database_url: str, tmp_path_factory: Any) -> Iterator[Live]:
    """Run one ``workpool_main`` with one thread for all tests of this module."""
    with live_main(django_db_blocker, test_database_url, tmp_path_factory.mktemp("main"), "--threads", "1") as running:
        yield running


@pytest.mark.parametrize("what", ["transaction", "error", "atomic", "session", "thread"])
def test_next_function_finds_everything_as_after_a_start(live: Live, what: str) -> None:
    """Whatever the one before left: its result is stored, its open transaction is rolled back, its settings are gone."""
    leaver, looker = Workpool().enqueue(leave_behind, what), Workpool().enqueue(look_around)
    assert value(leaver) == 1
    assert value(looker) == {
        "autocommit": True,
        "in_atomic_block": False,
        "session": UNCHANGED_SESSION[connection.vendor],
        "zone": "UTC",
        "language": "en-us",
        "folder": str(ROOT),
        "uncommitted": 0,
    }
    assert Counter.objects.filter(name__startswith="uncommitted").count() == 0
    if what in ("transaction", "error", "atomic"):
        assert "tests.works.tasks.leave_behind left" in live.main.output()


ENDS = ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError", "MemoryError", "RecursionError"]


def test_exceptions_that_end_threads_are_failures(live: Live) -> None:
    """They fail with the name of their type; the same process goes on, and what comes next succeeds."""
    ids = Workpool().using(on_complete=ended).enqueue_many(raise_of_class, [call(name) for name in ENDS])
    for name, one in zip(ENDS, results(ids), strict=True):
        assert (one.kind, one.attempts) == ("failed", 1)
        (failure,) = failures(one.id)
        assert failure.class_path.rpartition(".")[2] == name
        assert texts("ended", one.id) == ["failed:None"]
    assert result(Workpool().enqueue(raise_of_class, "sub-thread")).kind == "success"
    assert {one.kind for one in results(Workpool().enqueue_many(note, [call(f"after {number}") for number in range(10)]))} == {"success"}
    wait_for_quiet()
    assert set(Event.objects.filter(name="thread").values_list("text", flat=True)) == {str(live.main.process.pid)}
    assert live.main.process.pid != os.getpid()
