"""Faults of the product, planted on purpose: a simulation that does not find them proves nothing."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import PropertyMock, patch

from django_workpool import archive, complete, functions, settle
from django_workpool.database import Sent
from django_workpool.database.base import Database
from django_workpool.failures import describe
from django_workpool.loop import cancelations, completions, due, fence, periodic, recovery, retries
from django_workpool.loop.context import Iteration
from django_workpool.models import InternalState, Lead
from django_workpool.runner.outlook import Outlook

from .clock import clock


def _changed(place: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> AbstractContextManager[Any]:
    """Replace a function by what ``make`` makes of it."""
    return patch.object(place, name, make(getattr(place, name)))


def no_fence() -> AbstractContextManager[Any]:
    """An old leader's iteration is let in."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def check(it: Iteration, asked: Sent, owner: uuid.UUID) -> None:
            it.memory.generation = InternalState.objects.values_list("generation", flat=True).get(pool=it.pool)
            real(it, asked, Lead.objects.values_list("owner", flat=True).get())

        return check

    return _changed(fence, "check", make)


def lost_retry() -> AbstractContextManager[Any]:
    """What goes back is not queued."""
    return patch.object(retries, "queue", lambda it, works: None)


def early_retry() -> AbstractContextManager[Any]:
    """A retry does not wait."""
    return patch.object(retries, "backoff_ms", lambda behavior, attempts: 0.0)


def doubled_callback() -> AbstractContextManager[Any]:
    """on_complete is called twice."""
    return _changed(complete, "_call_back", lambda real: lambda *args: real(*args) or real(*args))


def lost_callback() -> AbstractContextManager[Any]:
    """Work that ends without a worker has its on_complete forgotten."""
    return patch.object(settle, "make_callback_work", lambda db, one, context=None: None)


def callback_outside() -> AbstractContextManager[Any]:
    """What a failed on_complete has done is not undone."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def call_back(db: Database, run: Any, work: Any, verdict: Any, context: str) -> Any:
            try:
                functions.resolve(work.on_complete, functions.CALLBACK_KINDS).func(complete.callback_args(work.id, context, verdict))
            except Exception as error:
                return describe(error)
            return None

        return call_back

    return _changed(complete, "_call_back", make)


def no_guard() -> AbstractContextManager[Any]:
    """A run that has lost its work is completed nevertheless."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda db, attempted: (real(db, attempted), list(attempted))[1]

    @contextmanager
    def both() -> Iterator[None]:
        unguarded = patch.object(complete, "_guard", lambda db, attempted: (list(attempted), db.clock_ms()))
        with unguarded, _changed(complete, "complete_successes", make):
            yield

    return both()


def no_limit() -> AbstractContextManager[Any]:
    """The limit is not looked at."""
    return patch.object(Iteration, "spare", lambda it, lane: 100)


def early_start() -> AbstractContextManager[Any]:
    """Work is started a second early."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def read(it: Iteration, *args: Any) -> Any:
            with patch.object(Iteration, "now", PropertyMock(return_value=it.now + 10)):
                return real(it, *args)

        return read

    return _changed(due, "read", make)


def forgotten_cancelation() -> AbstractContextManager[Any]:
    """Cancelations are deleted, and nothing is canceled."""
    return patch.object(cancelations, "end_or_mark", lambda it, works: None)


def stop_that_fails() -> AbstractContextManager[Any]:
    """What has stopped because it was canceled counts as a failure."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda work, outcome: real(work, outcome._replace(kind="failed") if outcome.kind == "canceled" else outcome)

    @contextmanager
    def both() -> Iterator[None]:
        with _changed(settle, "judge", make), _changed(complete, "judge", make):
            yield

    return both()


def start_before_cancelation() -> AbstractContextManager[Any]:
    """A waiting cancelation does not keep work from being started."""

    # The cancelation is worked off by the same iteration, so it must be late for that to be seen.
    @contextmanager
    def both() -> Iterator[None]:
        with patch.object(due, "waived", lambda it, rows: set()), _changed(cancelations, "cancel", _sometimes):
            yield

    return both()


def _sometimes(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda it: real(it) if it.now % 2 else None


def uncounted_attempts() -> AbstractContextManager[Any]:
    """Attempts that go back are not counted."""
    return patch.object(settle, "_continue", lambda db, settlements: None)


def no_recovery() -> AbstractContextManager[Any]:
    """What a lost worker ran stays."""
    return patch.object(recovery, "recover", lambda it: None)


def deaf_leader() -> AbstractContextManager[Any]:
    """The poll finds nothing: lost hints stay lost."""
    return patch.object(Outlook, "read_queues", lambda outlook: setattr(outlook, "polled", clock.monotonic()))


def kept_slot() -> AbstractContextManager[Any]:
    """Completions are taken, and their slots stay."""

    return patch.object(completions, "_free", lambda it, tokens: None)


def no_archive() -> AbstractContextManager[Any]:
    """Finished work is not kept."""
    return patch.object(archive, "keep", lambda db, finished: None)


def lost_tick() -> AbstractContextManager[Any]:
    """A tick of a periodic work is passed over."""
    return _changed(periodic, "_enqueue", lambda real: lambda it, row, one: real(it, row, one) if one % 2_000 else None)


def doubled_tick() -> AbstractContextManager[Any]:
    """A tick of a periodic work is enqueued twice."""
    return _changed(periodic, "_enqueue", lambda real: lambda *args: real(*args) or real(*args))


PLANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    plant.__name__: plant
    for plant in (
        *(no_fence, lost_retry, early_retry, doubled_callback, lost_callback, callback_outside, no_guard, no_limit, early_start),
        *(forgotten_cancelation, start_before_cancelation, uncounted_attempts, no_recovery, deaf_leader, kept_slot, no_archive),
        *(lost_tick, doubled_tick),
        stop_that_fails,
    )
}
