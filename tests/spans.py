"""What tests of traces share: the spans of the test's own process, and those that others have written into a file."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_workpool import otel

from .live import wait_until
from .works.traces import told

Told = dict[str, Any]


@dataclass
class Spans:
    """The spans that have ended, here and in the processes that write into ``path``."""

    provider: TracerProvider
    exporter: InMemorySpanExporter
    path: Path | None = None
    #: How many have begun here.
    begun: int = 0

    def all(self) -> list[Told]:
        """Return all, those of this process first, in the order in which they ended."""
        lines = self.path.read_text().splitlines() if self.path is not None and self.path.exists() else []
        return [told(span) for span in self.exporter.get_finished_spans()] + [json.loads(line) for line in lines]

    def some(self, name: str, **attributes: object) -> list[Told]:
        """Return those of a name that have these attributes (with ``__`` for a dot)."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return [one for one in self.all() if one["name"] == name and wanted.items() <= one["attributes"].items()]

    def of(self, name: str, work_id: object, count: int = 1) -> list[Told]:
        """Wait until so many spans of a name and work have ended, and return them."""
        found: Callable[[], list[Told]] = lambda: self.some(name, messaging__message__id=str(work_id))  # noqa: E731
        wait_until(lambda: len(found()) >= count)
        return found()

    @contextmanager
    def view(self) -> Iterator[None]:
        """A span around what a view does."""
        with self.provider.get_tracer("tests").start_as_current_span("GET /"):
            yield


class _Count(SpanProcessor):
    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._spans.begun += 1


@contextmanager
def tracing_here(path: Path | None = None) -> Iterator[Spans]:
    """Trace in this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(provider, exporter, path)
    provider.add_span_processor(_Count(spans))
    otel.instrument(provider)
    try:
        yield spans
    finally:
        otel.uninstrument()
        provider.shutdown()
