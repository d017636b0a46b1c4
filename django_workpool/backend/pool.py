"""The backend: tasks become works of the pool that is named like their queue."""

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error

from .. import conf, functions
from ..exceptions import UnregisteredFunction, WorkExists, WorkpoolSettingsError
from ..ids import time_of
from ..plain import shown
from .framework import BaseTaskBackend, InvalidTask, Task, TaskResult, TaskResultDoesNotExist, TaskResultStatus, task_enqueued
from .results import moment, read_result
from .runs import TaskAdapter
from .signals import send
from .task import WorkpoolTask, check_declared, check_options, extra_options, invalid_task, plain_options, work_options

if TYPE_CHECKING:
    from ..pools import Workpool


class PoolTasks(BaseTaskBackend):
    """What the backend and its doubles have in common: queues are pools, and tasks take the options of works."""

    task_class = WorkpoolTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        self._named: set[str] | None = None
        super().__init__(alias, dict(params))
        if params.get("QUEUES") is None:
            # All that WORKPOOLS names.
            self._named = None

    @property
    def queues(self) -> set[str]:
        """The queues that tasks may name; empty: any, and whoever enqueues finds out."""
        if self._named is not None:
            return self._named
        try:
            return set(conf.pools())
        except WorkpoolSettingsError:
            # workpool.E001 says so.
            return set()

    @queues.setter
    def queues(self, value: set[str]) -> None:
        self._named = value

    def validate_task(self, task: "Task[Any, Any]") -> None:
        """Refuse a task that this backend cannot take, and let the pool know its function.

        Raises:
            InvalidTask: the text says why.
        """
        super().validate_task(task)
        try:
            functions.register_adapted(task.func, TaskAdapter(task))  # type: ignore[arg-type]
        except UnregisteredFunction as error:
            raise InvalidTask(str(error)) from error
        check_declared(task, self.options)

    def accept(self, task: "Task[Any, Any]", args: Any, kwargs: Any) -> "tuple[Workpool, TaskResult[Any, Any]]":
        """Return the pool with the options of a task that is to be enqueued, and its result, still without an id.

        Raises:
            InvalidTask: the task cannot be taken.
            TypeError, ValueError: an argument cannot be stored.
        """
        # It leads to the models.
        from ..pools import Workpool

        self.validate_task(task)
        result: TaskResult[Any, Any] = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        with invalid_task():
            functions.registered(task.func, functions.WORK_KINDS)
            return Workpool(task.queue_name).using(**work_options(task, self.options)), result

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return what is wrong with the alias: workpool.E011 to workpool.E013."""
        return [*super().check(**kwargs), *self._faults()]

    def _faults(self) -> Iterable[CheckMessage]:
        place = f"TASKS[{self.alias!r}]"
        if not apps.is_installed("django_workpool"):
            yield Error(f"{place}: django_workpool is not in INSTALLED_APPS.", hint="Add it, and migrate.", id="workpool.E011")
            return
        try:
            pools = conf.pools()
        except WorkpoolSettingsError:
            return
        for queue in sorted(self._named or (), key=str):
            if queue not in pools:
                hint = f"WORKPOOLS names {', '.join(map(repr, pools))}."
                yield Error(f"{place}: the queue {queue!r} is no pool.", hint=hint, id="workpool.E012")
        if not isinstance(self.options, Mapping):
            yield Error(f"{place}: OPTIONS must be a dictionary, not {type(self.options).__name__}.", id="workpool.E013")
            return
        known = extra_options()
        for name in sorted(map(str, set(self.options) - known)):
            yield Error(f"{place}: OPTIONS has an unknown {shown(name)}.", hint=f"Known: {', '.join(sorted(known))}.", id="workpool.E013")
        try:
            check_options(plain_options({name: value for name, value in self.options.items() if name in known}, next(iter(pools))))
        except InvalidTask as error:
            yield Error(f"{place}: OPTIONS cannot be used: {error}", id="workpool.E013")


class WorkpoolBackend(PoolTasks):
    """Runs tasks as works: durable, in the project's database, never more at once than their pool allows.

    ``QUEUES``: the pools whose names tasks may use; left out: all, empty: not checked before the enqueue.
    ``OPTIONS``: what tasks of this alias are enqueued with, unless they say otherwise: as ``WorkpoolTask`` takes it.
    """

    supports_get_result = True

    def enqueue(self, task: "Task[Any, Any]", args: Any, kwargs: Any) -> "TaskResult[Any, Any]":
        """Insert a work in the caller's transaction; send ``task_enqueued``.

        Returns:
            The result, which waits.

        Raises:
            InvalidTask: the task cannot be taken.
            TypeError, ValueError: an argument cannot be stored.
            WorkExists: its unique key is taken, and it says ``if_taken="raise"``. Nothing has been written in any of these cases.
        """
        pool, result = self.accept(task, args, kwargs)
        keeps = bool(pool._options.unique) and pool._options.if_taken == "keep"
        try:
            # Whether a work is kept, its id does not tell.
            work_id = (pool.using(if_taken="raise") if keeps else pool).enqueue(task.func, *result.args, **result.kwargs)
        except WorkExists as kept:
            if not keeps:
                raise
            # Nothing was enqueued. What has the key may be no task.
            identify(result, kept.work_id)
            with suppress(TaskResultDoesNotExist):
                return self.get_result(kept.work_id)
            return result
        identify(result, work_id)
        send(task_enqueued, self, result)
        return result

    def get_result(self, result_id: Any) -> "TaskResult[Any, Any]":
        """Return the result of a task from its rows, which any process may have written.

        Raises:
            TaskResultDoesNotExist: there is none, or its pool no longer keeps it.
        """
        return read_result(self.alias, conf.database_aliases(self.queues or None), result_id)


def identify(result: "TaskResult[Any, Any]", work_id: uuid.UUID) -> None:
    """Give a result its id, which tells when it was made."""
    enqueued = time_of(work_id)
    object.__setattr__(result, "id", str(work_id))
    object.__setattr__(result, "enqueued_at", None if enqueued is None else moment(enqueued))
