"""Statements for a thread that must not wait for them: the main one takes signals and ends the process, whatever the database does."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from django.db import connections

from ..database import database

T = TypeVar("T")

#: Seconds between two looks whether to go on waiting.
LOOK_EVERY = 0.02


class Late(Exception):
    """The database has not answered in time, or nobody waits any more."""


class Clerk:
    """Does one statement after another on a thread and a connection of its own.

    Args:
        using: The database.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self._to_do: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="workpool-clerk", daemon=True)
        self._begun = False
        #: Something is under way whose end was not waited for: what comes after it would wait as well.
        self.silent = False

    def do(self, step: Callable[[], T], seconds: float, unless: Callable[[], bool] = lambda: False) -> T:
        """Do it, and return or raise what it does.

        Args:
            step: Uses the thread's connection.
            seconds: To wait for it at most.
            unless: Whether not to wait any longer.

        Raises:
            Late: it was not done in time, or an earlier one has not been done yet.
        """
        if self.silent:
            raise Late("the database does not answer")
        if not self._begun:
            self._begun = True
            self._thread.start()
        answer: Future[T] = Future()
        self._to_do.put((step, answer))
        until = time.monotonic() + seconds
        while not answer.done():
            if time.monotonic() >= until or unless():
                self.silent = not answer.done()
                break
            with suppress(TimeoutError):
                answer.exception(LOOK_EVERY)
        if not answer.done():
            raise Late("the database does not answer")
        return answer.result()

    def settle(self, seconds: float) -> None:
        """Wait at most so long for the end of what was not waited for."""
        until = time.monotonic() + seconds
        while self.silent and time.monotonic() < until:
            time.sleep(LOOK_EVERY)

    def close(self) -> None:
        """Let the thread end after what it is about."""
        self._to_do.put(None)
        if self._begun and not self.silent:
            self._thread.join(1.0)

    def _run(self) -> None:
        database(self.using).private_connection("clerk")
        while (one := self._to_do.get()) is not None:
            step, answer = one
            result: Any = None
            failure: BaseException | None = None
            try:
                result = step()
            except BaseException as error:
                failure = error
                with suppress(Exception):
                    connections[self.using].close()
            self.silent = False
            with suppress(InvalidStateError):
                answer.set_result(result) if failure is None else answer.set_exception(failure)
        with suppress(Exception):
            connections[self.using].close()
