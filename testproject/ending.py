"""How long commands end when they are told to."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block through its context managers, and the process with 128 + their number."""
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        # Once, and undisturbed.
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)
        told.append(number)
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        yield
    except Exception:
        if not told:
            raise
    # Raised in the middle of a statement, it leaves a connection on which the end of a transaction fails, or is lost in the driver.
    if told:
        raise SystemExit(128 + told[0])
