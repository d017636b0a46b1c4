"""A pool that runs registered functions, never more than a limit of them at once.

These are the public names; everything else is internal. Importing them needs no settings.
"""

import typing as _typing

from .batch_values import BatchResult, BatchStatus
from .callbacks import on_batch_complete
from .current_work import CurrentWork, current, progress
from .exceptions import (
    InvalidWork,
    NoCurrentWork,
    NonRetryableError,
    UnknownPool,
    UnregisteredFunction,
    WorkCanceled,
    WorkExists,
    WorkpoolError,
    WorkTimeout,
)
from .functions import action, mutation, on_complete, query
from .progress_values import Progress
from .types import OnCompleteArgs, RetryBehavior, RunResult, Status

if _typing.TYPE_CHECKING:
    from .batches import WorkBatch
    from .pools import Workpool, aenqueue, batch, call, enqueue

__all__ = [
    "BatchResult",
    "BatchStatus",
    "CurrentWork",
    "InvalidWork",
    "NoCurrentWork",
    "NonRetryableError",
    "OnCompleteArgs",
    "Progress",
    "RetryBehavior",
    "RunResult",
    "Status",
    "UnknownPool",
    "UnregisteredFunction",
    "WorkBatch",
    "WorkCanceled",
    "WorkExists",
    "WorkTimeout",
    "Workpool",
    "WorkpoolError",
    "action",
    "aenqueue",
    "batch",
    "call",
    "current",
    "enqueue",
    "mutation",
    "on_batch_complete",
    "on_complete",
    "progress",
    "query",
]

# They lead to the models, which need settings and loaded apps.
_LATE = frozenset({"WorkBatch", "Workpool", "aenqueue", "batch", "call", "enqueue"})


def __getattr__(name: str) -> _typing.Any:
    if name in _STORED:
        from . import exceptions

        return getattr(exceptions, name)
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import batches, pools

    found = globals()[name] = getattr(batches if name == "WorkBatch" else pools, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})


# What failed attempts are called in the rows, so that their classes are found here; for code they are in ``exceptions``.
_STORED = frozenset({"Conflict", "ExecutorLost", "Interrupted", "NotStored", "WorkerLost"})
