"""From the rows of a work to Django's TaskResult. Nothing that rows name is imported or called, but for the task's own module."""

import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from inspect import isclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.utils import timezone

from .. import exceptions, serialization
from ..adapters import standing_at
from ..allowed import is_allowed
from ..functions import WORK_KINDS, resolve
from ..ids import parse_work_id, time_of
from ..types import Failure, FnType, Follow, ResultKind
from .framework import Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from .task import changed, task_of

if TYPE_CHECKING:
    from ..models import Attempt

#: Failed attempts whose errors a result has, the last ones: a work may have a million.
ERRORS_MAX = 100
#: Stands for the workers of older attempts.
UNTOLD = "-"
WORK_CANCELED = "django_workpool.exceptions.WorkCanceled"


class StoredError(TaskError):
    """An error as the rows hold it. The class is looked up when it is asked for, among what this process has imported already."""

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        """The exception's class.

        Raises:
            ImportError: it is not there, or its module was not imported by this process and lies outside the installed apps.
            ValueError: it is something else than an exception's class.
        """
        return exception_class(self.exception_class_path)


class Found(NamedTuple):
    """What the rows say of a work."""

    pool: str
    func_path: str
    arguments: str
    priority: int
    status: TaskResultStatus
    #: Attempts that have ended.
    attempts: int
    created: datetime
    #: Of the last attempt, as far as it has a row of its own.
    started: datetime | None = None
    finished: datetime | None = None
    #: Who runs it, or has run its successful attempt.
    worker: str = ""
    run_after: datetime | None = None
    value: str = "null"
    #: Of canceled work.
    canceled: str | None = None


def read_result(alias: str, databases: Sequence[str], result_id: Any) -> "TaskResult[Any, Any]":
    """Return the result of a task.

    Args:
        alias: The backend's.
        databases: Where its works may be: three statements for each at most.
        result_id: The id.

    Raises:
        TaskResultDoesNotExist: there is none, it is no longer kept, or its function is no task (any more).
    """
    work_id = parse_work_id(result_id)
    for using in databases:
        if work_id is None:
            break
        found = _find(using, work_id)
        if found is not None:
            failed = found.attempts - (found.status == TaskResultStatus.SUCCESSFUL)
            return make_result(alias, work_id, found, read_attempts(using, work_id, failed))
    raise TaskResultDoesNotExist(result_id)


def make_result(alias: str, work_id: uuid.UUID, found: Found, failed: "Sequence[Attempt]") -> "TaskResult[Any, Any]":
    """Return the result that rows tell of. ``failed``: the rows of its attempts, some left out in the middle perhaps."""
    task = changed(
        _task_at(found.func_path, work_id), priority=found.priority, queue_name=found.pool, backend=alias, run_after=found.run_after
    )
    first = failed[0].started if failed and failed[0].number == 1 else None
    started_at = first or found.started
    enqueued_at = time_of(work_id)
    enqueued = found.created if enqueued_at is None else moment(enqueued_at)
    errors: list[TaskError] = [_error(one) for one in failed[-ERRORS_MAX:]]
    if found.canceled is not None:
        add_canceled(errors, found.canceled)
    succeeded = found.status == TaskResultStatus.SUCCESSFUL
    missing = found.attempts - succeeded - len(failed)
    # A work whose function nobody knew has failed without a worker.
    workers = [one.worker for one in failed if one.worker]
    workers[1:1] = [UNTOLD] * missing
    workers += [found.worker] if found.worker or found.status == TaskResultStatus.RUNNING else []
    call = serialization.decode(found.arguments)
    result: TaskResult[Any, Any] = TaskResult(
        task=task,
        id=str(work_id),
        status=found.status,
        # The id tells the time of whoever has enqueued it, the others are the database's.
        enqueued_at=enqueued if started_at is None else min(enqueued, started_at),
        started_at=started_at,
        last_attempted_at=found.started or (failed[-1].started if failed else None),
        finished_at=found.finished,
        args=call["args"],
        kwargs=call["kwargs"],
        backend=alias,
        errors=errors,
        worker_ids=workers,
    )
    if succeeded:
        object.__setattr__(result, "_return_value", serialization.decode(found.value))
    return result


def add_canceled(errors: list[TaskError], reason: str) -> None:
    """Let the last of the errors say that the work was canceled."""
    # A function that was told so may have raised it itself.
    if not errors or errors[-1].exception_class_path != WORK_CANCELED:
        errors.append(StoredError(exception_class_path=WORK_CANCELED, traceback=f"{WORK_CANCELED}: {reason}\n"))


def stored_error(failure: Failure) -> StoredError:
    """Return what an attempt has raised as the rows will tell it."""
    text = failure.traceback or f"{failure.class_path}: {failure.text}\n"
    return StoredError(exception_class_path=failure.class_path, traceback=text)


def moment(seconds: float) -> datetime:
    """Return a time as Django's fields hold it: aware, or naive in TIME_ZONE without USE_TZ."""
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware, timezone.get_default_timezone())


