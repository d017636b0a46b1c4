"""What ``using()`` takes: checked when it is said, long before any SQL."""

import logging
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, get_args

from django.conf import settings
from django.utils import timezone

from . import callbacks, conf, serialization
from .database import Due
from .exceptions import InvalidWork
from .functions import Registered
from .models import NAME_LENGTH
from .segments import YEAR, floor_segment
from .types import MAX_PRIORITY, MIN_PRIORITY, FnType, OnCompleteArgs, RetryBehavior, check_timeout

logger = logging.getLogger("django_workpool.client")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


Context = TypeVar("Context")
Context_contra = TypeVar("Context_contra", contravariant=True)

#: What an enqueue does when its unique key is taken: return the work that has it, cancel that one, or raise WorkExists.
IfTaken = Literal["keep", "replace", "raise"]


class OnComplete(Protocol[Context_contra]):
    """A function decorated with ``on_complete``."""

    def __call__(self, done: OnCompleteArgs[Context_contra], /) -> object: ...


class EnqueueOptions(TypedDict, Generic[Context], total=False):
    """The options of one enqueue.

    ``on_complete``: called when the work has ended, whatever the outcome; a registered function or its dotted path.
    ``on_complete_context``: JSON handed to it.
    ``delay`` (timedelta) or ``run_after`` (datetime): not before that.
    ``retry``: False, True (the pool's behaviour) or a RetryBehavior; actions only.
    ``priority``: −100 to 100, higher first.
    ``name``: a label for logs and the admin; the function's path if left out.
    ``timeout`` (timedelta): an attempt that takes longer fails; None: as the function, then the pool says.
    ``unique``: a key, of at most 500 characters: in its pool, one work that has not ended (or is being canceled) has it at a time.
    ``if_taken``: "keep" (the default) returns the id of the work that has the key, "replace" cancels that one, "raise" raises WorkExists.
    """

    on_complete: OnComplete[Context] | str | None
    on_complete_context: Context
    delay: timedelta | None
    run_after: datetime | None
    retry: bool | RetryBehavior | None
    priority: int
    name: str
    timeout: timedelta | None
    unique: str | None
    if_taken: IfTaken


