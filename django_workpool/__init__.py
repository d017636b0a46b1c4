"""A pool that runs registered functions, never more than a limit of them at once.

These are the public names; everything else is internal. Importing them needs no settings.
"""

import typing as _typing

from .batch_values import BatchResult, BatchStatus
from .callbacks import on_batch_complete
from .exceptions import InvalidWork, NonRetryableError, UnknownPool, UnregisteredFunction, WorkCanceled, WorkExists, WorkpoolError
from .functions import action, mutation, on_complete, query
from .types import OnCompleteArgs, RetryBehavior, RunResult, Status

if _typing.TYPE_CHECKING:
    from .batches import WorkBatch
    from .pools import Workpool, aenqueue, batch, call, enqueue

__all__ = [
    "BatchResult",
    "BatchStatus",
    "InvalidWork",
    "NonRetryableError",
    "OnCompleteArgs",
    "RetryBehavior",
    "RunResult",
    "Status",
    "UnknownPool",
    "UnregisteredFunction",
    "WorkBatch",
    "WorkCanceled",
    "WorkExists",
    "Workpool",
    "WorkpoolError",
    "action",
    "aenqueue",
    "batch",
    "call",
    "enqueue",
    "mutation",
    "on_batch_complete",
    "on_complete",
    "query",
]

# They lead to the models, which need settings and loaded apps.
_LATE = frozenset({"WorkBatch", "Workpool", "aenqueue", "batch", "call", "enqueue"})


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import batches, pools

    found = globals()[name] = getattr(batches if name == "WorkBatch" else pools, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
