"""Traces through real processes: on threads and as coroutines (pool default), and in children (pool imports)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from django_workpool import Workpool, call

from .live import Live, live_pair, result, results, texts, transactional_db, wait_for_quiet, wait_until
from .spans import Spans, tracing_here
from .works.tasks import note
from .works.traces import (
    TRACES_VARIABLE,
    traced_action,
    traced_coroutine,
    traced_end,
    traced_mutation,
    traced_query,
    traced_retry,
    traced_together,
)

__all__ = ["transactional_db"]
pytestmark = pytest.mark.usefixtures("transactional_db")

FUNCTIONS = [traced_action, traced_coroutine, traced_query, traced_mutation]
POOLS = ["default", "imports"]
PATH = "tests.works.traces."


@pytest.fixture(scope="module")
def live(django_db_blocker: Any, test_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("main")
    env = {TRACES_VARIABLE: str(folder / "spans"), "WORKPOOL_LOG_LEVEL": "DEBUG"}
    with live_pair(django_db_blocker, test_database_url, folder, env) as running:
        yield running


@pytest.fixture
def spans(live: Live) -> Iterator[Spans]:
    with tracing_here(live.start.folder / "spans") as spans:
        yield spans
    wait_for_quiet()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_view_its_enqueue_and_the_run_are_one_trace(spans: Spans, pool: str, function: Any) -> None:
    with spans.view():
        work_id = Workpool(pool).enqueue(function)
    archived = result(work_id)
    assert archived.kind == "success", archived.error
    path = PATH + function.__name__
    (view,), (enqueue,), (run,) = spans.some("GET /"), spans.of(f"enqueue {path}", work_id), spans.of(f"run {path}", work_id)
    assert json.loads(archived.value) == [view["trace"], run["span"]], "the function is inside of its run"
    assert {view["trace"]} == {enqueue["trace"], run["trace"]}
    assert (enqueue["parent"], run["parent"], run["links"]) == (view["span"], enqueue["span"], [])
    assert (enqueue["kind"], run["kind"], run["status"]) == ("PRODUCER", "CONSUMER", "UNSET")
    lag = run["attributes"].pop("django_workpool.lag_ms")
    assert isinstance(lag, int) and lag >= 0
    assert run["attributes"] == {
        "messaging.system": "django_workpool",
        "messaging.destination.name": pool,
        "messaging.operation.type": "process",
        "messaging.operation.name": "run",
        "messaging.message.id": str(work_id),
        "code.function.name": path,
        "django_workpool.attempt": 1,
        "django_workpool.status": "success",
    }


@pytest.mark.parametrize("function", [traced_action, traced_coroutine, traced_mutation], ids=lambda function: function.__name__)
@pytest.mark.parametrize("pool", POOLS)
def test_an_on_complete_is_a_child_of_the_run(spans: Spans, pool: str, function: Any) -> None:
    with spans.view():
        work_id = Workpool(pool).using(on_complete=traced_end).enqueue(function)
    result(work_id)
    (run,) = spans.of(f"run {PATH}{function.__name__}", work_id)
    wait_until(lambda: spans.some(f"on_complete {PATH}traced_end", django_workpool__work_id=str(work_id)))
    (end,) = spans.some(f"on_complete {PATH}traced_end", django_workpool__work_id=str(work_id))
    assert (end["trace"], end["parent"], end["kind"]) == (run["trace"], run["span"], "INTERNAL")
    assert texts("end", work_id) == [f"{end['trace']} {end['span']}"]


@pytest.mark.parametrize("function", [traced_action, traced_mutation], ids=lambda function: function.__name__)
def test_an_on_complete_that_becomes_work_runs_in_the_trace_of_its_work(spans: Spans, function: Any) -> None:
    with spans.view():
        work_id = Workpool().using(on_complete=traced_end, on_complete_context="fails").enqueue(function)
    result(work_id)
    wait_until(lambda: texts("end", work_id))
    (end,), (enqueue,) = (
        spans.some(f"on_complete {PATH}traced_end", django_workpool__work_id=str(work_id)),
        spans.some(f"enqueue {PATH}{function.__name__}", messaging__message__id=str(work_id)),
    )
    assert (end["status"], end["events"]) == ("ERROR", [["exception", {"exception.type": "builtins.LookupError"}]])
    trace, span = texts("end", work_id)[0].split()
    wait_until(lambda: any(one["span"] == span for one in spans.all()))
    (run,) = [one for one in spans.all() if one["span"] == span]
    assert (run["name"], run["parent"], run["trace"], trace) == (
        f"run {PATH}traced_end", enqueue["span"], enqueue["trace"], enqueue["trace"]
    )  # fmt: skip


def test_each_attempt_has_a_span_of_its_own_and_a_failure_tells_its_class_only(spans: Spans) -> None:
    with spans.view():
        work_id = Workpool().enqueue(traced_retry, "secret")
    assert result(work_id).attempts == 2
    (enqueue,) = spans.some(f"enqueue {PATH}traced_retry")
    first, second = sorted(spans.of(f"run {PATH}traced_retry", work_id, 2), key=lambda one: one["attributes"]["django_workpool.attempt"])
    assert {first["parent"], second["parent"]} == {enqueue["span"]} and first["span"] != second["span"]
    assert (first["status"], first["attributes"]["django_workpool.status"]) == ("ERROR", "failed")
    assert first["events"] == [["exception", {"exception.type": "builtins.LookupError"}]]
    assert first["attributes"]["error.type"] == "builtins.LookupError"
    assert (second["status"], second["attributes"]["django_workpool.status"], second["events"]) == ("UNSET", "success", [])
    assert "secret" not in json.dumps(spans.all())


def test_works_of_one_call_are_linked_to_it_and_mutations_that_share_a_transaction_have_a_span_each(spans: Spans) -> None:
    with spans.view():
        ids = Workpool().enqueue_many(traced_together, [call(str(number)) for number in range(40)])
    values = [json.loads(one.value) for one in results(ids)]
    (enqueue,) = spans.some(f"enqueue {PATH}traced_together", messaging__batch__message_count=40)
    assert "messaging.message.id" not in enqueue["attributes"]
    runs = [spans.of(f"run {PATH}traced_together", work_id)[-1] for work_id in ids]
    assert values == [[run["trace"], run["span"]] for run in runs]
    assert {(run["parent"], *run["links"]) for run in runs} == {(None, enqueue["span"])}
    assert len({run["trace"] for run in runs}) == 40 and enqueue["trace"] not in {run["trace"] for run in runs}


def test_events_of_a_traced_work_name_its_trace_in_all_processes(live: Live, spans: Spans) -> None:
    with spans.view():
        ids = [Workpool(pool).enqueue(function) for pool in POOLS for function in FUNCTIONS]
    results(ids)
    wait_for_quiet()
    (view,) = spans.some("GET /")

    def lines(work_id: object) -> list[str]:
        every = [line for main in live.start.started for line in main.output().splitlines()]
        return [line for line in every if f"work_id={work_id} " in line]

    for work_id in ids:
        wait_until(lambda work_id=work_id: len(lines(work_id)) == 2)
        # Two processes tell of it, perhaps in the same millisecond.
        assert sorted(line.split("event=")[1].split()[0] for line in lines(work_id)) == ["completed", "started"]
        assert all(line.endswith(f" trace={view['trace']}") for line in lines(work_id))
    # Without a trace there is no such field, and each work has a line of either kind all the same.
    from django_workpool import otel

    otel.uninstrument()
    untraced = Workpool().enqueue(note)
    result(untraced)
    wait_until(lambda: len(lines(untraced)) == 2)
    assert not [line for line in lines(untraced) if "trace=" in line]
