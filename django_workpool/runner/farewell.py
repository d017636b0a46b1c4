"""The very end: Python waits for threads that functions have started and left behind, and for what is called at exit. Not for ever."""

import logging
import os
import threading
import time
from contextlib import suppress

logger = logging.getLogger("django_workpool.runner")

#: Seconds that they get in any case, and between two looks.
LEAST, EVERY = 1.0, 0.05


class Farewell:
    """Ends the process at the latest when its grace time is over, or at the second signal.

    Args:
        grace: Seconds from the first signal, or from the end of the work if there was none.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._signals = 0
        self._asked: float | None = None

    def signal(self) -> None:
        """Take a signal. In its handler."""
        self._signals += 1
        if self._asked is None:
            self._asked = time.monotonic()

    def begin(self, code: int) -> None:
        """Let the process end, with this exit code: by itself as long as there is time, else at once."""
        with suppress(RuntimeError):
            threading.Thread(target=self._end, args=(code,), name="workpool-farewell", daemon=True).start()

    def _end(self, code: int) -> None:
        # A daemon lives as long as Python waits for others.
        now = time.monotonic()
        least, until = now + LEAST, (now if self._asked is None else self._asked) + self.grace
        while time.monotonic() < least or (time.monotonic() < until and self._signals < 2):
            time.sleep(EVERY)
        left = sorted(one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread())
        told = ", ".join(left) or "a pool of threads, or a call at exit"
        with suppress(Exception):
            logger.warning("what was left behind does not end (%s): the process ends without it", told)
        os._exit(code)
