"""Server-sent events: where a work is, each time that it has changed, for a while."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections

from .. import conf
from ..failures import first_line
from .answers import answer
from .links import Link

logger = logging.getLogger("django_workpool.site")

#: Seconds between two looks at the database.
EVERY = 1.0
#: Seconds without an event after which something is sent all the same: proxies close what is silent, and a client that is gone is seen.
HEARTBEAT = 15.0
#: Seconds that a stream lasts: where it is a coroutine, and where it holds a thread of the server.
LASTS, LASTS_IN_THREAD = 60.0, 10.0
#: Looks of this process at the same time. Each may take a connection, and there may be hundreds of streams.
LOOKS_AT_ONCE = 4
#: Milliseconds after which a browser comes again.
AGAIN = 2_000
#: The id of the last event: a client that has it need not come again.
FINISHED = "finished"

_looks = threading.BoundedSemaphore(LOOKS_AT_ONCE)


class Stream:
    """One client's stream.

    Args:
        link: Which work, and what is told of it.
        lasts: Seconds.
    """

    def __init__(self, link: Link, lasts: float) -> None:
        self.link = link
        self.over = False
        self._until = time.monotonic() + lasts
        self._sent = ""
        self._sent_at = time.monotonic()

    def look(self) -> str:
        """Ask the database once, and return what is to be sent; nothing if nothing has changed, or so many ask that it was not its turn."""
        if not _looks.acquire(timeout=EVERY):
            self.over = time.monotonic() >= self._until
            return ""
        try:
            found = answer(self.link)
        except DatabaseError as error:
            # The client comes again.
            logger.warning("a stream of events ends: %s", first_line(error))
            self.over = True
            return ""
        finally:
            try:
                connection = connections[conf.database_alias(self.link.pool)]
                if not connection.in_atomic_block:
                    # Not kept between two looks, unless the project keeps its connections. A transaction here is a test's.
                    connection.close_if_unusable_or_obsolete()
            finally:
                _looks.release()
        ended = found["state"] == "finished"
        self.over = ended or time.monotonic() >= self._until
        text, now = json.dumps(found), time.monotonic()
        if text != self._sent:
            self._sent, self._sent_at = text, now
            return f"event: state\n{f'id: {FINISHED}' if ended else 'id'}\ndata: {text}\n\n"
        if now - self._sent_at >= HEARTBEAT:
            self._sent_at = now
            return ":\n\n"
        return ""


def events_in_thread(link: Link) -> Iterator[str]:
    """Yield a stream's pieces, on a thread that it holds."""
    stream = Stream(link, LASTS_IN_THREAD)
    yield f"retry: {AGAIN}\n\n"
    while True:
        if piece := stream.look():
            yield piece
        if stream.over:
            return
        time.sleep(EVERY)


async def async_events(link: Link) -> AsyncIterator[str]:
    """Yield a stream's pieces, as a coroutine."""
    stream = Stream(link, LASTS)
    yield f"retry: {AGAIN}\n\n"
    while True:
        if piece := await sync_to_async(stream.look)():
            yield piece
        if stream.over:
            return
        await asyncio.sleep(EVERY)
