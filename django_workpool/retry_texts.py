"""Stored retry behaviours: what a work's row says of its retries, and how that changes when the work is let run again.

Somebody may have written into the row. What cannot be read makes a failure final: raised, it would keep the work from ever ending, and
an iteration of the loop from all other works.
"""

import logging
import uuid
from typing import Any

from . import serialization
from .exceptions import InvalidWork
from .types import MAX_ATTEMPTS, RetryBehavior

logger = logging.getLogger("django_workpool.loop")


def read(text: str, work_id: uuid.UUID) -> RetryBehavior | None:
    """Return a work's retry behaviour; None if a failure is final."""
    if not text:
        return None
    try:
        return RetryBehavior.from_json(serialization.decode(text))
    except (ValueError, TypeError, LookupError, OverflowError, InvalidWork) as error:
        logger.error("the retry behaviour of work %s cannot be read, so a failure is final: %s", work_id, error)
        return None


def failed_since(text: str, attempts: int) -> int:
    """Return how many of a work's attempts it has had since it was last let run again, at least 1: its waits follow from that."""
    before = _stored(text).get("before")
    return max(1, attempts - before) if type(before) is int else max(1, attempts)


def raised(text: str, attempts: int) -> str:
    """Return a text that allows a work which has had ``attempts`` as many more as it did at first, with waits that begin anew."""
    stored = _stored(text)
    # However often it is let run again: what it had at first is kept beside what it has now.
    allowed = stored.get("allowed", stored.get("max_attempts"))
    if type(allowed) is not int:
        return text
    stored |= {"max_attempts": min(MAX_ATTEMPTS, attempts + allowed), "allowed": allowed, "before": attempts}
    return serialization.encode(stored, "retry")


def _stored(text: str) -> dict[str, Any]:
    try:
        stored = serialization.decode(text) if text else {}
    except ValueError:
        return {}
    return stored if isinstance(stored, dict) else {}
