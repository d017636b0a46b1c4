"""The one thread on which asgiref runs the synchronous parts of coroutines, Django's queries among them.

Coroutines use its connections in turns, so what one of them leaves behind, the others meet. It is put right in the moments in
which none runs; connections that are dead are dropped at any time.
"""

import logging
import time
from collections.abc import Callable

from asgiref.sync import sync_to_async

from .isolation import Isolation

logger = logging.getLogger("django_workpool.execution")

#: Seconds between two looks at the connections while coroutines run all the time.
LOOK_EVERY = 1.0


class SharedThread:
    """Keeps the connections of asgiref's thread in order. Used from the event loop only.

    Args:
        name: what uses the thread, for the log.
        home: its working directory, as ``Isolation`` takes it.
    """

    def __init__(self, name: str, home: str | None) -> None:
        self._name = name
        self._home = home
        self._label = f"A coroutine of {name}"
        self._isolation: Isolation | None = None
        self._looked = 0.0

    def is_due(self, quiet: bool) -> bool:
        """Return whether ``tidy`` has something to do. ``quiet``: no coroutine runs at this moment."""
        if self._isolation is None:
            # It must be there before the first connection is opened.
            return True
        return self._isolation.has_connections and (quiet or time.monotonic() - self._looked >= LOOK_EVERY)

    async def tidy(self, is_quiet: Callable[[], bool]) -> None:
        """Put the connections right. Whatever is sent to the thread after this task has begun, finds them so."""
        self._looked = time.monotonic()
        try:
            # Asked and sent in one step of the loop: whoever begins after it comes after it on the thread too.
            await sync_to_async(self._tidy, thread_sensitive=True)(is_quiet())
        except Exception:
            logger.exception("%s: the connections of coroutines could not be checked.", self._name)

    async def close(self) -> None:
        """Close the connections."""
        if self._isolation is not None:
            await sync_to_async(self._isolation.close, thread_sensitive=True)()
            self._isolation = None

    def _tidy(self, quiet: bool) -> None:
        if self._isolation is None:
            self._isolation = Isolation(self._home)
            self._isolation.begin(self._label)
        elif quiet:
            self._isolation.begin(self._label)
        else:
            self._isolation.heal()
