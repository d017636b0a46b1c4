"""Which events works have, with which fields, and from which level on."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from django_workpool import Workpool, call, conf, configuration, enqueue, eventlog
from django_workpool.models import Globals
from django_workpool.testing import run_work

from .test_docs import EVENTS
from .works.tasks import fail, note
from .works.traces import traced_end, traced_retry

Told = list[dict[str, Any]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """All events from DEBUG on."""
    monkeypatch.setenv("WORKPOOL_LOG_LEVEL", "DEBUG")
    monkeypatch.setattr(eventlog, "_levels", {})
    monkeypatch.setattr(eventlog, "_by_database", {})
    records: Told = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert "\n" not in record.getMessage() and record.getMessage().isascii()
            records.append({"level": record.levelname, **record.workpool})  # type: ignore[attr-defined]

    keep, logger = Keep(), logging.getLogger("django_workpool.events")
    logger.addHandler(keep)
    yield records
    logger.removeHandler(keep)


def of(told: Told, event: str) -> Told:
    return [{key: value for key, value in one.items() if key != "event"} for one in told if one["event"] == event]


@pytest.mark.django_db(transaction=True)
def test_each_enqueued_work_is_told_of_after_the_commit(told: Told) -> None:
    with transaction.atomic():
        ids = Workpool("imports").using(name="one\nevent=forged").enqueue_many(note, [call("secret"), call("secret")])
        assert told == []
    expected = [{"level": "DEBUG", "pool": "imports", "work_id": one, "name": "one\nevent=forged"} for one in ids]
    assert of(told, "enqueued") == expected
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        enqueue(note)
        raise ZeroDivisionError
    assert of(told, "enqueued") == expected
    assert "secret" not in str(told)


@pytest.mark.django_db(transaction=True)
def test_a_work_that_is_kept_is_not_told_of_again(told: Told) -> None:
    pool = Workpool().using(unique="key")
    assert pool.enqueue(note) == pool.enqueue(note)
    assert len(of(told, "enqueued")) == 1


@pytest.mark.django_db(transaction=True)
def test_nothing_is_prepared_where_it_is_not_wanted(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKPOOL_LOG_LEVEL", "INFO")
    with transaction.atomic():
        enqueue(note)
        (hook,) = transaction.get_connection().run_on_commit
    assert told == [] and "kick" in repr(hook)


@pytest.mark.django_db(transaction=True)
def test_the_life_of_a_work_in_events_with_all_their_fields(told: Told) -> None:
    good = enqueue(note, "secret")
    run_work()
    assert [one["event"] for one in told] == ["enqueued", "started", "completed"]
    (started,), (completed,) = of(told, "started"), of(told, "completed")
    lag = started.pop("lag_ms")
    assert isinstance(lag, int) and lag >= 0
    common = {"level": "INFO", "pool": "default", "work_id": good, "name": "tests.works.tasks.note"}
    assert started == {**common, "attempt": 1}
    assert completed == {**common, "status": "success", "attempts": 1}
    assert "secret" not in str(told)


@pytest.mark.django_db(transaction=True)
def test_all_ends_are_told_once_with_their_status_level_and_class(told: Told) -> None:
    failed, retried = enqueue(fail), enqueue(traced_retry, "once")
    canceled = Workpool().using(on_complete=traced_end).enqueue(note)
    Workpool().cancel(canceled)
    run_work(retries=True)
    ends = [(one["work_id"], one["status"], one["attempts"], one["level"], one.get("error")) for one in of(told, "completed")]
    callback = next(one["work_id"] for one in of(told, "enqueued") if one.get("callback_of") == canceled)
    assert len(ends) == 5 and set(ends) == {
        (failed, "failed", 1, "WARNING", "builtins.ValueError"),
        (retried, "retrying", 1, "WARNING", "builtins.LookupError"),
        (retried, "success", 2, "INFO", None),
        (canceled, "canceled", 0, "INFO", None),
        (callback, "success", 1, "INFO", None),
    }
    assert sorted(one["attempt"] for one in of(told, "started") if one["work_id"] == retried) == [1, 2]
    for one in told:
        assert set(one) - {"level", "event", "pool"} <= EVENTS[one["event"]][1], one


@pytest.mark.django_db(transaction=True)
def test_the_level_of_the_settings_counts_where_no_row_says_another(told: Told, settings: Any) -> None:
    settings.WORKPOOLS = {"default": {"LOG_LEVEL": "WARN", "FUNCTIONS": ["tests"]}, "imports": {}}
    assert (conf.log_level("default"), conf.log_level("imports")) == ("WARN", "DEBUG")
    assert (eventlog.is_wanted("INFO", "default"), eventlog.is_wanted("INFO", "imports")) == (False, True)
    configuration.create_rows("default")
    configuration.apply_settings("default")
    assert dict(Globals.objects.values_list("pool", "log_level")) == {"default": "WARN", "imports": ""}
    eventlog.set_levels("default", {"default": "DEBUG"})
    assert eventlog.is_wanted("DEBUG", "default"), "the row, as configure() has changed it since"
