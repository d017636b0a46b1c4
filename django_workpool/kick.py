"""Wake the main loop, unless it is pointless. Kicks are hints: a lost one costs at most a poll interval.

This room writes nothing. It reads RunStatus after the commit of whoever inserted something, on the same connection.
"""

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from django.db import transaction

from .database import Condition, Hint, database
from .segments import SEGMENT_MS
from .types import LoopState

#: Half of the second that the loop reads behind its cursor: rows that were committed later than this after their
#: insert may lie behind what it reads, so it is told to look behind.
LATE_AFTER = 0.5


class Source(Enum):
    """Who kicks."""

    ENQUEUE = "enqueue"
    #: A completion that frees a slot.
    COMPLETE = "complete"
    #: A completion that goes back, a cancelation, a changed limit: the loop must look, whatever it waits for.
    RETRY = "retry"
    CANCEL = "cancel"
    CONFIGURE = "configure"


_ALWAYS = (Source.RETRY, Source.CANCEL, Source.CONFIGURE)

#: The processes' own loops and workers: they are told directly, without a statement.
_listeners: dict[str, list[Callable[[Hint], bool]]] = {}


def listen(using: str, listener: Callable[[Hint], bool]) -> Callable[[], None]:
    """Register this process's ear; it returns whether the hint has reached the one it is for.

    Returns:
        A function that removes it.
    """
    _listeners.setdefault(using, []).append(listener)
    return lambda: _listeners[using].remove(listener)


def pointless(source: Source, due: int, now: str) -> Condition:
    """Return a condition on RunStatus: the loop's status makes a kick pointless.

    Args:
        source: What has changed.
        due: The segment at which the inserted work is due.
        now: SQL for the current time in segments, with or without the part of the current one that has passed.
    """
    running = f"state = '{LoopState.RUNNING.value}'"
    if source in _ALWAYS:
        return running, []
    saturated = "saturated OR " if source is Source.ENQUEUE else ""
    # It comes by itself before that, or so soon that a kick would not be quicker.
    scheduled = f"state = '{LoopState.SCHEDULED.value}' AND ({saturated}segment <= %s OR segment <= {now} + 1)"
    return f"({running} OR {scheduled})", [due]


def kick(using: str, pool: str, source: Source, *, due: int = 0, late: bool = False) -> None:
    """Wake the main loop for ``pool`` unless its status makes that pointless. Call it after the commit.

    Args:
        using: The database.
        pool: Whose queues have changed.
        source: What has changed.
        due: The segment at which the inserted work is due.
        late: More than half the cursor's buffer has passed since the insert: look behind the cursor.
    """
    db = database(using)
    hint = Hint("late" if late else "pool", pool)
    # In this process a freed slot is told as what it is: the loop need not hurry as long as enough waits for its threads.
    here = Hint("ended", pool) if source is Source.COMPLETE and not late else hint
    if tell(using, here) or not db.kicks:
        return
    unless = None
    if not late:
        # One statement looks and sends. Without a row the pool is new, and its loop may be asleep.
        condition, params = pointless(source, due, f"({db.clock_ms_sql}) / {SEGMENT_MS}")
        unless = f"SELECT 1 FROM {{RunStatus}} WHERE pool = %s AND {condition}", [pool, *params]
    db.notify([hint], unless)


def tell(using: str, hint: Hint) -> bool:
    """Tell a hint to this process's own loops; return whether it has reached the one that leads."""
    return any([listener(hint) for listener in _listeners.get(using, ())])


class _Kick:
    """What on_commit calls; one for all inserts of a pool in a transaction."""

    def __init__(self, using: str, pool: str, source: Source, due: int) -> None:
        self.using, self.pool, self.source, self.due = using, pool, source, due
        self.inserted = time.monotonic()

    def __call__(self) -> None:
        kick(self.using, self.pool, self.source, due=self.due, late=time.monotonic() - self.inserted > LATE_AFTER)


def kick_after_commit(using: str, pool: str, source: Source, due: int = 0) -> None:
    """Kick when the current transaction has committed: once, however often the transaction asks for it."""
    connection: Any = database(using).connection
    open_savepoints = set(connection.savepoint_ids)
    # The newest few are enough: hooks of other code seldom stand between two of ours.
    for savepoints, hook, *_ in connection.run_on_commit[:-9:-1]:
        if isinstance(hook, _Kick) and (hook.pool, hook.source) == (pool, source) and set(savepoints) <= open_savepoints:
            hook.due = min(hook.due, due)
            return
    transaction.on_commit(_Kick(using, pool, source, due), using=using, robust=True)
