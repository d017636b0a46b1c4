"""Identifiers of work: UUIDs of version 7, made by the client."""

import os
import time
import uuid
from collections.abc import Iterable

from .exceptions import InvalidWork

_MS = (1 << 48) - 1
_RANDOM = (1 << 62) - 1
_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62
_UNKNOWN = uuid.SafeUUID.unknown


def new_work_id() -> uuid.UUID:
    """Return a new UUIDv7 (RFC 9562): sortable by its time, and not guessable.

    The twelve bits after the version hold the fraction of the millisecond (method 3 of section 6.2), so that the ids of
    one process sort in the order they were made.
    """
    ms, rest = divmod(time.time_ns(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    random = int.from_bytes(os.urandom(8), "big") & _RANDOM
    return _uuid((ms & _MS) << 80 | fraction << 64 | random | _VERSION_AND_VARIANT)


def _uuid(number: int) -> uuid.UUID:
    # What UUID(int=number) makes, without its checks: they are a third of the cost of an id.
    made = object.__new__(uuid.UUID)
    object.__setattr__(made, "int", number)
    object.__setattr__(made, "is_safe", _UNKNOWN)
    return made


def parse_work_id(value: object) -> uuid.UUID | None:
    """Return ``value`` as a UUID, or None if it is not one (a string of another form, a number, ...)."""
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, str):
        try:
            return uuid.UUID(value)
        except ValueError:
            return None
    return None


def parse_work_ids(values: Iterable[object]) -> list[uuid.UUID]:
    """Return ``values`` as UUIDs, each once, in their order.

    Raises:
        InvalidWork: something is not one.
    """
    found: dict[uuid.UUID, None] = {}
    for value in values:
        parsed = parse_work_id(value)
        if parsed is None:
            raise InvalidWork(f"{value!r} is not the id of a work.")
        found[parsed] = None
    return list(found)


def time_of(work_id: uuid.UUID) -> float | None:
    """Return when an id was made, in seconds since 1970 by the clock of its maker; None for one of another version."""
    if work_id.version != 7:
        return None
    fraction = (work_id.int >> 64) & 0xFFF
    return ((work_id.int >> 80) + fraction / 4096) / 1000
