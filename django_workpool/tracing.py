"""What a tracer is to the pool, and the one that traces, if any: the rooms know no other, and ``otel`` brings OpenTelemetry's.

What a tracer carries from the caller to the function is a text, the column ``trace`` of a work. Nothing else need understand it.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from .types import Run

T = TypeVar("T")

#: Characters of what is carried: what the column holds.
TRACE_MAX = 700

#: The id in a ``traceparent`` of W3C, the one format that all tracers of today can write.
_TRACE_ID = re.compile(r'"traceparent": ?"[0-9a-f]{2}-([0-9a-f]{32})-')


class RunSpan(Protocol):
    """The span of one attempt. None of its methods raises, but for what the function does."""

    def carried(self) -> str:
        """Return what carries this span on."""

    def call(self, func: Callable[..., T], *args: Any) -> T:
        """Call ``func`` so that the span is the current one in it."""

    def current(self) -> AbstractContextManager[None]:
        """Return a block in which the span is the current one."""

    def came_to(self, status: str, error: str = "") -> None:
        """Note what the attempt came to, and the class path of what it raised; without a word it is a success."""

    def end(self) -> None:
        """End the span."""


class Tracer(Protocol):
    """Makes the spans. None of its methods raises."""

    def sending(self, pool: str, path: str, ids: Sequence[uuid.UUID]) -> AbstractContextManager[str]:
        """Return a block in which works of a function are inserted, which gives what they carry."""

    def running(self, run: Run) -> RunSpan:
        """Begin the span of an attempt."""

    def calling_back(self, run: Run, path: str, func: Callable[..., T]) -> Callable[..., T]:
        """Return a function that calls ``func``, the on_complete at ``path``, in a span under what the run carries."""


#: The one that traces; None: nobody does, and nothing is prepared for it.
tracer: Tracer | None = None


def told(trace: str) -> dict[str, str]:
    """Return the field of events that tells of which trace a work is; none if it is of none."""
    # The text comes from a row, where anything may stand.
    found = _TRACE_ID.search(trace, 0, TRACE_MAX) if trace else None
    return {} if found is None else {"trace": found[1]}
