"""What can be registered: plain functions that another process finds by their path, and run to their end. Else, why not."""

import inspect
import types
from collections.abc import Set

from .exceptions import UnregisteredFunction
from .types import FnType

#: Characters of a dotted path: what its columns hold.
PATH_MAX = 500

WORDS = {FnType.ACTION: "an action", FnType.MUTATION: "a mutation", FnType.QUERY: "a query", FnType.CALLBACK: "an on_complete function"}
DECORATORS = {FnType.ACTION: "@action", FnType.MUTATION: "@mutation", FnType.QUERY: "@query", FnType.CALLBACK: "@on_complete"}


def check_plain(func: types.FunctionType, path: str) -> None:
    """Refuse what no other process could find by its path, or what would never run to its end."""
    reason = ""
    if func.__name__ == "<lambda>" or func.__qualname__.endswith("<lambda>"):
        reason = "is a lambda: write it as a def at the top level of a module"
    elif "<locals>" in func.__qualname__:
        reason = "is nested in another function: move it to the top level of its module"
    elif "." in func.__qualname__:
        reason = "is in a class: move it to the top level of its module"
    elif func.__module__ in ("__main__", "builtins") or not isinstance(func.__module__, str):
        reason = "is in no module that a worker can import: move it to a module of an app"
    elif inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        reason = "is a generator: nothing would consume what it yields; return a list instead"
    elif len(path) > PATH_MAX or not all(part.isidentifier() for part in path.split(".")):
        reason = f"is not a dotted path of identifiers with at most {PATH_MAX} characters: rename the module or the function"
    if reason:
        raise UnregisteredFunction(f"{shown(path)} {reason}.")


def check_callback(func: types.FunctionType, path: str, takes: str = "OnCompleteArgs") -> None:
    """Refuse a callback that could not be called."""
    try:
        inspect.signature(func, follow_wrapped=False).bind(None)
    except TypeError:
        raise UnregisteredFunction(f"{path} cannot be called with one argument: it takes {takes}.") from None


def not_plain(func: object, kinds: Set[FnType]) -> str:
    """Return why something that is not a plain function is refused. Trusts nothing that ``func`` answers."""
    kind = type(func)
    name = f"An object of type {kind.__module__}.{kind.__qualname__}"
    if kind is types.MethodType:
        name, advice = "A method", "its object cannot be stored"
    elif isinstance(func, type):
        name, advice = f"The class {func.__qualname__}", "a class is not a function"
    elif kind.__name__ == "partial":
        name, advice = "functools.partial", "pass the arguments to enqueue instead"
    elif kind.__name__ in ("staticmethod", "classmethod"):
        name, advice = f"A {kind.__name__}", "only functions outside classes can be found by their path"
    elif kind is types.BuiltinFunctionType:
        name, advice = "A built-in function", "call it from a function of your own"
    elif kind is types.CoroutineType:
        name, advice = "A coroutine", "pass the function itself, without calling it"
    else:
        advice = "it is not a function"
    return f"{name} cannot be enqueued: {advice}. Use a plain function at the top level of a module, decorated with {wanted(kinds)}."


def wanted(kinds: Set[FnType]) -> str:
    """Return the decorators of the wanted kinds, for an error text."""
    return " or ".join(DECORATORS[kind] for kind in FnType if kind in kinds)


def shown(path: str) -> str:
    """Return a path for an error text: short, printable ASCII if it is anything but a path."""
    text = ascii(path) if not path.isascii() or not path.isprintable() or " " in path or not path else path
    return text if len(text) <= 200 else text[:200] + "..."
