"""The threads on which synchronous parts of coroutines run: asgiref's one thread, Django's queries among them, and those beside it.

Coroutines use its connections in turns, so what one of them leaves behind, the others meet. It is put right in the moments in
which none runs; connections that are dead are dropped at any time. All event loops of a process share it: there is one for each
database that the process serves.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async

from .isolation import Isolation

logger = logging.getLogger("django_workpool.execution")

#: Seconds between two looks at the connections while coroutines run all the time.
LOOK_EVERY = 1.0

_lock = threading.Lock()
#: What uses the thread.
_users: "weakref.WeakSet[SharedThread]" = weakref.WeakSet()
#: The thread, and what keeps it in order: one for all. Changed on that thread only.
_kept: tuple[int, Isolation] | None = None


class SharedThread:
    """Keeps the connections of asgiref's thread in order, for one event loop. Used from that loop only.

    Args:
        name: what uses the thread, for the log.
        home: its working directory, as ``Isolation`` takes it.
        is_quiet: whether none of the loop's coroutines runs.
    """

    def __init__(self, name: str, home: str | None, is_quiet: Callable[[], bool]) -> None:
        self._name = name
        self._home = home
        self._label = f"A coroutine of {name}"
        self._is_quiet = is_quiet
        self._looked = 0.0
        with _lock:
            _users.add(self)

    def is_due(self) -> bool:
        """Return whether ``tidy`` has something to do."""
        if _kept is None:
            # It must be there before the first connection is opened.
            return True
        return _kept[1].has_connections and (time.monotonic() - self._looked >= LOOK_EVERY or self._is_quiet())

    async def tidy(self) -> None:
        """Put the connections right. Whatever this loop sends to the thread after this task has begun, finds them so."""
        self._looked = time.monotonic()
        try:
            # Asked and sent in one step of the loop: whoever begins after it comes after it on the thread too.
            await sync_to_async(self._tidy, thread_sensitive=True)(self._is_quiet())
        except Exception:
            logger.exception("%s: the connections of coroutines could not be checked.", self._name)

    async def close(self) -> None:
        """Close the connections, unless coroutines of other loops use them."""
        if _kept is not None:
            await sync_to_async(self._close, thread_sensitive=True)()

    # From here on: on the thread.

    def _others_are_quiet(self) -> bool:
        # Asked here: what a coroutine of another loop, begun after the answer, sends to this thread comes after what is done now.
        with _lock:
            others = [user for user in _users if user is not self]
        return all(user._is_quiet() for user in others)

    def _tidy(self, quiet: bool) -> None:
        global _kept
        if _kept is None or _kept[0] != threading.get_ident():
            _kept = threading.get_ident(), Isolation(self._home)
            _kept[1].begin(self._label)
        elif quiet and self._others_are_quiet():
            _kept[1].begin(self._label)
        else:
            _kept[1].heal()

    def _close(self) -> None:
        global _kept
        if _kept is not None and _kept[0] == threading.get_ident() and self._others_are_quiet():
            _kept[1].close()
            _kept = None


class ThreadsBeside(ThreadPoolExecutor):
    """A loop's own threads: for ``asyncio.to_thread``, and for synchronous code that asgiref may run on any.

    Each call finds its thread's connections alive, and as after a start.

    Args:
        name: what uses the threads.
        home: their working directory, as ``Isolation`` takes it.
    """

    def __init__(self, name: str, home: str | None) -> None:
        super().__init__(thread_name_prefix=f"{name}-beside")
        self._home, self._label = home, f"A coroutine of {name}, on a thread beside it,"
        self._kept = threading.local()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Call ``fn`` on one of the threads."""
        return super().submit(self._call, fn, args, kwargs)

    def _call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        isolation: Isolation | None = getattr(self._kept, "isolation", None)
        if isolation is None:
            isolation = self._kept.isolation = Isolation(self._home)
        with isolation.function(self._label):
            # It brings the context that it wants.
            return isolation.call(func, args, kwargs)
