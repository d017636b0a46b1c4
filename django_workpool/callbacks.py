"""The two kinds of functions that are told an end: that of a work (``on_complete``), and that of a batch (``on_batch_complete``).

Both are registered, stored and run in the same way; they differ in the one argument that they take.
"""

import types
from collections.abc import Callable
from typing import Any, TypeVar, overload

from . import functions
from .batch_values import BatchResult
from .exceptions import UnregisteredFunction
from .functions import Registered
from .plain import check_callback
from .types import FnType, Lane

BatchCallback = TypeVar("BatchCallback", bound=Callable[[BatchResult], Any])

#: Functions that take the result of a batch, by their paths.
_of_batches: dict[str, object] = {}


def lane_of(fn_type: str) -> Lane:
    """Return where works of a kind wait and run."""
    return Lane.CALLBACK if fn_type == FnType.CALLBACK else Lane.WORK


@overload
def on_batch_complete(func: BatchCallback, /) -> BatchCallback: ...
@overload
def on_batch_complete() -> Callable[[BatchCallback], BatchCallback]: ...
def on_batch_complete(func: Any = None, /) -> Any:
    """Register a module-level function of one argument, ``BatchResult``, that may be called when all works of a batch have ended.

    It runs as callback work: in one transaction with its own end, and again if it fails, at most five times in all.

    Raises:
        UnregisteredFunction: not a plain module-level function of one argument; the text says what to do.
    """
    if func is None:
        return on_batch_complete
    path = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"
    if type(func) is types.FunctionType:
        check_callback(func, path, BatchResult.__name__)
    functions.on_complete(func)
    _of_batches[path] = func
    return func


def takes_batch(found: Registered) -> bool:
    """Return whether a callback takes the result of a batch."""
    return _of_batches.get(found.path) is found.func


def of_work(func_or_path: object) -> Registered:
    """Return the entry of an ``on_complete`` function, or of its path.

    Raises:
        UnregisteredFunction: it is not one.
    """
    found = functions.registered(func_or_path, functions.CALLBACK_KINDS)
    if takes_batch(found):
        raise UnregisteredFunction(f"{found.path} is for batches; a function decorated with @on_complete is needed here.")
    return found


def of_batch(func_or_path: object) -> Registered:
    """Return the entry of an ``on_batch_complete`` function, or of its path.

    Raises:
        UnregisteredFunction: it is not one.
    """
    found = functions.registered(func_or_path, functions.CALLBACK_KINDS)
    if not takes_batch(found):
        raise UnregisteredFunction(f"{found.path} is for single works; a function decorated with @on_batch_complete is needed here.")
    return found
