"""What is enqueued, and assertions about it. Reads only."""

import inspect
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import conf, functions, serialization
from ..database import database
from ..models import Archive, PendingStart, Work
from ..segments import segment_ms
from ..types import Call
from .clock import aliases
from .records import EnqueuedWork
from .running import run_work

_FIELDS = ("id", "pool", "func_path", "arguments", "priority", "name", "on_complete", "on_complete_context")
#: Works that a failed assertion lists.
LISTED = 20

Function = Callable[..., Any] | str


def enqueued(func: Function | None = None, *, pool: str | None = None) -> list[EnqueuedWork]:
    """Return the works that were enqueued, in that order: those that have not ended, and those that have as far as they are kept.

    Args:
        func: Only calls of this function.
        pool: Only those of this pool.

    Raises:
        UnregisteredFunction: ``func`` is not a registered action, mutation or query.
        UnknownPool: the settings do not name the pool.
    """
    path = None if func is None else functions.registered(func, functions.WORK_KINDS).path
    wanted = {} if pool is None else {"pool": conf.pool(pool).name}
    if path is not None:
        wanted["func_path"] = path
    found: dict[uuid.UUID, EnqueuedWork] = {}
    for using in aliases(None if pool is None else {pool}):
        moment = database(using).moment
        starts = {
            work_id: moment(segment_ms(segment)) for work_id, segment in PendingStart.objects.using(using).values_list("work_id", "segment")
        }
        for model in (Archive, Work):
            for row in model._default_manager.using(using).filter(callback_of=None, **wanted).values_list(*_FIELDS):
                found[row[0]] = _read(row, starts.get(row[0]), ended=model is Archive)
    return [found[work_id] for work_id in sorted(found)]


def _read(row: tuple[Any, ...], due: Any, *, ended: bool) -> EnqueuedWork:
    work_id, pool, path, arguments, priority, name, on_complete, context = row
    call = serialization.decode(arguments)
    return EnqueuedWork(
        work_id=work_id,
        pool=pool,
        function=path,
        args=call["args"],
        kwargs=call["kwargs"],
        priority=priority,
        name=name,
        on_complete=on_complete,
        on_complete_context=serialization.decode(context),
        due=due,
        ended=ended,
    )


@contextmanager
def capture_work(pool: str | None = None, *, execute: bool = False, raises: bool = False) -> Iterator[list[EnqueuedWork]]:
    """Collect what is enqueued inside the block, and was not rolled back, into a list that is filled at its end.

    Args:
        pool: Only what is enqueued in this pool.
        execute: Whether to run what is due then, as ``run_work`` does.
        raises: As ``run_work`` takes it.
    """
    before = {one.work_id for one in enqueued(pool=pool)}
    captured: list[EnqueuedWork] = []
    yield captured
    captured += [one for one in enqueued(pool=pool) if one.work_id not in before]
    if execute:
        run_work(pool, raises=raises)


def assert_enqueued(func: Function, /, *args: Any, pool: str | None = None, priority: int | None = None, **kwargs: Any) -> EnqueuedWork:
    """Assert that a call of ``func`` was enqueued, and return the first that fits; it may have ended by now.

    Args:
        func: The function, or its dotted path.
        *args: Its arguments; without any, whatever they were. A ``call(...)`` in their place stands for exactly these: use it where
            a function has arguments named ``pool`` or ``priority``, or is to be called without arguments.
        pool: In this pool.
        priority: With this priority.
        **kwargs: Its keyword arguments. It is no matter which arguments were given by name; ``unittest.mock.ANY`` fits any.

    Raises:
        AssertionError: there is none; the text lists what there is.
        UnregisteredFunction: ``func`` is not a registered action, mutation or query.
    """
    fitting, text = _find(func, args, kwargs, pool, priority)
    if not fitting:
        raise AssertionError(f"{text} was not enqueued. {_listed(enqueued())}")
    return fitting[0]


def assert_not_enqueued(func: Function, /, *args: Any, pool: str | None = None, priority: int | None = None, **kwargs: Any) -> None:
    """Assert that no such call was enqueued: see ``assert_enqueued``.

    Raises:
        AssertionError: there is one; the text lists them.
        UnregisteredFunction: ``func`` is not a registered action, mutation or query.
    """
    fitting, text = _find(func, args, kwargs, pool, priority)
    if fitting:
        raise AssertionError(f"{text} was enqueued. {_listed(fitting)}")


def _find(
    func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], pool: str | None, priority: int | None
) -> tuple[list[EnqueuedWork], str]:
    """Return what fits, and in words what is looked for."""
    registered = functions.registered(func, functions.WORK_KINDS)
    wanted: Call | None = Call(args, kwargs) if args or kwargs else None
    if len(args) == 1 and isinstance(args[0], Call) and not kwargs:
        wanted = args[0]
    fitting = [
        one
        for one in enqueued(func, pool=pool)
        if (priority is None or one.priority == priority)
        and (wanted is None or _bound(registered.func, wanted) == _bound(registered.func, Call(tuple(one.args), one.kwargs)))
    ]
    text = registered.path
    if wanted is not None:
        text += f"({', '.join([*map(repr, wanted.args), *(f'{name}={value!r}' for name, value in wanted.kwargs.items())])})"
    text += "" if pool is None else f" in pool {pool!r}"
    return fitting, text + ("" if priority is None else f" with priority {priority}")


def _bound(func: Callable[..., Any], call: Call) -> Any:
    """Return the arguments by name, as JSON carries them, so that two ways to say the same are equal."""
    try:
        bound = inspect.signature(func).bind(*call.args, **call.kwargs)
    except TypeError:
        return _as_json([call.args, call.kwargs])
    bound.apply_defaults()
    return _as_json(dict(bound.arguments))


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    return {key: _as_json(item) for key, item in value.items()} if isinstance(value, dict) else value


def _listed(works: list[EnqueuedWork]) -> str:
    if not works:
        return "Nothing was enqueued."
    lines = [f"  {one}" for one in works[:LISTED]]
    if len(works) > LISTED:
        lines.append(f"  ... and {len(works) - LISTED} more")
    return "Enqueued:\n" + "\n".join(lines)
