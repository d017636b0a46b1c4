"""Functions that tell in which span they run, and the exporter by which a process writes its spans down."""

import json
import os
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from django_workpool import OnCompleteArgs, action, mutation, on_complete, otel, query

from .tasks import SOON, record

#: The file to which each process of a test appends its spans.
TRACES_VARIABLE = "WORKPOOL_TEST_TRACES"


def told(span: ReadableSpan) -> dict[str, Any]:
    """Return what a test wants to know of a span, as JSON carries it."""
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": trace.format_trace_id(context.trace_id),
        "span": trace.format_span_id(context.span_id),
        "parent": None if span.parent is None else trace.format_span_id(span.parent.span_id),
        "links": [trace.format_span_id(link.context.span_id) for link in span.links],
        "attributes": dict(span.attributes or {}),
        "status": span.status.status_code.name,
        "events": [[event.name, dict(event.attributes or {})] for event in span.events],
        "pid": os.getpid(),
    }


class FileExporter(SpanExporter):
    """Appends a line for each span to a file that several processes share."""

    def __init__(self, path: str) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write spans down."""
        with open(self._path, "ab", buffering=0) as file:
            for span in spans:
                file.write(json.dumps(told(span)).encode() + b"\n")
        return SpanExportResult.SUCCESS


def begin(path: str) -> None:
    """Trace in this process."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(path)))
    otel.instrument(provider)


def here() -> list[str]:
    """Return the ids of the trace and the span that are the current ones."""
    context = trace.get_current_span().get_span_context()
    return [trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)]


@action
def traced_action(fails: str = "") -> list[str]:
    """Tell where it runs, or fail with a text that nobody is to read."""
    if fails:
        raise LookupError(fails)
    return here()


@action
async def traced_coroutine() -> list[str]:
    """Tell where it runs."""
    return here()


@query
def traced_query() -> list[str]:
    """Tell where it runs."""
    return here()


@mutation
def traced_mutation() -> list[str]:
    """Tell where it runs."""
    record("mutation")
    return here()


@mutation(batch=20)
def traced_together(key: str, fails: bool = False) -> list[str]:
    """Tell where it runs; the keys of one batch share a transaction."""
    record("together", key)
    if fails:
        raise LookupError(key)
    return here()


@action(retry=SOON)
def traced_retry(key: str) -> list[str]:
    """Fail at first."""
    from .models import Event

    again = Event.objects.filter(name="retried", key=key).exists()
    record("retried", key)
    if not again:
        raise LookupError(key)
    return here()


@on_complete
def traced_end(done: OnCompleteArgs) -> None:
    """Write down where it runs; fail where its work ends, if the context says so, so that it becomes work of its own."""
    if done.context == "fails" and getattr(trace.get_current_span(), "name", "").startswith("on_complete "):
        raise LookupError("not here")
    record("end", done.work_id, " ".join(here()))
