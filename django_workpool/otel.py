"""Traces with OpenTelemetry, which the extra ``otel`` brings: from whoever enqueues over the function to its on_complete.

The spans follow the semantic conventions of messaging. ``enqueue`` is a producer's span, each attempt of a work a consumer's. That is a
child of the enqueue's where this was of one work; where it was of many, it begins a trace of its own and is linked to the enqueue's, as
the conventions advise: a trace does not grow with the number of works.

Whatever the tracer, the propagators and the exporters raise is logged once, and neither an enqueue nor a work fails for it.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from . import tracing
from .exceptions import WorkTimeout
from .failures import class_path_of
from .types import Run

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError(
        "django_workpool.otel needs OpenTelemetry's API, which is not installed here: pip install 'django_workpool[otel]'."
    ) from error

T = TypeVar("T")

logger = logging.getLogger("django_workpool.otel")

SYSTEM = "django_workpool"
#: Beside what the propagators have written: the run is linked to the enqueue, not its child.
LINK = "workpool-link"

#: What was complained of: each thing once in the life of a process.
_complained: set[str] = set()


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Trace what this process enqueues and runs, its child processes too if they call this: from ``AppConfig.ready()`` all do.

    Args:
        tracer_provider: Makes the tracer; the global one if it is left out, even if that is set later.
    """
    tracing.tracer = _Tracer(trace.get_tracer(SYSTEM, tracer_provider=tracer_provider))


def uninstrument() -> None:
    """Trace nothing any more; spans that have begun are still ended."""
    tracing.tracer = None


class _Tracer:
    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def sending(self, pool: str, path: str, ids: Sequence[uuid.UUID]) -> Iterator[str]:
        many = len(ids) > 1
        count = {"messaging.batch.message_count": len(ids)} if many else {"messaging.message.id": str(ids[0])}
        attributes = _attributes(pool, path, "send", "enqueue") | count
        one = _Spanned(self._tracer, f"enqueue {path}", None, SpanKind.PRODUCER, attributes)
        with one.around():
            yield one.carried(link=many)

    def running(self, run: Run) -> tracing.RunSpan:
        return _Attempt(self._tracer, run)

    def calling_back(self, run: Run, path: str, func: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any) -> T:
            context, links = _origin(run.trace)
            attributes = {"code.function.name": path, "django_workpool.pool": run.pool, "django_workpool.work_id": str(run.work_id)}
            one = _Spanned(self._tracer, f"on_complete {path}", context, SpanKind.INTERNAL, attributes, links)
            with one.around():
                return func(*args)

        return call


class _Spanned:
    """A span and the context in which it is the current one; nothing, where it could not be made."""

    def __init__(
        self,
        tracer: trace.Tracer,
        name: str,
        parent: Context | None,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        links: Sequence[Link] = (),
    ) -> None:
        self._span: Span | None = None
        self._context: Context | None = None
        with _guard("to begin a span"):
            self._span = tracer.start_span(name, context=parent, kind=kind, attributes=attributes, links=links)
            self._context = trace.set_span_in_context(self._span, parent)

    def carried(self, *, link: bool = False) -> str:
        """Return what carries this span on. Of what is longer than what is stored, the longest entries are left out: baggage first."""
        carrier: dict[str, str] = {}
        with _guard("to carry a span on"):
            if self._context is not None:
                propagate.inject(carrier, self._context)
                kept = sorted(carrier, key=lambda name: len(carrier[name]))
                while kept:
                    text = json.dumps({name: carrier[name] for name in kept} | ({LINK: "1"} if link else {}), separators=(",", ":"))
                    if len(text) <= tracing.TRACE_MAX:
                        return text
                    kept.pop()
        return ""

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let it be the current one inside."""
        token = None
        with _guard("to make a span the current one"):
            if self._context is not None:
                token = contexts.attach(self._context)
        try:
            yield
        finally:
            with _guard("to make a span the current one no more"):
                if token is not None:
                    contexts.detach(token)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Let it be the current one inside, and end it with that."""
        try:
            with self.current():
                yield
        except BaseException as error:
            self.fail(class_path_of(error))
            raise
        finally:
            self.end()

    def note(self, name: str, value: str) -> None:
        """Set an attribute."""
        with _guard("to set an attribute"):
            if self._span is not None:
                self._span.set_attribute(name, value)

    def fail(self, class_path: str) -> None:
        """Note what was raised: its class only, as texts and tracebacks may show arguments."""
        with _guard("to record an exception"):
            if self._span is not None:
                self._span.add_event("exception", {"exception.type": class_path})
                self._span.set_attribute("error.type", class_path)
                self._span.set_status(Status(StatusCode.ERROR, class_path))

    def end(self) -> None:
        """End the span."""
        with _guard("to end a span"):
            if self._span is not None:
                self._span.end()


class _Attempt(_Spanned):
    """The span of one attempt of a work."""

    def __init__(self, tracer: trace.Tracer, run: Run) -> None:
        context, links = _origin(run.trace)
        attributes = _attributes(run.pool, run.func_path, "process", "run") | {
            "messaging.message.id": str(run.work_id),
            "django_workpool.attempt": run.attempts + 1,
            "django_workpool.lag_ms": run.lag_ms,
        }
        super().__init__(tracer, f"run {run.func_path}", context, SpanKind.CONSUMER, attributes, links)
        self._status, self._error = "success", ""

    def carried(self, *, link: bool = False) -> str:
        return super().carried()

    def call(self, func: Callable[..., T], *args: Any) -> T:
        with self.current():
            return func(*args)

    def came_to(self, status: str, error: str = "") -> None:
        self._status, self._error = status, error

    def end(self) -> None:
        self.note("django_workpool.status", self._status)
        if self._error:
            self.fail(self._error)
        super().end()


def _attributes(pool: str, path: str, kind: str, name: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": pool,
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "code.function.name": path,
    }


def _origin(carried: str) -> tuple[Context, Sequence[Link]]:
    """Return the context that a work carries, and what its run is linked to. What a row holds that cannot be read counts as nothing."""
    carrier = _read(carried)
    context = Context()
    if not carrier:
        return context, ()
    with _guard("to read what a work carries"):
        context = propagate.extract({name: value for name, value in carrier.items() if name != LINK}, context)
        if LINK in carrier:
            origin = trace.get_current_span(context).get_span_context()
            # A trace of its own, with the baggage that has come along.
            return trace.set_span_in_context(trace.INVALID_SPAN, context), [Link(origin)] if origin.is_valid else []
    return context, ()


def _read(carried: str) -> dict[str, str]:
    if not carried or len(carried) > tracing.TRACE_MAX:
        return {}
    try:
        carrier = json.loads(carried)
    except (ValueError, RecursionError):
        return {}
    plain = isinstance(carrier, dict) and all(isinstance(value, str) for value in carrier.values())
    return carrier if plain else {}


@contextmanager
def _guard(what: str) -> Iterator[None]:
    """Let nothing out of the block that a tracer raises, and log it once; a timeout is the function's, wherever it comes."""
    try:
        yield
    except WorkTimeout:
        raise
    except Exception:
        if what not in _complained:
            _complained.add(what)
            logger.exception("OpenTelemetry failed %s: the works go on without it, and this is not told again", what)
