"""Which functions the pool may call: decorators, the registry, and the way between a function and its dotted path.

A path leads only to the very object that a decorator has entered here. Nothing that a function carries (attributes, a copied
name) makes it callable by the pool, as anything could carry the same.
"""

import importlib
import inspect
import logging
import sys
import threading
import types
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, overload

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from .adapters import Adapter, adapter_of, function_of, held_at, standing_at
from .allowed import check_allowed, is_allowed
from .exceptions import InvalidWork, UnregisteredFunction
from .failures import guarded
from .plain import DECORATORS, PATH_MAX, WORDS, check_callback, check_kind, check_plain, not_plain, shown, wanted
from .types import FnType, OnCompleteArgs, RetryBehavior, check_timeout

#: What may be enqueued.
WORK_KINDS = frozenset({FnType.ACTION, FnType.MUTATION, FnType.QUERY})
#: What ``on_complete`` may name.
CALLBACK_KINDS = frozenset({FnType.CALLBACK})

logger = logging.getLogger("django_workpool.functions")

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
Callback = TypeVar("Callback", bound=Callable[[OnCompleteArgs], Any])
Retry = bool | RetryBehavior | None
Timeout = timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A function that the pool may call."""

    func: Callable[..., Any]
    #: ``module.name``, what the tables hold.
    path: str
    fn_type: FnType
    is_async: bool
    #: For a function of a framework: makes what is called in its place.
    adapter: Adapter | None = None
    #: None: as the call or the pool says.
    retry: Retry = None
    #: How many of its works may share one transaction.
    batch: int = 1
    #: How long an attempt may take; None: as the call or the pool says.
    timeout: Timeout = None


#: Most works of a mutation that share one transaction.
BATCH_MAX = 1_000

_registry: dict[str, Registered] = {}
_lock = threading.Lock()


@overload
def action(func: AnyFunction, /) -> AnyFunction: ...
@overload
def action(*, retry: Retry = None, timeout: Timeout = None) -> Callable[[AnyFunction], AnyFunction]: ...
def action(func: Any = None, /, *, retry: Retry = None, timeout: Timeout = None) -> Any:
    """Register a module-level function, sync or ``async def``, that may do anything; it runs outside a transaction.

    Args:
        retry: whether a failed attempt is followed by another one, or how; None: as the call, then the pool says.
        timeout: how long an attempt may take: then ``WorkTimeout`` is raised in it; None: as the call, then the pool says.

    Raises:
        UnregisteredFunction: not a plain module-level function; the text says what to do.
        InvalidWork: ``retry`` is of another type, or ``timeout`` no timedelta above 0, of at most a year.
    """
    return _decorated(func, FnType.ACTION, retry, timeout)


@overload
def mutation(func: AnyFunction, /) -> AnyFunction: ...
@overload
def mutation(*, retry: Retry = None, timeout: Timeout = None, batch: int = 1) -> Callable[[AnyFunction], AnyFunction]: ...
def mutation(func: Any = None, /, *, retry: Retry = None, timeout: Timeout = None, batch: int = 1) -> Any:
    """Register a module-level function that changes the database, in one transaction with the end of its work.

    Args:
        retry, timeout: as for ``action``. A work that has a timeout shares its transaction with no other.
        batch: how many of its works that wait on one process's threads may share a transaction, and with that its commit: for short
            functions. If one of them fails, all are rolled back, and each runs again alone. What a function does outside the database
            is then repeated, and its locks are held until the last one has ended (a fiftieth of a second at most, and its own time).

    Raises:
        UnregisteredFunction: not a plain module-level function, or ``async def``.
        InvalidWork: ``retry`` or ``timeout`` as for ``action``, or ``batch`` not a whole number from 1 to 1000.
    """
    if type(batch) is not int or not 1 <= batch <= BATCH_MAX:
        raise InvalidWork(f"batch must be a whole number from 1 to {BATCH_MAX}, not {batch!r}.")
    return _decorated(func, FnType.MUTATION, retry, timeout, batch)


@overload
def query(func: AnyFunction, /) -> AnyFunction: ...
@overload
def query(*, retry: Retry = None, timeout: Timeout = None) -> Callable[[AnyFunction], AnyFunction]: ...
def query(func: Any = None, /, *, retry: Retry = None, timeout: Timeout = None) -> Any:
    """Register a module-level function that only reads; it runs in a read-only transaction.

    Args and Raises: as ``action``; ``async def`` is refused.
    """
    return _decorated(func, FnType.QUERY, retry, timeout)


@overload
def on_complete(func: Callback, /) -> Callback: ...
@overload
def on_complete() -> Callable[[Callback], Callback]: ...
def on_complete(func: Any = None, /) -> Any:
    """Register a module-level function of one argument, ``OnCompleteArgs``, that may be called at the end of a work.

    It runs in the transaction that ends the work.

    Raises:
        UnregisteredFunction: not a plain module-level function of one argument; the text says what to do.
    """
    return _decorated(func, FnType.CALLBACK)


def registered(func_or_path: object, kinds: Set[FnType]) -> Registered:
    """Return the entry of a function, or of a dotted path, that is to be enqueued.

    Args:
        func_or_path: a registered function itself, or its dotted path, which may import its module.
        kinds: ``WORK_KINDS`` or ``CALLBACK_KINDS``.

    Raises:
        UnregisteredFunction: it is not such a function; the text says what to do.
    """
    if isinstance(func_or_path, str):
        return resolve(func_or_path, kinds)
    func = function_of(func_or_path) or func_or_path
    if type(func) is not types.FunctionType:
        raise UnregisteredFunction(not_plain(func, kinds))
    path = f"{func.__module__}.{func.__qualname__}"
    found = _registry.get(path)
    if found is None:
        check_plain(func, path)
        raise UnregisteredFunction(f"{path} is not registered: decorate it with {wanted(kinds)}.")
    check_kind(found.path, found.fn_type, kinds)
    check_allowed(path, func.__module__)
    if found.func is not func or not _in_place(found):
        raise UnregisteredFunction(
            f"{path} is registered, but this is another function of that name: put {DECORATORS[found.fn_type]} outermost, above other "
            "decorators, and pass the function that its module holds."
        )
    return found


def resolve(path: str, kinds: Set[FnType]) -> Registered:
    """Return the entry of a dotted path, importing its module if need be.

    Only modules of installed apps, or below a pool's FUNCTIONS setting, are imported.

    Raises:
        UnregisteredFunction: the path does not lead to a registered function of a wanted kind, or its module cannot be imported.
    """
    if not isinstance(path, str):
        raise UnregisteredFunction(f"A dotted path is text, not {type(path).__name__}.")
    module, _, name = path.rpartition(".")
    found = _registry.get(path)
    if found is None and (not module or len(path) > PATH_MAX or not all(part.isidentifier() for part in path.split("."))):
        raise UnregisteredFunction(f"{shown(path)} is not a dotted path such as app.tasks.send, of at most {PATH_MAX} characters.")
    check_allowed(path, module)
    if found is None or not _in_place(found):
        # Also waits for another thread that is in the middle of this import.
        _import(path, module)
        found = _adopted(path) or _registry.get(path)
        if found is None:
            reason = "is not registered" if held_at(path) is not None else f"does not exist: the module {module} has no {name}"
            raise UnregisteredFunction(f"{path} {reason}; decorate the function with {wanted(kinds)}.")
        if not _in_place(found):
            raise UnregisteredFunction(
                f"{path} no longer is the registered function: another object has its name. "
                f"Put {DECORATORS[found.fn_type]} outermost, above other decorators."
            )
    check_kind(found.path, found.fn_type, kinds)
    return found


def load_tasks() -> None:
    """Import the ``tasks`` modules of the installed apps; one that fails is logged and does not stop the others."""
    for app in apps.get_app_configs():
        module = f"{app.name}.tasks"
        try:
            if app.module is not None and module_has_submodule(app.module, "tasks"):
                _import(module, module)
        except UnregisteredFunction:
            logger.exception("The module %s could not be imported: its functions cannot run in this process.", module)


def register_adapted(func: types.FunctionType, adapter: Adapter) -> Registered:
    """Register a function of a framework as an action, or let what is registered as an action be called through its adapter.

    Raises:
        UnregisteredFunction: not a plain module-level function, or registered as something else; the text says what to do.
    """
    path = f"{func.__module__}.{func.__qualname__}"
    found = _registry.get(path)
    if found is None or found.func is not func:
        _decorated(func, FnType.ACTION, None)
        found = _registry[path]
    check_kind(found.path, found.fn_type, frozenset({FnType.ACTION}))
    if found.adapter is None:
        found = _registry[path] = replace(found, adapter=adapter)
    return found


def is_adapted(path: str) -> bool:
    """Return whether a dotted path is that of a function which is called through an adapter."""
    found = _registry.get(path)
    return found is not None and found.adapter is not None


def is_async(path: str) -> bool:
    """Return whether a dotted path is that of a registered coroutine function."""
    found = _registry.get(path)
    return found is not None and found.is_async


def batch_of(path: str) -> int:
    """Return how many works of a dotted path may share one transaction."""
    found = _registry.get(path)
    return 1 if found is None else found.batch


def known() -> dict[str, str]:
    """Return the dotted paths that ``resolve`` finds without an import, with their kinds: "action", "action:async"…"""
    with _lock:
        entries = list(_registry.values())
    return {
        entry.path: entry.fn_type.value + (":async" if entry.is_async else "")
        for entry in entries
        if _in_place(entry) and is_allowed(entry.func.__module__)
    }


def _decorated(func: Any, fn_type: FnType, retry: Retry = None, timeout: Timeout = None, batch: int = 1) -> Any:
    check_timeout(timeout)
    if retry is not None and not isinstance(retry, (bool, RetryBehavior)):
        raise InvalidWork(f"retry must be True, False or a RetryBehavior, not {type(retry).__name__}.")
    if func is None:
        return lambda decorated: _decorated(decorated, fn_type, retry, timeout, batch)
    kinds = frozenset({fn_type})
    if type(func) is not types.FunctionType:
        raise UnregisteredFunction(not_plain(func, kinds))
    path = f"{func.__module__}.{func.__qualname__}"
    check_plain(func, path)
    is_async = inspect.iscoroutinefunction(func)
    if is_async and fn_type is not FnType.ACTION:
        raise UnregisteredFunction(
            f"{path} is async: {WORDS[fn_type]} runs inside a database transaction of a thread, which a coroutine would leave. "
            "Write it as a plain def, or make it an action."
        )
    if fn_type is FnType.CALLBACK:
        check_callback(func, path)
    with _lock:
        _registry[path] = Registered(func=func, path=path, fn_type=fn_type, is_async=is_async, retry=retry, batch=batch, timeout=timeout)
    return func


def _in_place(entry: Registered) -> bool:
    """Return whether the module still holds the registered function, or what stands for it, under its name."""
    held = held_at(entry.path)
    return held is entry.func or (entry.adapter is not None and function_of(held) is entry.func)


def _adopted(path: str) -> Registered | None:
    """Register the function for which an object of a framework stands at a path, if there is one."""
    held = standing_at(path)
    func = function_of(held)
    return None if func is None else register_adapted(func, adapter_of(held))


def _import(path: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except BaseException as error:  # sys.exit() at the top of a script must not end a worker
        # Python forgets a module that failed, so that it can be tried again; its functions must not stay known without it.
        with _lock:
            for left in [key for key, entry in _registry.items() if entry.func.__module__ == module and module not in sys.modules]:
                del _registry[left]
        told = guarded("{0.__class__.__name__}: {0}".format, type(error).__name__, error)[:1000]
        raise UnregisteredFunction(f"{path}: the module {module} could not be imported: {told}.") from error
