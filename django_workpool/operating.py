"""What operators do with a pool: let works run again, or now; pause it, wake it, change its limit."""

import uuid
from collections.abc import Iterable

from asgiref.sync import sync_to_async

from . import configuration, requeue


class OperatedPool:
    """The part of ``Workpool`` that operators, the admin and the commands use."""

    __slots__ = ()
    name: str

    def retry(self, work_id: object) -> bool:
        """Let a finished work that has failed or was canceled run again, under its id, as often as its retry behaviour allowed at first.

        Its failed attempts are kept, and those that come go on counting. Its ``on_complete`` is called again at its new end; it belongs
        to no batch any more. Outside of a transaction the call waits up to a second for what is not yet over of the last run.

        Args:
            work_id: The id of a finished work, or of callback work that is exhausted.

        Returns:
            False if there is nothing to retry: the work has succeeded or not ended, is unknown, of another pool, or no longer kept; or
            its slot is not yet free, its ``on_complete`` has yet to be called for that end, or a cancelation that covers it waits.

        Raises:
            WorkExists: another work has taken its unique key.
        """
        return requeue.retry(self.name, work_id)

    def retry_many(self, work_ids: Iterable[object]) -> list[uuid.UUID]:
        """Let finished works run again as ``retry`` does, in a transaction for each 500; return the ids of those that will.

        Raises:
            InvalidWork: something is not the id of a work. Nothing has been written.
        """
        return requeue.requeue(self.name, work_ids).taken

    def retry_callback(self, work_id: object) -> bool:
        """Let the ``on_complete`` of a finished work, or of a batch, that has failed for good be called again, with its attempts anew.

        Args:
            work_id: The id of the finished work, or of the batch.

        Returns:
            False if there is no such call that has failed.
        """
        return requeue.retry_callback(self.name, work_id)

    def run_now(self, work_id: object) -> bool:
        """Let a work that waits for its time (a delay, a backoff) be due now. It starts when its turn comes.

        Inside of a transaction it takes effect after the commit.

        Returns:
            False if it does not wait: it runs, has ended, is unknown, of another pool, or being canceled. True if it is due already.
        """
        return requeue.run_now(self.name, work_id)

    def configure(self, *, max_parallelism: int | None = None, log_level: str | None = None) -> None:
        """Change the pool's live configuration, for all processes.

        Args:
            max_parallelism: Works that may run at once; 0 pauses the pool as ``pause`` does, another limit lets it go on. Running work
                is not stopped.
            log_level: DEBUG, INFO, REPORT, WARN or ERROR.

        Raises:
            InvalidWork: a value is of the wrong type or out of range, or none is given.
        """
        configuration.configure(self.name, max_parallelism, log_level)

    def pause(self) -> bool:
        """Let nothing more of the pool start, in all processes, until ``resume``. What runs goes on, and callbacks are called.

        A ``workpool_main`` that starts does not end a pause; a limit that the settings name is what the pool then goes on with.

        Returns:
            False if it was paused already.
        """
        return configuration.pause(self.name)

    def resume(self) -> bool:
        """Give a paused pool the limit back that it had (if it had none: that of the settings, else 10).

        Returns:
            False if it is not paused.
        """
        return configuration.resume(self.name)

    def wake(self) -> None:
        """Let the main loop look at the pool's queues at once, whatever it waits for. It does so by itself: this is for doubts."""
        configuration.wake(self.name)

    # The same for coroutines.

    async def aretry(self, work_id: object) -> bool:
        """Async twin of ``retry``."""
        return await sync_to_async(self.retry)(work_id)

    async def aretry_many(self, work_ids: Iterable[object]) -> list[uuid.UUID]:
        """Async twin of ``retry_many``."""
        return await sync_to_async(self.retry_many)(work_ids)

    async def aretry_callback(self, work_id: object) -> bool:
        """Async twin of ``retry_callback``."""
        return await sync_to_async(self.retry_callback)(work_id)

    async def arun_now(self, work_id: object) -> bool:
        """Async twin of ``run_now``."""
        return await sync_to_async(self.run_now)(work_id)

    async def aconfigure(self, *, max_parallelism: int | None = None, log_level: str | None = None) -> None:
        """Async twin of ``configure``."""
        await sync_to_async(self.configure)(max_parallelism=max_parallelism, log_level=log_level)

    async def apause(self) -> bool:
        """Async twin of ``pause``."""
        return await sync_to_async(self.pause)()

    async def aresume(self) -> bool:
        """Async twin of ``resume``."""
        return await sync_to_async(self.resume)()

    async def awake(self) -> None:
        """Async twin of ``wake``."""
        await sync_to_async(self.wake)()