@dataclass(eq=False, slots=True)
class Membership:
    """What makes works those of a batch while its block lasts."""

    id: uuid.UUID
    #: Whether the caller is in the block, and in its transaction.
    holds: Callable[[], bool]
    is_open: bool = True

    def check(self) -> uuid.UUID:
        """Return the batch's id.

        Raises:
            InvalidWork: the block is over, or the caller is in another thread: its works would not be the batch's.
        """
        if not self.is_open or not self.holds():
            raise InvalidWork("A batch is filled inside of its `with` block, by the thread that has opened it.")
        return self.id


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The options in the form in which they are stored."""

    on_complete: str = ""
    on_complete_context: str = "null"
    delay: timedelta | None = None
    run_after_ms: float | None = None
    retry: bool | RetryBehavior | None = None
    priority: int = 0
    name: str = ""
    timeout: timedelta | None = None
    unique: str = ""
    if_taken: IfTaken = "keep"
    batch: Membership | None = None

    def due(self) -> Due:
        """Return when a work enqueued now is due."""
        if self.delay:
            return Due(delay_ms=self.delay / _MS)
        return Due(moment_ms=self.run_after_ms)

    def retry_text(self, function: Registered, pool: conf.PoolSettings) -> str:
        """Return the stored retry behaviour for a function: empty for none.

        Raises:
            InvalidWork: a retry was asked for something that is not an action.
        """
        if function.fn_type is not FnType.ACTION:
            if self.retry:
                raise InvalidWork(
                    f"retry is for actions: {function.path} is a {function.fn_type.value}, which the pool never retries when it fails."
                )
            return ""
        wanted = next(choice for choice in (self.retry, function.retry, pool.retry, False) if choice is not None)
        if wanted is True:
            wanted = pool.retry if isinstance(pool.retry, RetryBehavior) else RetryBehavior()
        return serialization.encode(wanted.to_json(), "retry") if isinstance(wanted, RetryBehavior) else ""

    def timeout_ms(self, function: Registered, pool: conf.PoolSettings) -> int | None:
        """Return the stored timeout for a function, in milliseconds: None for none."""
        wanted = next((choice for choice in (self.timeout, function.timeout, pool.timeout) if choice is not None), None)
        return None if wanted is None else math.ceil(wanted / _MS)


def check_options(base: CheckedOptions, options: EnqueueOptions[Any]) -> CheckedOptions:
    """Return ``base`` with ``options`` checked and taken over.

    Raises:
        InvalidWork: an option is unknown, of the wrong type or out of range.
        UnregisteredFunction: ``on_complete`` is not a registered on_complete function.
    """
    unknown = sorted(set(options) - set(EnqueueOptions.__annotations__))
    if unknown:
        raise InvalidWork(f"Unknown option {', '.join(unknown)}. Known: {', '.join(EnqueueOptions.__annotations__)}.")
    changes: dict[str, Any] = {}
    for name, value in options.items():
        changes |= _CHECKS[name](value)
    checked = replace(base, **changes)
    if checked.on_complete_context != "null" and not checked.on_complete:
        raise InvalidWork("on_complete_context without on_complete: nobody would be given it.")
    if "if_taken" in options and not checked.unique:
        raise InvalidWork("if_taken without unique: there is no key that could be taken.")
    if options.get("delay") is not None and options.get("run_after") is not None:
        raise InvalidWork("delay and run_after both say when: give one of them.")
    return checked


def _on_complete(value: Any) -> dict[str, Any]:
    return {"on_complete": "" if value is None else callbacks.of_work(value).path}


def _context(value: Any) -> dict[str, Any]:
    return {"on_complete_context": serialization.encode(value, "on_complete_context")}


def _delay(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, timedelta):
        raise InvalidWork(f"delay must be a timedelta, not {type(value).__name__}: {value!r}.")
    if value is not None and value < timedelta(0):
        raise InvalidWork(f"delay must not be negative: {value!r}.")
    if value is not None and value > timedelta(milliseconds=4 * YEAR * 100):
        logger.error("delay %s is too far in the future: it counts as one year", value)
        value = timedelta(milliseconds=YEAR * 100)
    return {"delay": value, "run_after_ms": None}


def _run_after(value: Any) -> dict[str, Any]:
    if value is None:
        return {"run_after_ms": None}
    if not isinstance(value, datetime):
        raise InvalidWork(f"run_after must be a datetime, not {type(value).__name__}: {value!r}. For a wait from now on, use delay.")
    if timezone.is_naive(value):
        if settings.USE_TZ:
            raise InvalidWork(
                f"run_after is naive, but USE_TZ is on: {value!r}. Make it aware, with django.utils.timezone.make_aware() for instance."
            )
        value = value.replace(tzinfo=timezone.get_default_timezone())
    return {"run_after_ms": _bounded(value), "delay": None}


def _bounded(value: datetime) -> float | None:
    """Return an aware time in milliseconds since 1970, None for "now": bounded as the pool bounds all times."""
    try:
        ms = (value - _EPOCH) / _MS
    except OverflowError:  # datetime.min and .max in a zone whose offset leads out of the calendar
        ms = math.copysign(1e15, value.year - 1970)
    now = floor_segment(timezone.now().timestamp() * 1000)
    if ms < (now - YEAR) * 100:
        logger.error("run_after %s is too old: it counts as now", value)
        return None
    if ms > (now + 4 * YEAR) * 100:
        logger.error("run_after %s is too far in the future: it counts as one year from now", value)
        return float((now + YEAR) * 100)
    return ms


def _retry(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, (bool, RetryBehavior)):
        raise InvalidWork(f"retry must be True, False or a RetryBehavior, not {value!r}.")
    return {"retry": value}


def _priority(value: Any) -> dict[str, Any]:
    # Members of an IntegerChoices are numbers, too.
    if not isinstance(value, int) or isinstance(value, bool) or not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidWork(f"priority must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}, not {value!r}.")
    return {"priority": int(value)}


def _timeout(value: Any) -> dict[str, Any]:
    return {"timeout": check_timeout(value)}


def _name(value: Any) -> dict[str, Any]:
    if not isinstance(value, str):
        raise InvalidWork(f"name must be a string, not {value!r}.")
    serialization.encode(value, "name")
    return {"name": str(value) if len(value) <= NAME_LENGTH else str(value)[: NAME_LENGTH - 1] + "…"}


def _unique(value: Any) -> dict[str, Any]:
    if value is None:
        return {"unique": "", "if_taken": "keep"}
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_LENGTH:
        raise InvalidWork(f"unique must be a text of 1 to {NAME_LENGTH} characters, not {_shown(value)}.")
    serialization.encode(value, "unique")
    return {"unique": str(value)}


def _shown(value: Any) -> str:
    return f"one of {len(value)}" if isinstance(value, str) else repr(value)


def _if_taken(value: Any) -> dict[str, Any]:
    if value not in get_args(IfTaken):
        raise InvalidWork(f"if_taken must be one of {', '.join(get_args(IfTaken))}, not {value!r}.")
    return {"if_taken": value}


_CHECKS = {
    "on_complete": _on_complete,
    "on_complete_context": _context,
    "delay": _delay,
    "run_after": _run_after,
    "retry": _retry,
    "priority": _priority,
    "name": _name,
    "timeout": _timeout,
    "unique": _unique,
    "if_taken": _if_taken,
}
