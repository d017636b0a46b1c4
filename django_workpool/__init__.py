"""A pool that runs registered functions, never more than a limit of them at once.

These are the public names; everything else is internal. Importing them needs no settings.
"""

import typing as _typing

from .current_work import CurrentWork, current
from .exceptions import (
    InvalidWork,
    NoCurrentWork,
    NonRetryableError,
    UnknownPool,
    UnregisteredFunction,
    WorkCanceled,
    WorkpoolError,
    WorkTimeout,
)
from .functions import action, mutation, on_complete, query
from .types import OnCompleteArgs, RetryBehavior, RunResult, Status

if _typing.TYPE_CHECKING:
    from .pools import Workpool, aenqueue, call, enqueue

__all__ = [
    "CurrentWork",
    "InvalidWork",
    "NoCurrentWork",
    "NonRetryableError",
    "OnCompleteArgs",
    "RetryBehavior",
    "RunResult",
    "Status",
    "UnknownPool",
    "UnregisteredFunction",
    "WorkCanceled",
    "WorkTimeout",
    "Workpool",
    "WorkpoolError",
    "action",
    "aenqueue",
    "call",
    "current",
    "enqueue",
    "mutation",
    "on_complete",
    "query",
]

# They lead to the models, which need settings and loaded apps.
_LATE = frozenset({"Workpool", "aenqueue", "call", "enqueue"})


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import pools

    found = globals()[name] = getattr(pools, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
