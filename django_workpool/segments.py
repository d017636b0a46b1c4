"""Slices of 100 ms of the database's time: the unit in which the queues are ordered."""

import math

#: Milliseconds in a segment. Stored segments depend on it: it never changes.
SEGMENT_MS = 100
SECOND = 10
MINUTE = 60 * SECOND
YEAR = 365 * 24 * 60 * MINUTE


def floor_segment(ms: float) -> int:
    """Return the segment that holds the moment ``ms`` (milliseconds since 1970)."""
    return math.floor(ms / SEGMENT_MS)


def ceil_segment(ms: float) -> int:
    """Return the first segment that does not begin before the moment ``ms``, so that nothing starts early."""
    return math.ceil(ms / SEGMENT_MS)


def segment_ms(segment: int) -> int:
    """Return the beginning of ``segment`` in milliseconds since 1970."""
    return segment * SEGMENT_MS
