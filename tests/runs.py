"""Started works that tests make up, and a record of what executors do with them."""

import contextvars
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from django_workpool.execution.coroutines import CoroutineExecutor
from django_workpool.execution.isolation import Isolation
from django_workpool.execution.threads import ThreadExecutor
from django_workpool.types import FnType, Run

#: Seconds after which a test has failed.
LONG = 20.0

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def a_run(token: int, name: str = "") -> Run:
    return Run(
        token=token,
        work_id=uuid.UUID(int=token),
        pool="default",
        fn_type=FnType.ACTION,
        func_path="tests.none",
        name=name,
        arguments='{"args":[],"kwargs":{}}',
        attempts=0,
        has_callback=False,
        retryable=True,
        started=datetime(2026, 1, 1, tzinfo=UTC),
    )


def some_runs(count: int, first: int = 1) -> list[Run]:
    return [a_run(token) for token in range(first, first + count)]


def tokens(runs: Sequence[Run]) -> list[int]:
    return [run.token for run in runs]


class Record:
    """What ran, on which thread, and what crashed. ``acts`` says by token what a run does."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.threads: set[int] = set()
        self.crashes: list[tuple[int, str]] = []
        self.acts: dict[int, Callable[[], Any]] = {}
        #: Runs without an act wait for it.
        self.gate = threading.Event()
        self.gate.set()

    def run(self, run: Run, isolation: Isolation) -> None:
        self._note(self.begun, run.token)
        self.threads.add(threading.get_ident())
        try:
            assert self.gate.wait(LONG)
            if run.token in self.acts:
                self.acts[run.token]()
        finally:
            self._note(self.ended, run.token)

    async def arun(self, run: Run) -> None:
        self._note(self.begun, run.token)
        self.threads.add(threading.get_ident())
        try:
            if run.token in self.acts:
                await self.acts[run.token]()
        finally:
            self._note(self.ended, run.token)

    def crash(self, run: Run, error: BaseException) -> None:
        with self.changed:
            self.crashes.append((run.token, type(error).__name__))
            self.changed.notify_all()

    def _note(self, where: list[int], token: int) -> None:
        with self.changed:
            where.append(token)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until something that this records is so."""
        with self.changed:
            assert self.changed.wait_for(condition, LONG)


def settled(executor: ThreadExecutor | CoroutineExecutor, wait_until: Callable[..., None]) -> None:
    wait_until(lambda: executor.idle, poll=0.002)


WaitUntil = Callable[..., None]
MakeThreads = Callable[[int], ThreadExecutor]


def raiser(exc: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise exc

    return act


def araiser(exc: BaseException) -> Callable[[], Any]:
    async def act() -> None:
        raise exc

    return act


def recurse() -> None:
    recurse()


async def arecurse() -> None:
    await arecurse()


def exit_in_a_thread() -> None:
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()
