"""The signals by which a project hears of its works. Their arguments are plain values: no row of a table is handed out.

Each is sent with ``sender=None``; a receiver tells pools apart by ``pool``. ``kind`` is "action", "mutation", "query" or "callback",
``function`` the function's dotted path, ``name`` the label that it was enqueued with. Receivers take ``**kwargs``, as arguments may
come to these.
"""

from django.dispatch import Signal

#: Sent by ``enqueue`` and its like once for each call, in the caller's transaction after the insert: what a receiver raises comes out of
#: ``enqueue``, and nothing has been enqueued. Arguments: pool, work_ids (tuple of UUID), name, function, kind, using (alias).
work_enqueued = Signal()

#: Sent where the function runs (its thread, its coroutine, its child process), just before it is called, outside of its transaction.
#: Arguments: pool, work_id, name, function, kind, attempt (1 for the first one).
work_started = Signal()

#: Sent by the process that has written an attempt's end, after its commit, on a thread of its own: at most once.
#: Arguments: pool, work_id, name, function, kind, attempts (that have ended), status ("success", "failed", "canceled": the work has
#: ended; "retrying", "returned": it goes back to the queue), error (text, empty for a success).
work_completed = Signal()

#: Sent on the same thread when a pool does not go on. Arguments: pool ("*": all of them), reason ("wedged": its iterations fail;
#: "stalled": works are due and are not placed; "no_leader": nobody leads), error (text, may be empty), seconds (since when).
pool_wedged = Signal()


def is_heard(signal: Signal) -> bool:
    """Return whether anybody listens: nothing is prepared, and nothing costs anything, for nobody."""
    # The list first, as the question itself takes a lock.
    return bool(signal.receivers) and signal.has_listeners()
