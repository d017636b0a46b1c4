"""A test's own thread and connections, in the place of a worker's: functions are called on them, and leave them as they were.

Inside a test's transaction a connection is never closed. What a failed statement has aborted is rolled back to where the function
began; all else that an action wrote stays, as it does in production, where an action runs outside of a transaction.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..execution.watch import Session, SessionWatch, session_state
from ..kick import kick

logger = logging.getLogger("django_workpool.testing")

#: What ends a function only, of all that is no Exception. The rest is meant for the test: Ctrl-C, a time-out of pytest's, a skip.
_OF_FUNCTIONS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)


class Here:
    """Stands for the isolation of a thread, see ``execution.isolation``: the test's thread is no other than it was before."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._returned: Any = None
        self._guards = False
        #: Of the pool's transaction in which the function runs, and how many savepoints it had before.
        self._watch: SessionWatch | None = None
        self._depth = 0
        self._using = ""

    # What the engine calls --------------------------------------------------------------------------------------

    @contextmanager
    def run(self, using: str, *, guards: bool) -> Iterator[None]:
        """Surround one run.

        Args:
            using: The pool's database.
            guards: Whether the function runs outside of the pool's transactions: an action.
        """
        self.raised, self._traceback, self._returned = None, None, None
        self._using, self._guards = using, guards
        borrowed = [one for one in connections.all(initialized_only=True) if one.in_atomic_block]
        hooks = {one: len(one.run_on_commit) for one in borrowed}
        with ExitStack() as stack:
            for one in borrowed:
                stack.enter_context(_held_open(one))
            yield
            for one, count in hooks.items():
                _call_hooks(one, count)

    @property
    def returned(self) -> Any:
        """What the function returned."""
        return self._returned

    @property
    def exception(self) -> BaseException | None:
        """What the function raised, with its traceback: writing the failure down has taken it off."""
        return self.raised.with_traceback(self._traceback) if self.raised is not None else None

    def pass_on(self) -> None:
        """Raise what was not meant for the function."""
        if self.exception is not None and not isinstance(self.exception, _OF_FUNCTIONS):
            raise self.exception

    # What an isolation does -------------------------------------------------------------------------------------

    @contextmanager
    def function(self, label: str) -> Iterator[Self]:
        """Nothing: the test's thread is no other than it was before."""
        yield self

    def begin(self, label: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def distrust(self) -> None:
        """Nothing: the connections are the test's."""

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Nothing: no statement is watched."""
        yield

    def call(self, func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Call a function in an empty context; remember what it returns or raises."""
        try:
            with ExitStack() as stack:
                if self._guards:
                    for one in connections.all(initialized_only=True):
                        stack.enter_context(_guarded(one))
                else:
                    self._watch, self._depth = SessionWatch(connections[self._using]), len(connections[self._using].savepoint_ids)
                    self._watch.mark()
                self._returned = contextvars.Context().run(func, *args, **(kwargs or {}))
        except BaseException as error:
            self.raised, self._traceback = error, error.__traceback__
            raise
        return self._returned

    def leftovers(self, using: str) -> str | None:
        """Return what the last call did to the pool's transaction that makes it unfit to go on, and repair what can be."""
        if self._watch is None:
            return None
        left = self._watch.leftovers()
        _trim(connections[using], self._depth)
        return left


@contextmanager
def _held_open(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Let ``close()`` do nothing: the test's transaction would go with the connection."""
    vars(connection)["close"] = lambda: None
    try:
        yield
    finally:
        del vars(connection)["close"]


@contextmanager
def _guarded(connection: Any) -> Iterator[None]:
    """A savepoint around an action, rolled back only if its transaction cannot go on."""
    if not connection.in_atomic_block:
        watch = SessionWatch(connection)
        watch.mark()
        try:
            yield
        finally:
            if watch.leftovers() is not None:
                watch.reset()
        return
    depth, savepoint = len(connection.savepoint_ids), connection.savepoint()
    try:
        yield
    finally:
        open_blocks = len(connection.savepoint_ids) > depth
        _trim(connection, depth)
        if open_blocks or connection.needs_rollback or session_state(connection.connection) is Session.ABORTED:
            logger.warning("an action left the test's transaction unfit to go on: what it wrote is rolled back")
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
        connection.savepoint_commit(savepoint)


def _trim(connection: Any, depth: int) -> None:
    """Forget atomic blocks that were entered and never left: their savepoints go with the one around them."""
    blocks = len(connection.savepoint_ids) - depth
    if blocks > 0:
        del connection.savepoint_ids[depth:], connection.atomic_blocks[-blocks:]


def _call_hooks(connection: BaseDatabaseWrapper, count: int) -> None:
    """Call what a function has registered with ``on_commit``: outside of a test its transaction would have been committed by now."""
    hooks = connection.run_on_commit[count:]
    del connection.run_on_commit[count:]
    for _, hook, *_ in hooks:
        if type(hook).__module__ == kick.__module__:
            # There is nobody to wake.
            continue
        try:
            hook()
        except Exception:
            logger.exception("a hook of transaction.on_commit raised")
        # What it has registered itself would have been called at once.
        _call_hooks(connection, count)
