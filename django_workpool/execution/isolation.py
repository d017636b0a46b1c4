"""A thread as fresh after a function as it was before.

One :class:`Isolation` belongs to one thread. Around one started work::

    isolation.begin(label)                      # drops a connection that the server has closed meanwhile
    try:
        with transaction.atomic(using):         # only where the function belongs into a transaction
            value = isolation.call(func, args, kwargs)
            left = isolation.leftovers(using)   # text if the function damaged that transaction: roll back
            ...
    finally:
        isolation.end()                         # repairs, closes, warns; never raises

``with isolation.function(label):`` is the same without the try. Several calls may follow each other between ``begin`` and ``end``.

What is undone: context variables, and with them the active time zone and translation, decimal's context and Django's URL prefix
(each call has an empty context); the working directory; open atomic blocks and transactions, autocommit switched off; changed
sessions (settings, roles, locks, temporary tables, prepared statements, cursors of the server): the connection is closed, the next
use makes a new one; the log of statements that DEBUG keeps. A connection that was inside a transaction at ``begin`` already, a
test's, is never closed or changed, only complained about.

Not undone: what a function does to the process (environment, umask, locale, signals) or keeps in thread-locals of its own,
and what goes past Django's cursors (see ``watch``).

The pool's own statements between ``begin`` and ``end`` are seen like the function's. Where one of them changes the session and
changes it back, put it into ``with isolation.unwatched():``.
"""

import contextvars
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.utils.connection import ConnectionDoesNotExist

from .watch import SessionWatch

logger = logging.getLogger("django_workpool.execution")

T = TypeVar("T")

_here = threading.local()
#: What a forked copy must never close.
_original: list[BaseDatabaseWrapper] = []


