"""The pool's time, moved on without waiting.

The one clock of a pool is its database's, and all statements ask ``Database`` for it: what is added there is added everywhere, for
this process. Python's clock and the database's own stay as they are, so functions see the real time.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connections
from django.test import testcases
from django.utils import timezone

from .. import conf
from ..database import database
from ..segments import SEGMENT_MS

_MS = timedelta(milliseconds=1)


def aliases(names: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the pools of the settings by the database that holds their rows.

    Args:
        names: Only these pools. Left out: all but those in databases that the test may not use, as its ``databases`` does not name them.
    """
    found: dict[str, list[str]] = {}
    for pool in conf.pools():
        if names is None or pool in names:
            found.setdefault(conf.database_alias(pool), []).append(pool)
    usable = found if names is not None else {alias: pools for alias, pools in found.items() if not _is_forbidden(alias)}
    # Where none may be used, Django says what is to be done.
    return usable or found


def _is_forbidden(alias: str) -> bool:
    # Django's test cases put such an object in the place of what would open a connection.
    return isinstance(vars(connections[alias]).get("cursor"), getattr(testcases, "_DatabaseFailure", ()))


@contextmanager
def travel(to: timedelta | datetime | float) -> Iterator[None]:
    """Move the pools' time on inside the block, by a tenth of a second more: what is due by then, starts with the next ``run_work()``.

    Args:
        to: How far, as a timedelta or in seconds; or until when, as ``run_after`` takes it: aware, or naive in TIME_ZONE without USE_TZ.

    Raises:
        ValueError: that would be back in time, or is no time at all.
    """
    moved = {alias: _distance_ms(alias, to) for alias in aliases()}
    for alias, ms in moved.items():
        database(alias).ahead_ms += ms
    try:
        yield
    finally:
        for alias, ms in moved.items():
            database(alias).ahead_ms -= ms


def _distance_ms(alias: str, to: timedelta | datetime | float) -> int:
    if isinstance(to, datetime):
        if timezone.is_naive(to):
            if settings.USE_TZ:
                raise ValueError(f"travel(): {to!r} is naive, but USE_TZ is on.")
            to = timezone.make_aware(to, timezone.get_default_timezone())
        ms = to.timestamp() * 1000 - database(alias).clock_ms()
    elif isinstance(to, timedelta):
        ms = to / _MS
    elif isinstance(to, (int, float)) and not isinstance(to, bool):
        ms = to * 1000.0
    else:
        raise ValueError(f"travel() takes a timedelta, seconds or a datetime, not {type(to).__name__}: {to!r}.")
    if not 0 <= ms < 1e14:
        raise ValueError(f"travel() goes on in time only: {to!r} is {ms / 1000:,.1f} seconds from the pool's present.")
    # A segment more: what is due at that moment is to be due by then. In whole milliseconds, so that the way back is exact.
    return math.ceil(ms) + SEGMENT_MS
