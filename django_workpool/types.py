"""The values that pass between the rooms and to users: enums, frozen dataclasses and, where they are many, named tuples."""

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

from .exceptions import InvalidWork
from .progress_values import Progress

#: Longest accepted backoff: later than that nobody waits for a retry.
MAX_BACKOFF = timedelta(days=365)
#: More attempts than this is a typing error, and would not fit the counters of other systems.
MAX_ATTEMPTS = 1_000_000
#: Longest timeout of an attempt.
MAX_TIMEOUT = timedelta(days=365)
#: The range of django.tasks; small enough to probe every priority in one statement.
MIN_PRIORITY, MAX_PRIORITY = -100, 100

JSON = None | bool | int | float | str | list[Any] | dict[str, Any]
#: What an argument may be: tuples arrive as lists.
Argument = None | bool | int | float | str | list[Any] | tuple[Any, ...] | Mapping[str, Any]

if TYPE_CHECKING:
    # Checkers bring it along. Without a default, strict ones would ask for the type of each context, and of each call.
    from typing_extensions import TypeVar

    Context_co = TypeVar("Context_co", default=Any, covariant=True)
    #: Invariant: the function of a call must be the one that is enqueued.
    Function = TypeVar("Function", bound=Callable[..., Any], default=Any)
else:
    from typing import TypeVar

    Context_co = TypeVar("Context_co", covariant=True)
    Function = TypeVar("Function", bound=Callable[..., Any])


class FnType(StrEnum):
    """What a work's function may do, and with that in which transactions it runs."""

    #: May do anything; runs outside a transaction.
    ACTION = "action"
    #: Changes the database; runs in one transaction with its own completion.
    MUTATION = "mutation"
    #: Only reads; runs in a read-only transaction.
    QUERY = "query"
    #: Callback work: an on_complete function called on its own, as a mutation.
    CALLBACK = "callback"


class Lane(IntEnum):
    """The two kinds of queue rows and running rows: each has a limit of its own."""

    WORK = 0
    CALLBACK = 1


class ResultKind(StrEnum):
    """How a work ended."""

    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"


class WorkState(StrEnum):
    """Where a work is, as ``status`` tells it."""

    #: Waits: for its due time, for a free slot, for a retry.
    PENDING = "pending"
    #: Assigned to a worker.
    RUNNING = "running"
    #: Ended; its result is in the archive as long as the pool keeps it.
    FINISHED = "finished"


class LoopState(StrEnum):
    """What the main loop does with a pool: decides whether a kick is needed."""

    #: Looks at the queues again without being asked.
    RUNNING = "running"
    #: Sleeps until a segment, or until something frees a slot (saturated).
    SCHEDULED = "scheduled"
    #: Sleeps until it is kicked.
    IDLE = "idle"


class Follow(StrEnum):
    """What follows a pending completion."""

    #: The work has ended.
    END = "end"
    #: The attempt failed and another one is due.
    RETRY = "retry"
    #: The attempt never counted: the work goes back to the queue as it was.
    RETURN = "return"


class CallbackState(StrEnum):
    """What became of a finished work's on_complete."""

    #: The work has none.
    NONE = ""
    #: Called, and committed with the end of the work.
    DONE = "done"
    #: Became callback work that has not ended yet.
    PENDING = "pending"
    #: Its attempts are exhausted; an operator can requeue it.
    FAILED = "failed"


class Missed(StrEnum):
    """What becomes of the ticks of a periodic work that nobody could enqueue in time: no process led, or it was disabled."""

    #: Each is enqueued.
    ALL = "all"
    #: The last one is enqueued, in the place of all.
    LAST = "last"
    #: None is.
    SKIP = "skip"


