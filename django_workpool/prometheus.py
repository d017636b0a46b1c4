"""Figures for Prometheus: ``pip install 'django_workpool[prometheus]'``.

``REGISTRY.register(WorkpoolCollector())`` adds them to what a project exports already; ``metrics`` is a view that exports nothing else.
All are read from the database when somebody asks, so any one process exports them, and counters are those of all processes.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import Error, connections
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from . import conf, health, tallies
from .tallies import Totals
from .types import Lane

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "django_workpool.prometheus needs the library prometheus_client, which is not installed here: "
        "pip install 'django_workpool[prometheus]'."
    ) from error

#: Seconds in which a database must have answered; Prometheus itself waits ten, unless it is told otherwise.
TIMEOUT = 8.0

_OF_POOL = ["database", "pool"]
#: Gauges of a database and what they tell; the same of a pool, by the field of its health; counters of a pool, by that of its totals.
_OF_DATABASES = {
    "up": "Whether the database has answered, and has the pool's tables.",
    "well": "Whether nothing is wrong by one look: see workpool_status.",
    "leader_present": "Whether a process leads.",
    "workers_alive": "Processes that live.",
}
_GAUGES = {
    "waiting": ("waiting", "Works that wait, due or not."),
    "due": ("due", "Works that are due and have not been started."),
    "running": ("running", "Works that run."),
    "max_parallelism": ("max_parallelism", "The pool's limit; 0: it is paused."),
    "lag_seconds": ("lag_s", "Seconds since the oldest work is due that could start."),
}
_COUNTERS = {
    "started": ("started", "Works that were started, a work again each time."),
    "attempts_failed": ("failed_attempts", "Attempts that have not succeeded."),
    "retried": ("retried", "Failed attempts after which the work went back for another one."),
    "returned": ("returned", "Runs that were given back uncounted."),
    "requeued": ("requeued", "Finished works that an operator has let run again."),
}
_STATUSES = {"success": "succeeded", "failed": "failed", "canceled": "canceled"}


@dataclass(frozen=True, slots=True)
class _Found:
    """What one database has answered."""

    health: health.Health
    totals: dict[tuple[str, Lane], Totals]


class WorkpoolCollector(Collector):
    """Reads the figures of all pools: a fixed number of statements for each database, however many pools are in it.

    A database that does not answer is told by ``workpool_up`` 0, and by nothing else.

    Args:
        databases: The aliases to be asked; None for all that hold pools.
        timeout: Seconds in which each must have answered.
    """

    def __init__(self, databases: Sequence[str] | None = None, *, timeout: float = TIMEOUT) -> None:
        self._databases, self._timeout = databases, timeout
        self._asked: dict[str, Future[_Found]] = {}
        self._lock = threading.Lock()

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples: who registers a collector asks no database."""
        return _metrics({})

    def collect(self) -> Iterator[Metric]:
        """Ask all databases at the same time, and return their metrics."""
        names = conf.database_aliases() if self._databases is None else self._databases
        answers = {using: self._ask(using) for using in names}
        return _metrics({using: self._wait(answer) for using, answer in answers.items()})

    def _ask(self, using: str) -> "Future[_Found]":
        """Ask a database on a thread of its own; one that has not answered the last time is not asked by a second one."""
        with self._lock:
            asked = self._asked.get(using)
            if asked is None or asked.done():
                asked = self._asked[using] = Future()
                threading.Thread(target=_read, args=[using, asked], name="workpool-prometheus", daemon=True).start()
            return asked

    def _wait(self, answer: "Future[_Found]") -> _Found | None:
        try:
            return answer.result(self._timeout)
        except (TimeoutError, Error, health.Unasked):
            return None


def _read(using: str, answer: "Future[_Found]") -> None:
    try:
        answer.set_result(_Found(health.look(using), tallies.totals_by_lane(using)))
    except BaseException as error:
        answer.set_exception(error)
    finally:
        # The thread ends, and nobody else would close it.
        connections[using].close()


def _metrics(found: dict[str, _Found | None]) -> Iterator[Metric]:
    answered = {using: one for using, one in found.items() if one is not None}
    states: dict[str, list[tuple[str, float]]] = {
        "up": [(using, float(one is not None)) for using, one in found.items()],
        "well": [(using, float(not one.health.problems)) for using, one in answered.items()],
        "leader_present": [(using, float(one.health.leader.present)) for using, one in answered.items()],
        "workers_alive": [(using, float(sum(worker.alive for worker in one.health.workers))) for using, one in answered.items()],
    }
    for name, text in _OF_DATABASES.items():
        state = GaugeMetricFamily(f"workpool_{name}", text, labels=["database"])
        for using, value in states[name]:
            state.add_metric([using], value)
        yield state
    for name, (field, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"workpool_{name}", text, labels=_OF_POOL)
        for using, one in answered.items():
            for pool in one.health.pools:
                gauge.add_metric([using, pool.pool], getattr(pool, field))
        yield gauge
    yield from _counters(answered)


def _counters(answered: dict[str, _Found]) -> Iterator[Metric]:
    of = {lane: [(using, one) for using, found in answered.items() for (_, at), one in found.totals.items() if at is lane] for lane in Lane}
    for name, (field, text) in _COUNTERS.items():
        counter = CounterMetricFamily(f"workpool_{name}", text, labels=_OF_POOL)
        for using, one in of[Lane.WORK]:
            counter.add_metric([using, one.pool], getattr(one, field))
        yield counter
    ended = {
        "completed": (Lane.WORK, "Works that have ended, by their result."),
        "callbacks": (Lane.CALLBACK, "Calls of on_complete functions that became works of their own and have ended."),
    }
    for name, (lane, text) in ended.items():
        counter = CounterMetricFamily(f"workpool_{name}", text, labels=[*_OF_POOL, "status"])
        for using, one in of[lane]:
            for status, field in _STATUSES.items():
                counter.add_metric([using, one.pool, status], getattr(one, field))
        yield counter
    # Without a sum, which nobody keeps.
    lag = HistogramMetricFamily("workpool_start_lag_seconds", "Seconds from when works were due to their start.", labels=_OF_POOL)
    for using, one in of[Lane.WORK]:
        lag.add_metric([using, one.pool], _buckets(one.lags), None)
    yield lag


def _buckets(lags: Sequence[int]) -> list[Any]:
    """Return a histogram as Prometheus has it: each bound with all that is not above it."""
    bounds = [*(str(bound / 1000) for bound in tallies.LAG_BOUNDS_MS), "+Inf"]
    return [(bound, float(sum(lags[: place + 1]))) for place, bound in enumerate(bounds)]


@cache
def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(WorkpoolCollector())
    return registry


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the figures of all pools in the text format of Prometheus.

    The view asks nobody who they are: put it behind what protects the project's other pages for machines.
    """
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(_registry()), content_type=content_type)