def exception_class(path: str) -> type[BaseException]:
    """Return the exception's class of a dotted path; see ``StoredError``."""
    found = _looked_up(path)
    if not isclass(found) or not issubclass(found, BaseException):
        raise ValueError(f"{path!r} does not reference a valid exception.")
    return found


def _looked_up(path: str) -> object:
    parts = path.split(".")
    if len(parts) < 2 or not all(parts):
        raise ImportError(f"{path!r} is not the path of a class.")
    if parts[0] == exceptions.__package__ and len(parts) == 2:
        # What failed attempts of the pool's own are called.
        parts.insert(1, "exceptions")
    module, names = _module_of(parts)
    found: object = module
    for name in names:
        # Not getattr(): a module or class may do anything when it is asked.
        try:
            found = vars(found)[name]
        except (KeyError, TypeError):
            raise ImportError(f"there is no {path!r}") from None
    return found


def _module_of(parts: list[str]) -> tuple[ModuleType, list[str]]:
    if ".".join(parts[:-1]) not in sys.modules and is_allowed(".".join(parts[:-1])):
        # It may be a class in a class; and a module may raise anything, even end the process.
        with suppress(Exception, SystemExit):
            import_module(".".join(parts[:-1]))
    for size in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:size]))
        if module is not None:
            return module, parts[size:]
    raise ImportError(f"the module of {'.'.join(parts)!r} is not imported in this process, and nothing is imported for what a row names.")


def _task_at(path: str, work_id: uuid.UUID) -> "Task[Any, Any]":
    try:
        registered = resolve(path, WORK_KINDS)
    except exceptions.UnregisteredFunction as error:
        raise TaskResultDoesNotExist(f"{work_id}: its task is not there: {error}") from error
    task = task_of(standing_at(path)) or getattr(registered.adapter, "task", None)
    if task is None:
        raise TaskResultDoesNotExist(f"{work_id}: {path} is no task.")
    return task


def _error(row: "Attempt") -> StoredError:
    return StoredError(exception_class_path=row.class_path, traceback=row.traceback or f"{row.class_path}: {row.text}\n")


def _find(using: str, work_id: uuid.UUID) -> Found | None:
    # A work that ends moves from the one to the other in one transaction.
    return _find_living(using, work_id) or _find_finished(using, work_id)


def _find_living(using: str, work_id: uuid.UUID) -> Found | None:
    from django.db.models import OuterRef, Subquery

    from ..models import PendingCompletion, PendingStart, RunningWork, Work, Worker

    def of(model: Any, field: str, **where: Any) -> Subquery:
        return Subquery(model.objects.using(using).filter(**where or {"work_id": OuterRef("id")}).values(field)[:1])

    works = Work.objects.using(using).filter(id=work_id).exclude(fn_type=FnType.CALLBACK)
    row = works.annotate(
        segment=of(PendingStart, "segment"),
        follow=of(PendingCompletion, "follow"),
        started=of(RunningWork, "started"),
        worker_id=of(RunningWork, "worker_id"),
        host=of(Worker, "host", id=OuterRef("worker_id")),
        pid=of(Worker, "pid", id=OuterRef("worker_id")),
    ).first()
    if row is None:
        return None
    waits = row.started is None or row.follow in (Follow.RETRY, Follow.RETURN)
    deferred = waits and not row.attempts and row.held_since is None and row.segment is not None
    due = row.segment / 10 if deferred else 0.0
    return Found(
        pool=row.pool,
        func_path=row.func_path,
        arguments=row.arguments,
        priority=row.priority,
        status=TaskResultStatus.READY if waits else TaskResultStatus.RUNNING,
        attempts=row.attempts,
        created=row.created,
        started=None if waits else row.started,
        worker="" if waits or row.host is None else f"{row.host}:{row.pid}",
        run_after=moment(due) if due > timezone.now().timestamp() else None,
    )


def _find_finished(using: str, work_id: uuid.UUID) -> Found | None:
    from ..models import Archive

    row = Archive.objects.using(using).filter(id=work_id).exclude(fn_type=FnType.CALLBACK).first()
    if row is None:
        return None
    success = row.kind == ResultKind.SUCCESS
    return Found(
        pool=row.pool,
        func_path=row.func_path,
        arguments=row.arguments,
        priority=row.priority,
        status=TaskResultStatus.SUCCESSFUL if success else TaskResultStatus.FAILED,
        attempts=row.attempts,
        created=row.created,
        started=row.started,
        finished=row.finished,
        worker=row.worker if success else "",
        value=row.value,
        canceled=row.error if row.kind == ResultKind.CANCELED else None,
    )


def read_attempts(using: str, work_id: uuid.UUID, attempts: int) -> "list[Attempt]":
    """Return the rows of a work's failed attempts up to a number: the first one, and the last ``ERRORS_MAX``."""
    if attempts <= 0:
        return []
    from django.db.models import Q

    from ..models import Attempt

    # The first one tells when the task was started. A retry that has begun since is not of this moment.
    some = Q(number=1) | Q(number__gt=attempts - ERRORS_MAX)
    return list(Attempt.objects.using(using).filter(some, work_id=work_id, number__lte=attempts).order_by("number"))
