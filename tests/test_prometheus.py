"""What Prometheus is told, as its own library reads it."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from django_workpool import Workpool, call, prometheus
from django_workpool.conf import database_aliases
from django_workpool.database import database
from django_workpool.models import Globals, InternalState, Lead, Tally
from django_workpool.prometheus import WorkpoolCollector, metrics
from django_workpool.types import Lane

from .conftest import ROOT
from .second import SECOND, second_database, transactional_db  # noqa: F401 - a fixture
from .states import functions
from .states.driver import FAILED, SUCCESS, Loop, complete
from .states.rows import USING, run_of

pytestmark = pytest.mark.usefixtures("transactional_db")

#: Sample -> labels, as pairs -> value.
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


@pytest.fixture(autouse=True)
def no_lock_is_left() -> Iterator[None]:
    yield
    database(USING).release_lead_lock()


def exported(collector: WorkpoolCollector | None = None) -> Samples:
    registry = CollectorRegistry()
    registry.register(collector or WorkpoolCollector())
    return read(generate_latest(registry).decode())


def read(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(pool: str = "default", **labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"database": "default", "pool": pool, **labels}.items()))


def test_figures_of_pools_and_of_their_database() -> None:
    loop = Loop()
    Lead.objects.update(owner=loop.worker.process, expires_ms=loop.db.clock_ms() + 60_000)
    loop.owner = loop.worker.process
    loop.db.take_lead_lock()
    ids = Workpool().enqueue_many(functions.act_retried, [call()] * 3)
    loop.settle()
    complete(run_of(ids[0]), SUCCESS)
    complete(run_of(ids[1]), FAILED)
    loop.settle()
    Workpool().configure(max_parallelism=2)
    Workpool().enqueue(functions.act)
    Tally.objects.create(pool="default", lane=Lane.CALLBACK, minute=5, failed=2, started=9, lag_1s=9)
    Tally.objects.create(pool="default", minute=5, returned=3, requeued=4, canceled=5, failed=6, lag_10min=1, lag_longer=1, started=2)
    found = exported()
    alone = (("database", "default"),)
    assert {name: found[f"workpool_{name}"] for name in ("up", "well", "leader_present", "workers_alive")} == {
        "leader_present": {alone: 1},
        "up": {alone: 1},
        "well": {alone: 1},
        "workers_alive": {alone: 1},
    }
    assert found["workpool_max_parallelism"][of()] == 2
    assert (found["workpool_waiting"][of()], found["workpool_running"][of()]) == (2, 1)
    assert found["workpool_due"][of()] in (1, 2)
    assert found["workpool_waiting"][of("imports")] == 0
    assert found["workpool_lag_seconds"][of()] >= 0
    assert found["workpool_started_total"] == {of(): 5}
    assert found["workpool_completed_total"] == {of(status="success"): 1, of(status="failed"): 6, of(status="canceled"): 5}
    assert found["workpool_callbacks_total"] == {of(status="success"): 0, of(status="failed"): 2, of(status="canceled"): 0}
    counters = {name: found[f"workpool_{name}_total"][of()] for name in ("attempts_failed", "retried", "returned", "requeued")}
    assert counters == {"attempts_failed": 1, "retried": 1, "returned": 3, "requeued": 4}
    buckets = {dict(labels)["le"]: value for labels, value in found["workpool_start_lag_seconds_bucket"].items()}
    bounds = ["0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "10.0", "60.0", "600.0", "+Inf"]
    assert list(buckets) == bounds
    assert (buckets["60.0"], buckets["600.0"], buckets["+Inf"]) == (3, 4, 5)
    assert list(buckets.values()) == sorted(buckets.values())


def test_who_leads_is_told() -> None:
    assert exported()["workpool_leader_present"] == {(("database", "default"),): 0}
    assert exported()["workpool_well"] == {(("database", "default"),): 1}


def test_the_number_of_statements_does_not_depend_on_the_number_of_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    original = prometheus._read

    def count(execute: Any, sql: str, *rest: Any) -> Any:
        # A new connection has statements of its own on some databases: they ask no table of ours.
        if "workpool_" in sql:
            statements.append(sql)
        return execute(sql, *rest)

    def counted(using: str, answer: Any) -> None:
        with connections[using].execute_wrapper(count):
            original(using, answer)

    monkeypatch.setattr(prometheus, "_read", counted)
    Loop()
    exported()
    few = len(statements)
    for number in range(50):
        Globals.objects.create(pool=f"pool-{number}", max_parallelism=1)
        InternalState.objects.create(pool=f"pool-{number}")
        Tally.objects.create(pool=f"pool-{number}", minute=5, started=1)
    statements.clear()
    assert len(exported()["workpool_started_total"]) == 50
    # What is asked of health has a connection of its own, and a test of its own.
    assert len(statements) == few == 1


@pytest.mark.parametrize("away", ["away", SECOND])
def test_a_database_that_cannot_be_asked_is_down_and_no_error(test_database_url: str, away: str) -> None:
    """Nobody is at its address, or it has no tables."""
    with second_database(test_database_url, "sqlite") if away == SECOND else unreachable():
        found = exported(WorkpoolCollector(["default", away]))
        assert found["workpool_up"] == {(("database", "default"),): 1, (("database", away),): 0}
        assert found["workpool_workers_alive"] == {(("database", "default"),): 0}


class unreachable:
    """A database at whose address nobody is."""

    def __enter__(self) -> None:
        connections.settings["away"] = {
            **connections.settings["default"],
            "ENGINE": "django.db.backends.postgresql",
            "HOST": "127.0.0.1",
            "PORT": "1",
            "OPTIONS": {},
        }

    def __exit__(self, *_: object) -> None:
        del connections.settings["away"]


def test_a_database_that_does_not_answer_is_asked_by_one_thread_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []
    monkeypatch.setattr(prometheus, "_read", lambda using, answer: asked.append((using, answer)))
    collector = WorkpoolCollector(timeout=0.05)
    for _ in range(3):
        assert exported(collector)["workpool_up"] == {(("database", "default"),): 0}
    ((_, answer),) = asked
    answer.set_exception(TimeoutError())
    exported(collector)
    assert len(asked) == 2


def test_registering_asks_nobody_and_names_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_read", lambda using, answer: pytest.fail("asked"))
    registry = CollectorRegistry(auto_describe=True)
    registry.register(WorkpoolCollector())
    with pytest.raises(ValueError, match="workpool_"):
        registry.register(WorkpoolCollector())


def test_all_databases_with_pools_are_asked(test_database_url: str) -> None:
    with (
        second_database(test_database_url, "sqlite"),
        override_settings(WORKPOOLS={"default": {"FUNCTIONS": ["tests"]}, "far": {"DATABASE": SECOND}}),
    ):
        call_command("migrate", database=SECOND, verbosity=0)
        Tally.objects.using(SECOND).create(pool="far", minute=5, started=7)
        assert set(database_aliases()) == {"default", SECOND}
        found = exported()
        assert found["workpool_up"] == {(("database", "default"),): 1, (("database", SECOND),): 1}
        assert found["workpool_started_total"] == {(("database", SECOND), ("pool", "far")): 7}


def view(method: str = "get", **headers: str) -> HttpResponse:
    return metrics(getattr(RequestFactory(headers=headers), method)("/metrics"))


def test_the_view_answers_in_the_format_that_is_asked_for() -> None:
    prometheus._registry.cache_clear()
    Tally.objects.create(pool="default", minute=5, started=7, lag_100ms=7)
    plain = view()
    assert (plain.status_code, plain["Content-Type"].partition(";")[0]) == (200, "text/plain")
    assert read(plain.content.decode())["workpool_started_total"] == {of(): 7}
    # Nothing of the process: only the pools.
    assert set(name.partition("_")[0] for name in read(plain.content.decode())) == {"workpool"}
    opened = view(Accept="application/openmetrics-text; version=1.0.0")
    assert opened["Content-Type"].startswith("application/openmetrics-text")
    families = {family.name: family for family in read_openmetrics(opened.content.decode())}
    assert families["workpool_started"].samples[0].value == 7
    assert families["workpool_start_lag_seconds"].type == "histogram"
    assert view("post").status_code == 405


def test_without_the_library_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import django; django.setup()\n"
        "try:\n    import django_workpool.prometheus\nexcept ImportError as error:\n    print(error)"
    )
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PATH": "", "PYTHONPATH": str(ROOT)}
    told = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "pip install 'django_workpool[prometheus]'" in told
