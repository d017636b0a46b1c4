"""What the pool calls in the place of a task's function: it makes the context, and sends the signals of begin and end."""

import contextvars
import logging
from collections.abc import Callable
from inspect import iscoroutinefunction
from types import FunctionType
from typing import Any

from asgiref.sync import sync_to_async
from django.utils import timezone

from .. import serialization
from ..adapters import Adapter, recognize, standing_at, visit
from ..types import Outcome, Run
from .framework import (
    BaseTaskBackend,
    InvalidTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from .results import Found, add_canceled, make_result, read_attempts, stored_error
from .signals import asend, send
from .task import task_of

logger = logging.getLogger("django_workpool.backend")


class TaskAdapter:
    """Makes the runs of one task's function.

    Args:
        task: The task, as long as none stands at the function's path.
    """

    def __init__(self, task: "Task[Any, Any]") -> None:
        self.task = task

    def __call__(self, run: Run, using: str, worker: str) -> "TaskRun":
        """Return the guest of a run."""
        return TaskRun(task_of(standing_at(run.func_path)) or self.task, run, using, worker)


class TaskRun:
    """One attempt of a task: a guest of the pool."""

    def __init__(self, task: "Task[Any, Any]", run: Run, using: str, worker: str) -> None:
        self.final = False
        self.error: BaseException | None = None
        self._task, self._run, self._using, self._worker = task, run, using, worker
        self._backend = backend_for(task, run.pool)
        self._result: TaskResult[Any, Any] | None = None
        #: What the function has left in its context: whoever hears of the end sees it, as with Django's own backend.
        self._context: contextvars.Context | None = None

    @property
    def begin(self) -> Callable[[], Any]:
        """What reads the attempt's result, and tells that it begins."""
        return self._begin_async if iscoroutinefunction(self._task.func) else self._begin

    def _begin(self) -> None:
        self._result = self._read()
        send(task_started, self._backend, self._result)

    async def _begin_async(self) -> None:
        self._result = await sync_to_async(self._read)()
        try:
            await asend(task_started, self._backend, self._result)
        finally:
            self._context = contextvars.copy_context()

    @property
    def call(self) -> Callable[..., Any]:
        """What is called in the function's place."""
        return self._call_async if iscoroutinefunction(self._task.func) else self._call

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._checked(visit(self._task.func, self._arguments(args), kwargs))
        finally:
            self._context = contextvars.copy_context()

    async def _call_async(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._checked(await self._task.func(*self._arguments(args), **kwargs))
        finally:
            self._context = contextvars.copy_context()

    def _arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (TaskContext(task_result=self._result), *args) if self._task.takes_context else args  # type: ignore[arg-type]

    def _checked(self, value: Any) -> Any:
        try:
            return normalize_json(value)
        except (TypeError, ValueError):
            # Another attempt would return the same.
            self.final = True
            raise

    def ended(self, outcome: Outcome) -> None:
        """Send the signal of the end, with the same result that the function's context has."""
        result = self._result or self._read()
        # Should this host's clock be behind the database's.
        finished_at = max(timezone.now(), result.last_attempted_at or timezone.now())
        succeeded = outcome.kind == "success"
        if succeeded:
            _set(result, _return_value=serialization.decode(outcome.value))
        elif outcome.failure is not None:
            result.errors.append(stored_error(outcome.failure))
        if outcome.kind == "canceled":
            add_canceled(result.errors, outcome.kind)
        _set(result, status=TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED, finished_at=finished_at)
        context = self._context or contextvars.Context()
        context.run(send, task_finished, self._backend, result)

    def _read(self) -> "TaskResult[Any, Any]":
        """Return the result of the attempt that begins."""
        run = self._run
        found = Found(
            pool=run.pool,
            func_path=run.func_path,
            arguments=run.arguments,
            priority=self._task.priority,
            status=TaskResultStatus.RUNNING,
            attempts=run.attempts,
            created=run.started,
            started=run.started,
            worker=self._worker,
        )
        try:
            from ..models import Work

            priority = Work.objects.using(self._using).filter(id=run.work_id).values_list("priority", flat=True).first()
            failed = read_attempts(self._using, run.work_id, run.attempts)
        except Exception as error:
            # Where the function runs, the database may be out of reach: then it is told what the run tells.
            logger.info("work %s: what its row says could not be read (%s)", run.work_id, type(error).__name__)
            priority, failed = None, []
        if priority is not None:
            found = found._replace(priority=priority)
        return make_result(self._backend.alias, run.work_id, found, failed)


def backend_for(task: "Task[Any, Any]", queue: str) -> BaseTaskBackend:
    """Return the backend through which works of a task and queue come: its own, else the first of the pool's that takes the queue."""
    from .pool import WorkpoolBackend

    for alias in (task.backend, *task_backends):
        try:
            backend = task_backends[alias]
        except InvalidTaskBackend:
            continue
        if isinstance(backend, WorkpoolBackend) and (not backend.queues or queue in backend.queues):
            return backend
    return WorkpoolBackend(task.backend, {})


def _set(result: "TaskResult[Any, Any]", **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)


class _Tasks:
    """Tasks stand in modules for their functions."""

    def function(self, held: object) -> FunctionType | None:
        task = task_of(held)
        return None if task is None else task.func  # type: ignore[return-value]

    def adapter(self, held: object) -> Adapter:
        task = task_of(held)
        assert task is not None  # noqa: S101 - asked of what function() knows
        return TaskAdapter(task)


recognize(_Tasks())
