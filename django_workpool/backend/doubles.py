"""Doubles of the backend, for tests: what they take and refuse is what the backend does, and arguments and results are JSON.

What a work waits for they do not know: a delay, a key, a place in a queue.
"""

import logging
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from .. import conf, functions, serialization
from ..failures import describe
from ..ids import new_work_id
from ..types import OnCompleteArgs, ResultKind, RetryBehavior, RunResult
from .framework import (
    DummyBackend,
    ImmediateBackend,
    Task,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
    task_finished,
    task_started,
)
from .pool import PoolTasks, identify
from .results import stored_error
from .signals import send
from .task import work_options

if TYPE_CHECKING:
    from ..options import CheckedOptions

logger = logging.getLogger("django_workpool.backend")

#: Results that the immediate backend keeps.
KEPT = 1000
_kept: "OrderedDict[str, TaskResult[Any, Any]]" = OrderedDict()


class WorkpoolDummyBackend(PoolTasks, DummyBackend):
    """Runs nothing and keeps the results in ``results``, as Django's DummyBackend does."""

    def enqueue(self, task: "Task[Any, Any]", args: Any, kwargs: Any) -> "TaskResult[Any, Any]":
        """Keep what the backend would have enqueued. Raises what it would."""
        _, result = self.accept(task, args, kwargs)
        call = _as_stored(result)
        return super().enqueue(task, call["args"], call["kwargs"])


class WorkpoolImmediateBackend(PoolTasks, ImmediateBackend):
    """Runs a task at once, in the caller's thread and transaction, with its retries and its on_complete, and without any wait.

    The last thousand results of the process can be had by their ids.
    """

    supports_get_result = True

    def enqueue(self, task: "Task[Any, Any]", args: Any, kwargs: Any) -> "TaskResult[Any, Any]":
        """Run a task; return its result, which has ended. Raises what the backend would."""
        from ..options import CheckedOptions, check_options

        _, result = self.accept(task, args, kwargs)
        call = _as_stored(result)
        _set(result, args=call["args"], kwargs=call["kwargs"])
        options = check_options(CheckedOptions(), work_options(task, self.options))  # type: ignore[arg-type]
        registered = functions.registered(task.func, functions.WORK_KINDS)
        retry = options.retry_text(registered, conf.pool(task.queue_name))
        behavior = RetryBehavior.from_json(serialization.decode(retry)) if retry else RetryBehavior(max_attempts=1)
        identify(result, new_work_id())
        _keep(result)
        send(task_enqueued, self, result)
        while not self._attempt(result, behavior.max_attempts, options):
            pass
        return result

    def get_result(self, result_id: Any) -> "TaskResult[Any, Any]":
        """Return the result of a task that this process has run."""
        try:
            return _kept[result_id]
        except (KeyError, TypeError):
            raise TaskResultDoesNotExist(result_id) from None

    async def aget_result(self, result_id: Any) -> "TaskResult[Any, Any]":
        """See get_result()."""
        return self.get_result(result_id)

    def _attempt(self, result: "TaskResult[Any, Any]", most: int, options: "CheckedOptions") -> bool:
        """Run the function once; return whether the task has ended with that."""
        now = timezone.now()
        _set(result, status=TaskResultStatus.RUNNING, started_at=result.started_at or now, last_attempted_at=now)
        result.worker_ids.append(self.worker_id)
        send(task_started, self, result)
        args = (TaskContext(task_result=result), *result.args) if result.task.takes_context else result.args
        final = False
        try:
            value = result.task.call(*args, **result.kwargs)
            final = True
            value = serialization.decode(serialization.encode_result(normalize_json(value)))
        except KeyboardInterrupt:
            # Whoever runs the tests wants to end them.
            raise
        except BaseException as error:
            failure = describe(error, keep=True)
            result.errors.append(stored_error(failure))
            if not final and failure.retryable and result.attempts < most:
                _set(result, status=TaskResultStatus.READY)
                return False
            self._end(result, options, RunResult(kind=ResultKind.FAILED, error=failure.text))
        else:
            _set(result, _return_value=value)
            self._end(result, options, RunResult(kind=ResultKind.SUCCESS, value=value))
        return True

    def _end(self, result: "TaskResult[Any, Any]", options: "CheckedOptions", ended: RunResult) -> None:
        succeeded = ended.kind is ResultKind.SUCCESS
        _set(result, status=TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED, finished_at=timezone.now())
        if options.on_complete:
            context = serialization.decode(options.on_complete_context)
            done = OnCompleteArgs(work_id=uuid.UUID(result.id), context=context, result=ended)
            try:
                with transaction.atomic(using=conf.database_alias(result.task.queue_name)):
                    functions.resolve(options.on_complete, functions.CALLBACK_KINDS).func(done)
            except Exception:
                # As with the pool: the work has ended all the same.
                logger.exception("the on_complete of task %s raised", result.id)
        send(task_finished, self, result)


def _as_stored(result: "TaskResult[Any, Any]") -> dict[str, Any]:
    call: dict[str, Any] = serialization.decode(serialization.encode_call(tuple(result.args), result.kwargs))
    return call


def _set(result: "TaskResult[Any, Any]", **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _keep(result: "TaskResult[Any, Any]") -> None:
    _kept[result.id] = result
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
