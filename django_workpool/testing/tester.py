"""The helpers in one object, for a test: what they change ends with it."""

from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from typing import Any, Self

from .clock import travel
from .eager import eager
from .looking import assert_enqueued, assert_not_enqueued, capture_work, enqueued
from .running import arun_work, run_work


class _Helpers:
    """The functions of ``django_workpool.testing`` that need nothing of the test, as methods."""

    run_work = staticmethod(run_work)
    arun_work = staticmethod(arun_work)
    capture_work = staticmethod(capture_work)
    enqueued = staticmethod(enqueued)
    assert_enqueued = staticmethod(assert_enqueued)
    assert_not_enqueued = staticmethod(assert_not_enqueued)


class WorkpoolTester(_Helpers):
    """What the fixture ``workpool`` is: the functions of ``django_workpool.testing``, where ``travel`` and ``eager`` end with the test."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def travel(self, to: timedelta | datetime | float) -> None:
        """Move the pools' time on, up to the end of the test, without ``with``. Args and Raises: see ``travel``."""
        self._stack.enter_context(travel(to))

    def eager(self, *, retries: bool = False, raises: bool = False) -> None:
        """Let ``enqueue`` run what it enqueues, up to the end of the test, without ``with``. Args: see ``eager``."""
        self._stack.enter_context(eager(retries=retries, raises=raises))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class WorkpoolTestMixin(_Helpers):
    """For test cases of Django's: ``class EmailTest(WorkpoolTestMixin, TestCase)``. The same names as those of ``WorkpoolTester``.

    ``workpool_eager``: whether each test runs in eager mode.
    """

    workpool_eager = False

    def setUp(self) -> None:
        """Enter eager mode, if the class wants it."""
        super().setUp()  # type: ignore[misc]
        if self.workpool_eager:
            self._enter(eager())

    def travel(self, to: timedelta | datetime | float) -> None:
        """Move the pools' time on, up to the end of the test, without ``with``. Args and Raises: see ``travel``."""
        self._enter(travel(to))

    def eager(self, *, retries: bool = False, raises: bool = False) -> None:
        """Let ``enqueue`` run what it enqueues, up to the end of the test, without ``with``. Args: see ``eager``."""
        self._enter(eager(retries=retries, raises=raises))

    def _enter(self, change: AbstractContextManager[Any]) -> None:
        self.enterContext(change)  # type: ignore[attr-defined]
