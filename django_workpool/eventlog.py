"""Events of a pool at the level that its row names: the one way by which the rooms tell what happened."""

import logging
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.db import transaction

from . import conf, events, tracing
from .database import NewWork, Part
from .types import Failure, ResultKind

#: The levels by pool, of all databases; and those of each database.
_levels: dict[str, str] = {}
_by_database: dict[str, Mapping[str, str]] = {}

#: The pools that name a level.
LEVELS = Part("levels", "SELECT pool, log_level FROM {Globals} WHERE log_level <> ''")


def set_levels(using: str, levels: Mapping[str, str]) -> None:
    """Take over the levels that the pools' rows in a database name; those of pools that are left out are left to the settings."""
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
    # Most projects' loggers let little through, which is the cheaper question.
    return events.is_logged(level) and events.is_wanted(level, _threshold(pool))


def _threshold(pool: str) -> str:
    return _levels.get(pool) or conf.log_level(pool)


def log(event: str, level: str, pool: str, **fields: Any) -> None:
    """Emit an event unless the pool's level is above it."""
    events.emit(event, pool=pool, level=level, threshold=_threshold(pool), **fields)


def end(status: str, attempts: int, failure: Failure | None, trace: str) -> tuple[str, dict[str, Any]]:
    """Return the level and the fields of ``completed``, but for those that name the work.

    Args:
        status: The word for what its attempt has come to.
        attempts: How many have ended.
        failure: What it has raised, if anything.
        trace: What the work carries.
    """
    error = {} if failure is None or status == ResultKind.CANCELED else {"error": failure.class_path}
    return "WARN" if error else "INFO", {"status": status, "attempts": attempts, **error, **tracing.told(trace)}


def enqueued(using: str, new: NewWork, ids: Sequence[uuid.UUID]) -> None:
    """Tell of works that were inserted by the transaction that is open, after its commit."""
    if is_wanted("DEBUG", new.pool):
        transaction.on_commit(partial(_enqueued, new, tuple(ids)), using=using, robust=True)


def _enqueued(new: NewWork, ids: Sequence[uuid.UUID]) -> None:
    of = {} if new.callback_of is None else {"callback_of": new.callback_of}
    for work_id in ids:
        log("enqueued", "DEBUG", new.pool, work_id=work_id, name=new.name, **of, **tracing.told(new.trace))
