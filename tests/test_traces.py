"""What is carried from an enqueue to its function, and that nothing of a tracer can fail either."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from django_workpool import WorkExists, Workpool, aenqueue, call, client, enqueue, otel, tracing
from django_workpool import complete as complete_room
from django_workpool.execution import limits
from django_workpool.models import Archive, Work
from django_workpool.testing import run_work

from .conftest import StartMain
from .live import PATIENCE
from .spans import Spans, tracing_here
from .states import functions
from .states.driver import SUCCESS, Loop, complete
from .works.tasks import fail, note
from .works.traces import TRACES_VARIABLE, traced_action, traced_coroutine, traced_end, traced_query, traced_together

pytestmark = pytest.mark.django_db
PATH = "tests.works.traces."
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with tracing_here() as spans:
        yield spans
    assert spans.begun == len(spans.exporter.get_finished_spans()), "all that have begun have ended"


def carried() -> list[dict[str, str]]:
    """Return what the works that wait carry, in the order of their enqueue."""
    return [json.loads(text) for text in Work.objects.order_by("id").values_list("trace", flat=True)]


def statements(count: int) -> int:
    with CaptureQueriesContext(connection) as queries:
        Workpool().enqueue_many(note, [call(str(number)) for number in range(count)])
        enqueue(note)
    return len(queries)


def test_without_instrument_a_work_carries_nothing_and_with_it_no_statement_is_added() -> None:
    enqueue(note)
    plain = statements(5)
    assert set(Work.objects.values_list("trace", flat=True)) == {""}
    with tracing_here() as spans:
        assert statements(5) == plain
        assert len(spans.all()) == 2
    assert Work.objects.exclude(trace="").count() == 6
    Work.objects.all().delete()
    assert statements(5) == plain and set(Work.objects.values_list("trace", flat=True)) == {""}, "after uninstrument"


def test_what_is_carried_fits_and_is_that_of_the_enqueue(spans: Spans) -> None:
    assert Work._meta.get_field("trace").max_length == tracing.TRACE_MAX
    with spans.view():
        enqueue(note)
        Workpool().enqueue_many(note, [call("a"), call("b")])
        Workpool().enqueue_many(note, [call("c")])
    first, many, single = spans.some("enqueue tests.works.tasks.note")
    (view,) = spans.some("GET /")
    found = [(one["traceparent"][:-3], one.get("workpool-link"), len(one)) for one in carried()]
    parents = [f"00-{view['trace']}-{one['span']}" for one in (first, many, many, single)]
    assert found == [(parents[0], None, 1), (parents[1], "1", 2), (parents[2], "1", 2), (parents[3], None, 1)]
    assert many["attributes"]["messaging.batch.message_count"] == 2
    assert tracing.told(Work.objects.order_by("id").values_list("trace", flat=True)[0]) == {"trace": view["trace"]}


def test_baggage_comes_along_and_what_is_too_long_is_dropped(spans: Spans) -> None:
    for length in (10, 700):
        token = context.attach(baggage.set_baggage("tenant", "x" * length))
        try:
            enqueue(note)
        finally:
            context.detach(token)
    short, long = Work.objects.order_by("id").values_list("trace", flat=True)
    assert json.loads(short)["baggage"] == "tenant=" + "x" * 10
    # Its trace is carried all the same.
    assert json.loads(long).keys() == {"traceparent"} and tracing.told(long).keys() == {"trace"}


def test_coroutines_enqueue_in_their_trace(spans: Spans) -> None:
    async def view() -> None:
        with spans.view():
            await aenqueue(note)

    async_to_sync(view)()
    (enqueued,), (seen,) = spans.some("enqueue tests.works.tasks.note"), spans.some("GET /")
    assert (enqueued["trace"], enqueued["parent"]) == (seen["trace"], seen["span"])


def test_where_nothing_is_enqueued_there_is_no_span(spans: Spans) -> None:
    pool = Workpool().using(unique="key")
    kept = pool.enqueue(note)
    assert pool.enqueue(note) == kept
    with pytest.raises(WorkExists):
        pool.using(if_taken="raise").enqueue(note)
    assert Workpool().enqueue_many(note, []) == []
    assert [one["attributes"]["messaging.message.id"] for one in spans.all()] == [str(kept)]


def test_an_enqueue_that_raises_says_so(spans: Spans) -> None:
    from django_workpool import signals

    def refuse(sender: None, **kwargs: Any) -> None:
        raise LookupError("private")

    signals.work_enqueued.connect(refuse)
    try:
        with pytest.raises(LookupError, match="private"):
            enqueue(note)
    finally:
        signals.work_enqueued.disconnect(refuse)
    (one,) = spans.all()
    assert (one["status"], one["events"]) == ("ERROR", [["exception", {"exception.type": "builtins.LookupError"}]])
    assert Work.objects.count() == 0 and not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("function", [traced_action, traced_coroutine, traced_query], ids=lambda function: function.__name__)
def test_works_of_a_projects_tests_are_traced_once_each(spans: Spans, function: Any) -> None:
    with spans.view():
        enqueue(function)
        (ran,) = run_work()
    (run,) = spans.some(f"run {PATH}{function.__name__}")
    assert ran.value == [run["trace"], run["span"]] and run["trace"] == spans.some("GET /")[0]["trace"]


def test_callback_work_of_a_work_that_the_loop_ends_is_in_its_trace(spans: Spans) -> None:
    with spans.view():
        work_id = Workpool().using(on_complete=traced_end).enqueue(note)
        Workpool().cancel(work_id)
    run_work()
    (enqueued,), (end,) = spans.some("enqueue tests.works.tasks.note"), spans.some(f"run {PATH}traced_end")
    assert (end["trace"], end["parent"]) == (enqueued["trace"], enqueued["span"])


def test_tasks_of_a_framework_are_traced_alike(spans: Spans) -> None:
    background = pytest.importorskip("tests.background.tasks", reason="no task framework", exc_type=ImportError)
    with spans.view():
        task = background.meaning.enqueue()
    run_work()
    path = "tests.background.tasks.meaning"
    (enqueued,), (run,), (view,) = spans.some(f"enqueue {path}"), spans.some(f"run {path}"), spans.some("GET /")
    assert (enqueued["parent"], run["parent"], run["trace"]) == (view["span"], enqueued["span"], view["trace"])
    assert run["attributes"]["messaging.message.id"] == task.id


@pytest.mark.parametrize(
    "text",
    [
        "null", "7", "[]", "{", "[" * tracing.TRACE_MAX, '{"traceparent": 7}', '{"traceparent": ["a"]}', '{"traceparent": "00-zz-b7ad-01"}',
        json.dumps({"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"}), json.dumps({"traceparent": TRACEPARENT, "workpool-link": 1}),
        '{"traceparent": "\\u0000\\ud800"}', '{"workpool-link": "1"}', "\x1b[31m",
    ],
)  # fmt: skip
def test_what_a_row_holds_that_cannot_be_read_is_ignored(spans: Spans, caplog: pytest.LogCaptureFixture, text: str) -> None:
    enqueue(traced_action)
    Work.objects.update(trace=text)
    (ran,) = run_work()
    (run,) = spans.some(f"run {PATH}traced_action")
    assert ran.value == [run["trace"], run["span"]]
    assert (run["parent"], run["links"], run["trace"] in TRACEPARENT) == (None, [], False)
    assert [record for record in caplog.records if record.name == "django_workpool.otel"] == []


def test_a_text_that_is_too_long_for_the_column_is_not_read(spans: Spans) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the column takes no more")
    enqueue(traced_action)
    Work.objects.update(trace=json.dumps({"traceparent": TRACEPARENT, "more": "x" * 700}))
    run_work()
    assert spans.some(f"run {PATH}traced_action")[0]["parent"] is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps({"traceparent": TRACEPARENT}), {"trace": TRACEPARENT[3:35]}),
        ('{"b3":"1-2-1"}', {}),
        ('{"traceparent":"00-short-1-01"}', {}),
        ('{"traceparent":"00-0AF7651916cd43dd8448eb211c80319c\\n-b7ad6b7169203331-01"}', {}),
        ("", {}),
    ],
)  # fmt: skip
def test_events_name_a_trace_that_is_one(text: str, found: dict[str, str]) -> None:
    assert tracing.told(text) == found


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_what_runs_in_an_executor_of_others_is_traced_there(main_process: StartMain, tmp_path: Path) -> None:
    path = tmp_path / "spans"
    with tracing_here(path) as spans, spans.view():
        work_id = Workpool().using(on_complete=traced_end).enqueue(traced_action)
    options = ("--drain", "--executor", "tests.works.executors.process_pool")
    main = main_process(*options, env={TRACES_VARIABLE: str(path)})
    assert main.wait(PATIENCE) == 0, main.output()
    (run,), (end,) = spans.of(f"run {PATH}traced_action", work_id), spans.some(f"on_complete {PATH}traced_end")
    (enqueued,) = spans.some(f"enqueue {PATH}traced_action")
    assert json.loads(Archive.objects.get(id=work_id).value) == [run["trace"], run["span"]]
    assert (run["parent"], end["parent"], run["trace"]) == (enqueued["span"], enqueued["span"], end["trace"])
    assert end["pid"] == main.process.pid != run["pid"]


@pytest.mark.django_db(transaction=True)
def test_works_that_share_a_transaction_have_a_span_each_and_one_that_is_repeated_says_so(main_process: StartMain, tmp_path: Path) -> None:
    path, name = tmp_path / "spans", f"run {PATH}traced_together"
    Workpool().configure(max_parallelism=200)
    with tracing_here(path) as spans:
        good = Workpool().enqueue_many(traced_together, [call(str(number)) for number in range(20)])
        mixed = Workpool().enqueue_many(traced_together, [call(str(number), number == 5) for number in range(20)])
    main = main_process("--drain", "--threads", "1", "--prefetch", "200", env={TRACES_VARIABLE: str(path)})
    assert main.wait(PATIENCE) == 0, main.output()
    assert Archive.objects.filter(id__in=good, kind="success").count() == 20
    statuses = {work_id: [one["attributes"]["django_workpool.status"] for one in spans.of(name, work_id)] for work_id in good + mixed}
    assert [statuses[work_id][-1] for work_id in good + mixed] == ["success"] * 25 + ["failed"] + ["success"] * 14
    repeated = [before for each in statuses.values() for before in each[:-1]]
    assert set(repeated) == {"repeated"}, "at least the one that fails"
    for work_id in good + mixed:
        last = spans.of(name, work_id)[-1]
        stored = Archive.objects.get(id=work_id)
        assert stored.kind == "failed" or json.loads(stored.value) == [last["trace"], last["span"]]


# What is broken ---------------------------------------------------------------------------------------------------


class _Broken(SpanProcessor, SpanExporter):
    def __init__(self, *steps: str) -> None:
        self.steps = steps

    def _step(self, name: str) -> None:
        if name in self.steps:
            raise RuntimeError(f"broken {name}")

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._step("on_start")

    def on_end(self, span: Any) -> None:
        self._step("on_end")

    def export(self, spans: Any) -> SpanExportResult:
        self._step("export")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


class _BrokenPropagator(propagate.textmap.TextMapPropagator):
    fields: set[str] = set()  # noqa: RUF012

    def inject(self, carrier: Any, *args: Any, **kwargs: Any) -> None:
        carrier["half"] = "done"
        raise RuntimeError("broken inject")

    def extract(self, carrier: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken extract")


class _NoTracer(TracerProvider):
    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def start_span(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken start")


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(otel, "_complained", set())
    texts: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    keep = Keep()
    otel.logger.addHandler(keep)
    yield texts
    otel.logger.removeHandler(keep)
    otel.uninstrument()


def _use(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider: TracerProvider = TracerProvider()
    if what == "start":
        provider = _NoTracer()
    elif what == "export":
        provider.add_span_processor(SimpleSpanProcessor(_Broken("export")))
    elif what == "propagator":
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", _BrokenPropagator())
    else:
        provider.add_span_processor(_Broken(what))
    otel.instrument(provider)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("start", ["to begin a span"]),
        ("on_start", ["to begin a span"]),
        ("on_end", ["to end a span"]),
        ("propagator", ["to carry a span on", "to read what a work carries"]),
        ("export", []),
    ],
)
def test_what_opentelemetry_raises_is_logged_once_and_fails_no_enqueue_and_no_work(
    what: str, told: list[str], complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(what, monkeypatch)
    ids = [Workpool().using(on_complete=traced_end).enqueue(note, str(number)) for number in range(3)]
    ids += Workpool().enqueue_many(note, [call(), call()])
    failing = enqueue(fail)
    if what == "propagator":
        assert set(Work.objects.values_list("trace", flat=True)) == {""}
        Work.objects.update(trace=json.dumps({"traceparent": TRACEPARENT}))
    run_work()
    assert set(Archive.objects.filter(id__in=ids).values_list("kind", "callback")) == {("success", "done"), ("success", "")}
    assert Archive.objects.get(id=failing).kind == "failed"
    assert [one.split("failed ")[1].split(":")[0] for one in complaints] == told


def test_a_timeout_that_comes_while_a_span_is_made_is_the_functions() -> None:
    from django_workpool import WorkTimeout

    with pytest.raises(WorkTimeout), otel._guard("to do something"):
        raise WorkTimeout("over")


def test_a_rolled_back_enqueue_leaves_nothing_current(spans: Spans) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        enqueue(note)
        raise ZeroDivisionError
    assert not trace.get_current_span().get_span_context().is_valid


def test_without_the_library_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None\nimport django_workpool\nimport django_workpool.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: django_workpool.otel needs OpenTelemetry's API, which is not installed here: pip install 'django_workpool[otel]'."
    )


class Stopped:
    """The module as others see it while another thread stops the tracing: there is a tracer, and at the next look there is none."""

    def __init__(self) -> None:
        self._tracers = [tracing.tracer]

    @property
    def tracer(self) -> Any:
        return self._tracers.pop() if self._tracers else None


def test_tracing_that_is_stopped_meanwhile_fails_nothing(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "tracing", Stopped())
    enqueue(note)
    loop = Loop()
    work_id = Workpool().using(on_complete=functions.told).enqueue(functions.act)
    (run,) = [one for one in loop.settle() if one.work_id == work_id]
    monkeypatch.setattr(limits, "tracing", Stopped())
    limits.begin(run)
    limits.end(run)
    monkeypatch.setattr(complete_room, "tracing", Stopped())
    completed = complete(run, SUCCESS)
    assert completed is not None and completed.callback_failure is None
    assert len(functions.effects(work_id)) == 1
