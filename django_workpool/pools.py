"""The pools as users see them: what is enqueued, asked and canceled. What operators do with them is in ``operating``."""

import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async

from . import batches, client, conf
from .batch_values import BatchStatus
from .operating import OperatedPool
from .options import CheckedOptions, Context, EnqueueOptions, check_options
from .types import Argument, Call, Function, Status

P = ParamSpec("P")
R = TypeVar("R")
DEFAULT_POOL = "default"


@overload
def call(func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[Callable[P, R]]: ...
@overload
def call(*args: Argument, **kwargs: Argument) -> Call[Any]: ...
def call(*args: Any, **kwargs: Any) -> Call[Any]:
    """Return the arguments of one call, for ``enqueue_many``.

    Args:
        *args: The arguments. Before them the function itself may stand, so that type checkers hold them to it.
        **kwargs: The keyword arguments.
    """
    if args and isinstance(args[0], FunctionType):
        return Call(args[1:], kwargs, args[0])
    return Call(args, kwargs)


@dataclass(frozen=True, slots=True)
class Workpool(OperatedPool):
    """A pool of the settings, with the options of what is enqueued through this object.

    Raises:
        UnknownPool: the settings do not name it.
    """

    name: str = DEFAULT_POOL
    _options: CheckedOptions = field(default=CheckedOptions(), repr=False)

    def __post_init__(self) -> None:
        # The plain text of the settings: as text, a member of an enumeration has its own name.
        object.__setattr__(self, "name", conf.pool(self.name).name)

    def using(self, **options: Unpack[EnqueueOptions[Context]]) -> "Workpool":
        """Return the same pool with these options for what is enqueued through it: see ``EnqueueOptions``.

        Raises:
            InvalidWork: an option is unknown, of the wrong type or out of range.
            UnregisteredFunction: ``on_complete`` is not a registered on_complete function.
        """
        return Workpool(self.name, check_options(self._options, options))

    @overload
    def enqueue(self, func: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> uuid.UUID: ...
    @overload
    def enqueue(self, func: str, /, *args: Argument, **kwargs: Argument) -> uuid.UUID: ...
    def enqueue(self, func: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> uuid.UUID:
        """Insert a call of ``func`` in the caller's transaction.

        Args:
            func: A registered function, or its dotted path.
            *args: Its arguments: JSON.
            **kwargs: Its keyword arguments: JSON.

        Returns:
            The id of the work.

        Raises:
            UnregisteredFunction: ``func`` is not a registered action, mutation or query.
            InvalidWork: an argument cannot be taken.
            WorkExists: the unique key is taken. Nothing has been written in any of these cases.
        """
        return client.enqueue_calls(self.name, self._options, func, [Call(args, kwargs)])[0]

    @overload
    def enqueue_many(self, func: Function, /, calls: Iterable[Call[Function]]) -> list[uuid.UUID]: ...
    @overload
    def enqueue_many(self, func: str, /, calls: Iterable[Call[Any]]) -> list[uuid.UUID]: ...
    def enqueue_many(self, func: Callable[..., Any] | str, /, calls: Iterable[Call[Any]]) -> list[uuid.UUID]:
        """Insert many calls of ``func``, all or none; return their ids in the same order. Args and Raises are those of ``enqueue``.

        ``calls`` are ``call(...)`` objects, one for each work: a thousand are one statement.
        """
        return client.enqueue_calls(self.name, self._options, func, calls)

    def cancel(self, work_id: object) -> bool:
        """Ask, in the caller's transaction, that a work is not started, retried or returned any more, and tell it if it runs.

        Returns:
            False if there is nothing to cancel: the work has ended, is unknown, of another pool, or is being canceled already.
        """
        return client.cancel(self.name, work_id)

    def cancel_many(self, work_ids: Iterable[object]) -> int:
        """Ask the same for many works, all or none, a thousand a statement.

        Returns:
            For how many of them there was something to cancel.

        Raises:
            InvalidWork: something is not the id of a work. Nothing has been written.
        """
        return client.cancel_many(self.name, work_ids)

    def cancel_all(self) -> None:
        """Ask the same for all works created up to now (a work committed later is not covered)."""
        client.cancel_all(self.name)

    def status(self, work_id: object) -> Status:
        """Return where a work is; unknown work counts as finished, without a result.

        Raises:
            InvalidWork: ``work_id`` is not the id of a work (a UUID, or its text).
        """
        return next(iter(client.status_many(self.name, [work_id]).values()))

    def status_many(self, work_ids: Iterable[object]) -> dict[uuid.UUID, Status]:
        """Return where each of the works is, by its id, in a fixed number of statements for each thousand. Raises what ``status`` does."""
        return client.status_many(self.name, work_ids)

    def batch(
        self, *, on_complete: batches.OnBatchComplete | str | None = None, on_complete_context: Any = None, name: str = ""
    ) -> AbstractContextManager[batches.WorkBatch]:
        """Return a block in which a batch is filled: a transaction of the pool's database.

        What is enqueued through the object that it gives are the works of the batch. Nothing is enqueued if the block raises.

        Args:
            on_complete: Called once when all its works have ended, whatever the outcome: an on_batch_complete function or its path.
            on_complete_context: JSON handed to it.
            name: A label.

        Returns:
            A context manager that gives a ``WorkBatch``.

        Raises:
            InvalidWork: a value cannot be taken.
            UnregisteredFunction: ``on_complete`` is not a registered on_batch_complete function.
        """
        return batches.fill(self, batches.told(on_complete, on_complete_context, name))

    def batch_status(self, batch_id: object) -> BatchStatus | None:
        """Return how far a batch has come; None if there is none, its block is not committed, or it is no longer kept.

        Raises:
            InvalidWork: ``batch_id`` is not an id.
        """
        return batches.status(self.name, batch_id)

    def cancel_batch(self, batch_id: object) -> int:
        """Ask that the works of a batch that have not ended are not started or retried any more; return of how many.

        Those that are being canceled already do not count; 0 if there is no such batch. Its on_complete is called all the same, when
        all have ended.
        """
        return batches.cancel(self.name, batch_id)

    # The same for coroutines: the statements run in Django's thread for synchronous code.

    @overload
    async def aenqueue(self, func: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> uuid.UUID: ...
    @overload
    async def aenqueue(self, func: str, /, *args: Argument, **kwargs: Argument) -> uuid.UUID: ...
    async def aenqueue(self, func: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> uuid.UUID:
        """Async twin of ``enqueue``."""
        return (await self.aenqueue_many(func, [Call(args, kwargs)]))[0]

    @overload
    async def aenqueue_many(self, func: Function, /, calls: Iterable[Call[Function]]) -> list[uuid.UUID]: ...
    @overload
    async def aenqueue_many(self, func: str, /, calls: Iterable[Call[Any]]) -> list[uuid.UUID]: ...
    async def aenqueue_many(self, func: Callable[..., Any] | str, /, calls: Iterable[Call[Any]]) -> list[uuid.UUID]:
        """Async twin of ``enqueue_many``."""
        return await sync_to_async(client.enqueue_calls)(self.name, self._options, func, calls)

    async def acancel(self, work_id: object) -> bool:
        """Async twin of ``cancel``."""
        return await sync_to_async(self.cancel)(work_id)

    async def acancel_many(self, work_ids: Iterable[object]) -> int:
        """Async twin of ``cancel_many``."""
        return await sync_to_async(self.cancel_many)(work_ids)

    async def acancel_all(self) -> None:
        """Async twin of ``cancel_all``."""
        await sync_to_async(self.cancel_all)()

    async def astatus(self, work_id: object) -> Status:
        """Async twin of ``status``."""
        return await sync_to_async(self.status)(work_id)

    async def astatus_many(self, work_ids: Iterable[object]) -> dict[uuid.UUID, Status]:
        """Async twin of ``status_many``."""
        return await sync_to_async(self.status_many)(work_ids)

    async def abatch_status(self, batch_id: object) -> BatchStatus | None:
        """Async twin of ``batch_status``."""
        return await sync_to_async(self.batch_status)(batch_id)

    async def acancel_batch(self, batch_id: object) -> int:
        """Async twin of ``cancel_batch``."""
        return await sync_to_async(self.cancel_batch)(batch_id)


@overload
def enqueue(func: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> uuid.UUID: ...
@overload
def enqueue(func: str, /, *args: Argument, **kwargs: Argument) -> uuid.UUID: ...
def enqueue(func: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> uuid.UUID:
    """Insert a call of ``func`` into the default pool: see ``Workpool.enqueue``."""
    return Workpool().enqueue_many(func, [Call(args, kwargs)])[0]


@overload
async def aenqueue(func: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> uuid.UUID: ...
@overload
async def aenqueue(func: str, /, *args: Argument, **kwargs: Argument) -> uuid.UUID: ...
async def aenqueue(func: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> uuid.UUID:
    """Async twin of ``enqueue``."""
    return (await Workpool().aenqueue_many(func, [Call(args, kwargs)]))[0]


def batch(
    *, on_complete: batches.OnBatchComplete | str | None = None, on_complete_context: Any = None, name: str = "", pool: str = DEFAULT_POOL
) -> AbstractContextManager[batches.WorkBatch]:
    """Return a block in which a batch of a pool is filled: see ``Workpool.batch``."""
    return Workpool(pool).batch(on_complete=on_complete, on_complete_context=on_complete_context, name=name)
