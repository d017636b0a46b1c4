"""What is told of a batch."""

import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The one argument of an ``on_batch_complete`` function: how the works of a batch have ended."""

    batch_id: uuid.UUID
    #: What was said when the batch was made.
    name: str
    context: Any
    #: Works in all, and how many of them ended so; work that was canceled while it ran and succeeded is a success.
    total: int
    succeeded: int
    failed: int
    canceled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """How far a batch has come."""

    name: str
    #: Works in all; those that wait or run, and how the others have ended.
    total: int
    unfinished: int
    succeeded: int
    failed: int
    canceled: int
    #: Whether the loop has seen that all have ended, and enqueued the call of ``on_complete``.
    ended: bool
