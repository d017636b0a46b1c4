"""Tasks with the options of a work: ``@task(retry=True)``, ``.using(retry=True)``, and what the pool is told of them."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import FunctionType
from typing import Any

from django.apps import apps

from .. import conf
from ..exceptions import InvalidWork, UnknownPool, UnregisteredFunction
from ..types import RetryBehavior
from .framework import InvalidTask, Task

#: What a Task says itself, or what means something else there.
_NOT_EXTRA = frozenset({"priority", "run_after", "name"})
#: Beside those of an enqueue: a retry with so many attempts in all.
_MAX_ATTEMPTS = "max_attempts"
#: What may lead to a module that is being imported when a task is declared: looked at when it is enqueued.
_LATE = frozenset({"on_complete", "on_complete_context"})
#: The slot in which a Task holds its function.
_FUNC = inspect.getattr_static(Task, "func")


def extra_options() -> frozenset[str]:
    """Return the names of the options that tasks take beside Django's. Needs loaded apps."""
    # It leads to the models.
    from ..options import EnqueueOptions

    return frozenset(EnqueueOptions.__annotations__) - _NOT_EXTRA | {_MAX_ATTEMPTS}


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class WorkpoolTask(Task):  # type: ignore[type-arg]
    """A Task that takes the options of a work, too: those of ``Workpool.using``, and ``max_attempts``.

    ``options`` holds those that were said; None is as if it was not.

    Raises:
        InvalidTask: an option is unknown, or cannot be taken.
    """

    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __init__(self, *, options: Mapping[str, Any] | None = None, **values: Any) -> None:
        own = {one.name for one in fields(Task)}
        extra = {name: values.pop(name) for name in sorted(set(values) - own)}
        given = {**(options or {}), **extra}
        # Before the apps are loaded, what they are is not known; then it is told when the task is enqueued.
        if given and apps.apps_ready and (unknown := sorted(set(given) - extra_options())):
            raise InvalidTask(f"Unknown option {', '.join(unknown)}. Known: {', '.join(sorted(extra_options()))}.")
        object.__setattr__(self, "options", {name: value for name, value in given.items() if value is not None})
        Task.__init__(self, **values)

    def using(self, **changes: Any) -> "WorkpoolTask":
        """Return a new Task with these attributes and options; what is None, or left out, stays as it is."""
        own = {name: changes.pop(name) for name in ("priority", "queue_name", "run_after", "backend") if name in changes}
        given = {name: value for name, value in changes.items() if value is not None}
        said = {name: value for name, value in own.items() if value is not None}
        return replace(self, options={**self.options, **given}, **said)


def with_options(**options: Any) -> "Callable[[Task[Any, Any]], WorkpoolTask]":
    """Give a task options where ``@task`` itself does not take them (Django 6.0): to be written above ``@task``.

    Args:
        **options: those of ``Workpool.using``, and ``max_attempts``.

    Raises:
        InvalidTask: an option is unknown, or cannot be taken.
    """

    def decorate(task: "Task[Any, Any]") -> WorkpoolTask:
        if not isinstance(task, Task):
            raise InvalidTask("with_options is written above @task: what it decorates is a Task.")
        own = {one.name: getattr(task, one.name) for one in fields(Task)}
        return WorkpoolTask(**own, options={**getattr(task, "options", {}), **options})

    return decorate


def work_options(task: "Task[Any, Any]", defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``Workpool.using`` is told of a task.

    Args:
        task: The task.
        defaults: What holds where it says nothing itself.

    Raises:
        InvalidTask: the options contradict each other.
    """
    options = plain_options({**defaults, **getattr(task, "options", {})}, task.queue_name)
    # Django takes 3.0 for a whole number.
    options["priority"] = int(task.priority)
    if task.run_after is not None:
        options["run_after"] = task.run_after
    return options


def plain_options(options: Mapping[str, Any], queue: str) -> dict[str, Any]:
    """Return options as the pool takes them: with ``max_attempts``, and a retry that settings wrote as a dictionary, in its words."""
    plain = dict(options)
    if isinstance(plain.get("retry"), Mapping):
        plain["retry"] = _behavior(plain["retry"])
    if (attempts := plain.pop(_MAX_ATTEMPTS, None)) is not None:
        plain["retry"] = _with_attempts(plain.get("retry"), attempts, queue)
    return plain


def check_declared(task: "Task[Any, Any]", defaults: Mapping[str, Any]) -> None:
    """Refuse options that cannot be taken, as far as that is known when a task is declared.

    Raises:
        InvalidTask: the text says which.
    """
    if getattr(task, "options", None) and apps.apps_ready:
        check_options({name: value for name, value in work_options(task, defaults).items() if name not in _LATE})


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what ``Workpool.using`` would refuse. Needs loaded apps.

    Raises:
        InvalidTask: the text says what.
    """
    from .. import options as of_works

    with invalid_task():
        of_works.check_options(of_works.CheckedOptions(), dict(options))  # type: ignore[arg-type]


@contextmanager
def invalid_task() -> Iterator[None]:
    """Raise what the pool does not take as Django names it."""
    try:
        yield
    except (InvalidWork, UnknownPool, UnregisteredFunction) as error:
        raise InvalidTask(str(error)) from error


def task_of(held: object) -> "Task[Any, Any] | None":
    """Return an object if it is a Task of a plain function. Trusts nothing but its type."""
    # Not isinstance(): it would believe a __class__ that pretends. Nor a property of a subclass: it may answer differently each time.
    kind = type(held)
    if issubclass(kind, Task) and inspect.getattr_static(kind, "func") is _FUNC and type(getattr(held, "func", None)) is FunctionType:
        return held  # type: ignore[return-value]
    return None


def changed(task: "Task[Any, Any]", **changes: Any) -> "Task[Any, Any]":
    """Return a task with other attributes, whether or not its backend would still take it: it was taken before."""
    copy: Task[Any, Any] = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(copy, one.name, changes.get(one.name, getattr(task, one.name)))
    return copy


def _behavior(stored: Mapping[str, Any]) -> RetryBehavior:
    try:
        return RetryBehavior(**stored)
    except (TypeError, InvalidWork) as error:
        raise InvalidTask(f"retry: {error}") from error


def _with_attempts(retry: Any, attempts: Any, pool: str) -> RetryBehavior:
    if retry is False and attempts != 1:
        raise InvalidTask("retry=False and max_attempts contradict each other.")
    settings = conf.pools().get(pool)
    like = next((one for one in (retry, settings and settings.retry) if isinstance(one, RetryBehavior)), RetryBehavior())
    with invalid_task():
        return replace(like, max_attempts=attempts)
