"""What the helpers tell a test: what is enqueued, what has run, and what went wrong."""

import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..exceptions import WorkpoolError


class EndlessWork(WorkpoolError):
    """More works ran in one call than a test can mean: one of them enqueues itself again and again."""


class WorkFailed(WorkpoolError):
    """A work failed without an exception of its function's own: what it returned cannot be stored, for example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanWork:
    """One attempt that has run."""

    work_id: uuid.UUID
    pool: str
    #: The dotted path of the function.
    function: str
    #: Of the attempt: "success" or "failed".
    kind: str
    #: What the function returned, as JSON carries it; None unless it succeeded.
    value: Any = None
    #: The text of what it raised; empty if it succeeded.
    error: str = ""
    #: The attempts that have ended by now, this one included.
    attempts: int = 1
    #: Whether the work has ended; if not, another attempt follows.
    ended: bool = True
    #: Whether it is callback work: an on_complete that is called on its own.
    is_callback: bool = False
    #: All that the function said by ``progress(done, total)``, in this order.
    progress: tuple[tuple[float, float], ...] = ()
    #: What the function raised.
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedWork:
    """One work that was enqueued: its row, with everything that JSON carries read back."""

    work_id: uuid.UUID
    pool: str
    #: The dotted path of the function.
    function: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int
    name: str
    #: The dotted path of its on_complete; empty for none.
    on_complete: str
    on_complete_context: Any
    #: When it may start; None once it does not wait any more.
    due: datetime | None
    #: Whether it has ended.
    ended: bool

    def __str__(self) -> str:
        given = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        due = f", due {self.due.isoformat(' ', 'milliseconds')}" if self.due is not None else ""
        return f"{self.function}({', '.join(given)}) in pool {self.pool!r}, priority {self.priority}{due}{', ended' if self.ended else ''}"
