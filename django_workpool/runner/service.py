"""Threads that do not die quietly: each is restarted when it fails, and ends the process when it keeps failing."""

import logging
import threading
import time
from collections.abc import Callable

from django.db import connections

from ..database import DatabaseReplaced
from ..database_errors import is_away, is_conflict
from ..failures import first_line

logger = logging.getLogger("django_workpool.runner")

#: Failures within this many seconds that are one too many.
WITHIN, FAILURES_MAX = 60.0, 20
#: Seconds until the next try. A second at most: whoever is away for as long as a death is watched would be taken for dead.
WAIT_FIRST, WAIT_MAX = 0.2, 1.0
#: A body that lasted longer has not just gone on failing.
LASTED = 5.0
#: Looks in a row without progress, at 50 ms each, after which a thread is stuck: no statement of the pool's own may take so long.
STUCK_LOOKS = 800
#: Seconds between two lines of a database that stays away.
TELL_EVERY = 30.0


class Service:
    """A supervised thread.

    Args:
        name: For logs and the list of threads.
        body: Runs until the event is set; returns or raises.
        stop: Set when the process stops.
        progress: Tells something else each time as long as the body gets on.
        unblock: Cuts the connection that a body waits on which does not.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[threading.Event], None],
        stop: threading.Event,
        progress: Callable[[], object] = object,
        unblock: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.body, self.stop, self.progress, self.unblock = name, body, stop, progress, unblock
        self.gave_up = False
        self._seen: object = None
        self._looks = self._stuck = 0
        self._failures: list[float] = []
        self._restarts = 0
        self._thread = threading.Thread(target=self._run, name=f"workpool-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for its end, at most ``timeout`` seconds; return whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_dead(self) -> bool:
        """Whether it has ended though nobody asked for it."""
        return self.gave_up or (not self._thread.is_alive() and not self.stop.is_set())

    def look(self) -> None:
        """See whether it gets on; called again and again. Looks are counted instead of seconds: while nothing looks, nothing can get on.

        A server, or a proxy before it, may take a statement and never answer. Its connection is cut then, which the body sees as lost;
        if that does not help either, the thread is given up, and the process ends.
        """
        seen = (self.progress(), self._restarts)
        self._looks = self._looks + 1 if seen == self._seen else 0
        if seen != self._seen:
            self._seen, self._stuck = seen, 0
        if self._looks >= STUCK_LOOKS:
            self._looks, self._stuck = 0, self._stuck + 1
            self.gave_up = self._stuck > 1
            logger.error("%s does not get on: %s", self.name, "giving up" if self.gave_up else "what it waits for is cut")
            self.unblock()

    def _run(self) -> None:
        wait, told = WAIT_FIRST, float("-inf")
        while True:
            began = time.monotonic()
            try:
                self.body(self.stop)
                return
            except DatabaseReplaced as error:
                logger.critical("%s: %s", self.name, error)
                self.gave_up = True
                return
            except Exception as error:
                connections.close_all()
                self._restarts += 1
                now = time.monotonic()
                self._failures = [at for at in self._failures if now - at < WITHIN] + [now]
                # A database that is away is not this process's failure: it is tried for as long as it takes.
                away = is_away(error) or is_conflict(error)
                if not away and len(self._failures) > FAILURES_MAX:
                    logger.exception("%s failed %s times within %s seconds: giving up", self.name, len(self._failures), WITHIN)
                    self.gave_up = True
                    return
                if now - began > LASTED:
                    wait, told = WAIT_FIRST, float("-inf")
                if away:
                    if now - told > TELL_EVERY:
                        told = now
                        what = "away" if is_away(error) else "busy"
                        logger.warning("%s: the database is %s (%s), tried again every second", self.name, what, first_line(error))
                else:
                    logger.exception("%s failed, starting it again in %.1f s", self.name, wait)
                if self.stop.wait(wait):
                    return
                wait = min(wait * 2, WAIT_MAX)
