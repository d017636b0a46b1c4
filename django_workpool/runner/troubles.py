"""Pools whose iterations fail: when the next try is, and when to say that one is wedged."""

import time

from .. import eventlog
from ..execution.courier import courier
from ..failures import describe
from ..signals import pool_wedged

#: Seconds until the next try of what has failed: as long as it has failed already, within these.
RETRY_AFTER, RETRY_MAX = 0.1, 5.0
#: Seconds of failures in a row after which, and between which, the loop says that it is wedged.
WEDGED_AFTER = 5.0


class Troubles:
    """What fails now, by pool ("*": all of them)."""

    def __init__(self) -> None:
        #: Since when, and when that was told last.
        self._failing: dict[str, tuple[float, float]] = {}

    def note(self, pool: str, error: Exception, *, is_over: bool) -> float:
        """Note a failure; return the monotonic time of the next try.

        Args:
            pool: The pool.
            error: What was raised.
            is_over: Whether the lead ends with it, which is told elsewhere.
        """
        now = time.monotonic()
        since, told = self._failing.get(pool, (now, now))
        if not is_over and now - told > WEDGED_AFTER:
            told = now
            text, seconds = describe(error).text, round(now - since)
            eventlog.log("wedged", "ERROR", pool, error=text, since_s=seconds)
            courier.post(pool_wedged, pool=pool, reason="wedged", error=text, seconds=seconds)
        self._failing[pool] = (since, told)
        return now + min(RETRY_MAX, max(RETRY_AFTER, now - since))

    def over(self, pool: str) -> None:
        """Note that a pool's iteration has succeeded."""
        self._failing.pop(pool, None)