def check_timeout(value: object) -> timedelta | None:
    """Return ``value`` if it can be the timeout of an attempt: a timedelta above 0, at most a year; or None.

    Raises:
        InvalidWork: it is something else.
    """
    if value is None or (isinstance(value, timedelta) and timedelta(0) < value <= MAX_TIMEOUT):
        return value
    given = value if isinstance(value, timedelta) else type(value).__name__
    raise InvalidWork(f"timeout must be a timedelta above 0, of at most {MAX_TIMEOUT.days} days, or None, not {given}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBehavior:
    """How often and how soon a failed attempt is followed by another one.

    The n-th retry waits ``initial_backoff × base^(n − 1)``, times a jitter between 0.5 and 1.5,
    never longer than ``max_backoff``.

    Raises:
        InvalidWork: a value is of the wrong type or out of range.
    """

    #: Attempts in all: 2 means one retry.
    max_attempts: int = 5
    #: Wait before the first retry.
    initial_backoff: timedelta = timedelta(milliseconds=250)
    #: Factor between one wait and the next, 1 or more.
    base: float = 2
    #: No wait is longer.
    max_backoff: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise InvalidWork(f"max_attempts must be a whole number from 1 to {MAX_ATTEMPTS}, not {self.max_attempts!r}.")
        for name in ("initial_backoff", "max_backoff"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or not timedelta(0) <= value <= MAX_BACKOFF:
                raise InvalidWork(f"{name} must be a timedelta from 0 to {MAX_BACKOFF.days} days, not {value!r}.")
        numeric = isinstance(self.base, (int, float)) and not isinstance(self.base, bool)
        if not numeric or not 1 <= self.base <= 1e10 or not math.isfinite(self.base):
            raise InvalidWork(f"base must be a number from 1 to 1e10, not {self.base!r}.")

    def to_json(self) -> dict[str, Any]:
        """Return the stored form: milliseconds and numbers."""
        return {
            "max_attempts": self.max_attempts,
            "initial_backoff_ms": self.initial_backoff / timedelta(milliseconds=1),
            "base": self.base,
            "max_backoff_ms": self.max_backoff / timedelta(milliseconds=1),
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Return the behaviour that ``to_json`` stored."""
        return cls(
            max_attempts=stored["max_attempts"],
            initial_backoff=timedelta(milliseconds=stored["initial_backoff_ms"]),
            base=stored["base"],
            max_backoff=timedelta(milliseconds=stored["max_backoff_ms"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a work ended: what ``status`` and ``on_complete`` are given."""

    kind: ResultKind
    #: What the function returned, as JSON carries it; None unless it succeeded.
    value: Any = None
    #: The text of the last error, or the reason of the cancelation; empty if it succeeded.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCompleteArgs(Generic[Context_co]):
    """The one argument of an ``on_complete`` function.

    ``OnCompleteArgs[dict[str, int]]`` says what its context is: type checkers then hold ``using()`` to it.
    """

    work_id: uuid.UUID
    #: What ``on_complete_context`` was at enqueue.
    context: Context_co
    result: RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a work is."""

    state: WorkState
    #: Attempts that have ended before this moment; 0 for finished work.
    previous_attempts: int = 0
    #: The archived result of finished work; None while it is not finished, or no longer kept.
    result: RunResult | None = None
    #: How far a running work's function says that it has come; None if it does not say it.
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Call(Generic[Function]):
    """The arguments of one call, for ``enqueue_many``; of a function, if they were checked against it."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    func: Function | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What an attempt raised, as text that every database can store."""

    #: ``module.QualName`` of the exception's class.
    class_path: str
    text: str
    traceback: str = ""
    #: False for NonRetryableError and for what another attempt cannot mend.
    retryable: bool = True


class Run(NamedTuple):
    """One started work, as a worker gets it: everything needed to call the function."""

    #: The id of the running row: whoever completes must still hold it.
    token: int
    work_id: uuid.UUID
    pool: str
    fn_type: FnType
    func_path: str
    name: str
    #: JSON text of ``{"args": [...], "kwargs": {...}}``.
    arguments: str
    #: Attempts that have ended before this one.
    attempts: int
    #: Whether an on_complete is to be called at the end.
    has_callback: bool
    #: Whether a failure may be followed by a retry.
    retryable: bool
    started: datetime
    #: Milliseconds that the function may take; None for any time.
    timeout_ms: int | None = None
    #: What a tracer carries from the caller to the function; empty where nobody traces.
    trace: str = ""
    #: Milliseconds from when it was due until it was started.
    lag_ms: int = 0


class Outcome(NamedTuple):
    """What one attempt came to, before it is completed."""

    #: "success", "failed", "returned" (interrupted without effect, or, without a failure, never begun), or "canceled": it has stopped
    #: because its work was canceled; if the work's row does not say so, that is a failure.
    kind: str
    #: JSON text of the return value, for a success.
    value: str = "null"
    failure: Failure | None = None


class Attempted(NamedTuple):
    """An attempt that has ended in a worker."""

    run: Run
    outcome: Outcome
    #: The worker's name.
    worker: str
    #: Seconds that the function took; 0 where nobody has measured it.
    took: float = 0.0

    @property
    def ends(self) -> bool:
        """Whether its work ends with it, and nobody is to be told: all that is to be written is known without its row."""
        run = self.run
        return self.outcome.kind == "success" and not run.has_callback and run.fn_type is not FnType.CALLBACK