class Isolation:
    """Keeps the functions that run on one thread apart. Made and used on that thread only.

    Args:
        home: the working directory to return to; by default the present one. It is the whole process's: name it if threads are
            made while functions run.
    """

    def __init__(self, home: str | None = None) -> None:
        self._home = home if home is not None else working_folder()
        self._label: str | None = None
        self._paused = False
        _here.isolation = self
        self._watches = {connection: SessionWatch(connection) for connection in connections.all(initialized_only=True)}

    @property
    def has_connections(self) -> bool:
        """Whether this thread has ever opened a connection to a database."""
        return bool(self._watches)

    @contextmanager
    def function(self, label: str) -> Iterator[Self]:
        """Surround one function: ``begin`` and ``end``."""
        self.begin(label)
        try:
            yield self
        finally:
            self.end()

    def begin(self, label: str) -> None:
        """Start watching the thread's connections, and drop those that cannot be used any more.

        Args:
            label: what runs, for the log: the path of the function.
        """
        if self._label is not None:
            self.end()
        _here.isolation = self
        self._label = label
        for watch in tuple(self._watches.values()) if self._watches else ():
            self._heal(watch)
            watch.begin()

    def call(self, func: Callable[..., T], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> T:
        """Call ``func`` in an empty context, and return or raise what it does.

        If it has forked, a copy of the process may come back from it, too. That one must complete nothing, and ends here.
        """
        for watch in self._watches.values():
            watch.mark()
            watch.doubt()
        original = os.getpid()
        try:
            return contextvars.Context().run(func, *args, **(kwargs or {}))
        finally:
            if os.getpid() != original:
                os._exit(0)

    def distrust(self) -> None:
        """Close the thread's connections at the ``end``, whatever they look like: an exception may have come anywhere."""
        for connection in connections.all(initialized_only=True):
            self.adopt(connection)
        for watch in self._watches.values():
            watch.tainted = True

    def leftovers(self, using: str) -> str | None:
        """Return what the last ``call`` did to the transaction of ``using`` that makes it unfit to go on, or None.

        Repairs nothing: let the transaction roll back. The text goes on after "the function".
        """
        watch = self._watches.get(connections[using])
        return watch.leftovers() if watch is not None else None

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Let statements of the pool's own pass unseen."""
        self._pause(True)
        try:
            yield
        finally:
            self._pause(False)

    def end(self) -> None:
        """Make the thread fresh again, and warn of what was left behind. Never raises; does nothing without a ``begin``."""
        label, self._label = self._label, None
        if label is None:
            return
        if self._paused:
            self._pause(False)
        for watch in tuple(self._watches.values()) if self._watches else ():
            try:
                self._restore(watch, label)
            except BaseException:
                # Whatever it was, this connection must not reach the next function.
                with suppress(BaseException):
                    watch.reset()
                logger.exception("%s: its connection %r could not be restored and was closed.", label, watch.connection.alias)
        self._return_home(label)

    def heal(self) -> None:
        """Drop connections that cannot be used any more, and nothing else: allowed while functions use the others."""
        for watch in tuple(self._watches.values()):
            self._heal(watch, in_use=True)
            watch.doubt()

    def close(self) -> None:
        """End with the thread: close its connections. Never raises."""
        self.end()
        _here.isolation = None
        for watch in self._watches.values():
            with suppress(BaseException):
                watch.connection.close()
        self._watches.clear()

    def disown(self) -> None:
        """In a forked copy of the process: let go of the thread's connections without closing them. Their sessions are the original's."""
        _here.isolation = None
        for connection in connections.all(initialized_only=True):
            _original.append(connection)
            del connections[connection.alias]
        self._watches.clear()

    def adopt(self, connection: BaseDatabaseWrapper) -> None:
        """Learn of a connection that was opened on this thread."""
        if connection in self._watches:
            # What Django itself sends to a new session is none of the function's doing.
            self._watches[connection].tainted = False
            return
        if not _is_shared(connection):
            return
        for other in [other for other in self._watches if other.alias == connection.alias]:
            # It has been replaced in ``connections``: nobody is given it any more.
            with suppress(Exception):
                self._watches.pop(other).reset()
        watch = self._watches[connection] = SessionWatch(connection)
        if self._label is not None:
            watch.begin(opened=True)
            watch.pause(self._paused)

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        for watch in self._watches.values():
            watch.pause(paused)

    def _heal(self, watch: SessionWatch, *, in_use: bool = False) -> None:
        try:
            dead = watch.is_dead(in_use=in_use)
        except Exception:
            logger.exception("The connection %r could not be checked and was closed.", watch.connection.alias)
            dead = True
        if dead:
            watch.reset()

    def _restore(self, watch: SessionWatch, label: str) -> None:
        left = watch.end()
        alias = watch.connection.alias
        if watch.borrowed:
            if left:
                logger.warning("%s %s: the connection %r belongs to a surrounding transaction, and stays so.", label, left, alias)
            return
        if left:
            logger.warning("%s %s: the connection %r was rolled back and closed.", label, left, alias)
            watch.reset()
        elif watch.tainted and watch.connection.connection is not None:
            logger.debug("%s changed the session of the connection %r: closed.", label, alias)
            watch.reset()
        elif getattr(watch.connection, "pool", None) is not None:
            # It goes back to Django's pool, where other threads may be waiting for one.
            watch.connection.close()
        else:
            self._heal(watch)
            if not watch.connection.force_debug_cursor:
                watch.connection.queries_log.clear()

    def _return_home(self, label: str) -> None:
        folder = working_folder()
        if folder == self._home or self._home is None:
            return
        logger.warning("%s left the working directory at %r: back to %r.", label, folder, self._home)
        try:
            os.chdir(self._home)
        except OSError:
            logger.exception("%s: the working directory %r cannot be entered again.", label, self._home)


def working_folder() -> str | None:
    """Return the working directory, or None if it has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _is_shared(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the next function on this thread would be given ``connection``."""
    try:
        return connections[connection.alias] is connection
    except ConnectionDoesNotExist:
        return False


def _learn(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    isolation: Isolation | None = getattr(_here, "isolation", None)
    if isolation is not None:
        isolation.adopt(connection)


def _disown() -> None:
    isolation: Isolation | None = getattr(_here, "isolation", None)
    if isolation is not None:
        isolation.disown()


connection_created.connect(_learn, dispatch_uid="django_workpool.execution.isolation")
os.register_at_fork(after_in_child=_disown)
