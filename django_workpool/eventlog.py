"""Events of a pool at the level that its row names: the one way by which the rooms tell what happened."""

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from . import conf, events
from .database import Part

#: The levels by pool, of all databases; and those of each database.
_levels: dict[str, str] = {}
_by_database: dict[str, Mapping[str, str]] = {}

#: The pools that name a level.
LEVELS = Part("levels", "SELECT pool, log_level FROM {Globals} WHERE log_level <> ''")


def set_levels(using: str, levels: Mapping[str, str]) -> None:
    """Take over the levels that the pools' rows in a database name; those of pools that are left out are left to WORKPOOL_LOG_LEVEL."""
    global _levels
    _by_database[using] = levels
    if len(_by_database) == 1:
        _levels = dict(levels)
        return
    found: dict[str, str] = {}
    for alias, named in list(_by_database.items()):
        # A pool that has moved to another database has left its row behind.
        found |= {pool: level for pool, level in named.items() if pool not in conf.pools() or conf.database_alias(pool) == alias}
    _levels = found


def level_of(pool: str) -> str:
    """Return the level that a pool's row names; empty if it names none, or is not known yet."""
    return _levels.get(pool, "")


def log_to_stderr() -> None:
    """Show the pool's log where the project configures none for it."""
    pool_logger = logging.getLogger("django_workpool")
    if not pool_logger.hasHandlers():
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        formatter.converter = time.localtime
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter)
        pool_logger.addHandler(handler)
    if pool_logger.level == logging.NOTSET:
        # What is shown is decided by each pool's own level.
        pool_logger.setLevel(logging.DEBUG)


def is_wanted(level: str, pool: str) -> bool:
    """Return whether an event of a level is told: asked where there would be one for each of many works."""
    return events.is_wanted(level, _levels.get(pool) or conf.default_log_level())


def log(event: str, level: str, pool: str, **fields: Any) -> None:
    """Emit an event unless the pool's level is above it."""
    events.emit(event, pool=pool, level=level, threshold=_levels.get(pool) or conf.default_log_level(), **fields)
