"""Functions that belong to a framework, in whose place the pool calls something that knows the framework's arguments and signals.

The pool itself knows no framework. Whoever knows one recognizes the objects that stand in modules for functions (``recognize``), and
registers those functions with an adapter, which makes a guest of each run.
"""

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Protocol

from .types import Outcome, Run


class Guest(Protocol):
    """One run of such a function, from its begin to the end of its work."""

    #: Whether what it has raised would be raised by another attempt as well.
    final: bool
    #: What it has raised, with its traceback: it is let go when ``ended`` has been called.
    error: BaseException | None

    @property
    def begin(self) -> Callable[[], Any]:
        """What is called before that, in the same context: a coroutine function if the function is one. It has no timeout."""

    @property
    def call(self) -> Callable[..., Any]:
        """What is called in the function's place, with the stored arguments: a coroutine function if the function is one."""

    def ended(self, outcome: Outcome) -> None:
        """Take note, on the executing thread, that the work has ended: that is committed. May raise anything.

        ``outcome.kind`` is the work's: "success", "failed" or "canceled".
        """


def visit(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function itself: guests do so by this, so that what interrupts functions can tell them from their guests."""
    return func(*args, **kwargs)


#: Makes a guest of a run, for a database and for a worker of a name. Must not take long: coroutines wait meanwhile.
Adapter = Callable[[Run, str, str], Guest]


class Recognizer(Protocol):
    """Knows the objects of a framework."""

    def function(self, held: object) -> FunctionType | None:
        """Return the function for which an object stands, None if it is none of the framework's. Trusts nothing but its type."""

    def adapter(self, held: object) -> Adapter:
        """Return what adapts the function of such an object."""


_recognizers: list[Recognizer] = []


def recognize(recognizer: Recognizer) -> None:
    """From now on, let the objects of a framework stand for their functions."""
    _recognizers.append(recognizer)


def function_of(held: object) -> FunctionType | None:
    """Return the function for which an object stands, None for what no framework knows."""
    return next((func for one in _recognizers if (func := one.function(held)) is not None), None)


def adapter_of(held: object) -> Adapter:
    """Return what adapts the function of an object for which ``function_of`` has found one."""
    return next(one for one in _recognizers if one.function(held) is not None).adapter(held)


def held_at(path: str) -> object:
    """Return what an imported module holds under a dotted path, None if it is nothing.

    A module's ``__getattr__`` is not asked: the path may come from a row, and it may do or raise anything.
    """
    module, _, name = path.rpartition(".")
    there = sys.modules.get(module)
    return vars(there).get(name) if issubclass(type(there), ModuleType) else None


def standing_at(path: str) -> object:
    """Return the object that stands at a dotted path for the very function of this path; None if there is none."""
    held = held_at(path)
    func = function_of(held)
    return held if func is not None and f"{func.__module__}.{func.__qualname__}" == path else None
