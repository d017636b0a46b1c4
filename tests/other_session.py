"""Another session that has something locked while a test goes on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections, transaction

PATIENCE = 20


@contextmanager
def another_session(lock: Callable[[], object]) -> Iterator[None]:
    """Call ``lock`` in a transaction on another thread, which stays open until the block ends."""
    has, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            lock()
            has.set()
            done.wait(PATIENCE)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert has.wait(PATIENCE)
        yield
    finally:
        done.set()
        thread.join()
