"""Events of a pool at the level that its row names: the one way by which the rooms tell what happened."""

from collections.abc import Mapping
from typing import Any

from . import conf, events

_levels: dict[str, str] = {}


def set_levels(levels: Mapping[str, str]) -> None:
    """Take over the levels that the pools' rows name; an empty one leaves it to WORKPOOL_LOG_LEVEL."""
    _levels.update(levels)


def log(event: str, level: str, pool: str, **fields: Any) -> None:
    """Emit an event unless the pool's level is above it."""
    events.emit(event, pool=pool, level=level, threshold=_levels.get(pool) or conf.default_log_level(), **fields)
