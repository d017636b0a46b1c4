"""However much a function raises, what is kept of it is bounded, and nothing of it lives on."""

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from django_workpool import failures
from django_workpool.failures import describe
from django_workpool.types import Failure

from .raising import described, raised, recurse, throw


def test_huge_text_is_cut() -> None:
    """The text keeps its beginning; the traceback keeps the calls, whatever the text's length."""
    failure = described(ValueError("x" * 5_000_000))
    assert failures.TEXT_LENGTH - 50 < len(failure.text) <= failures.TEXT_LENGTH
    assert failure.text.startswith("xxx")
    assert len(failure.traceback) <= failures.TRACEBACK_LENGTH
    assert failure.traceback.startswith("Traceback (most recent call last):\n")


def test_text_that_grows_when_it_is_escaped() -> None:
    failure = described(ValueError("\0" * 100_000))
    assert len(failure.text) <= failures.TEXT_LENGTH
    assert len(failure.traceback) <= failures.TRACEBACK_LENGTH


def test_huge_traceback_keeps_its_end() -> None:
    """Many causes with long texts: the exception itself is told."""
    exc: BaseException = ValueError("the first one")
    for number in range(20):
        exc = chained(exc, f"{number} " + "x" * 8_000)
    failure = describe(exc)
    assert len(failure.traceback) == failures.TRACEBACK_LENGTH
    assert failure.traceback.startswith("[the beginning is left out]\n")
    assert "KeyError: '19 xxx" in failure.traceback
    assert "the first one" not in failure.traceback


def chained(cause: BaseException, text: str) -> BaseException:
    def function() -> None:
        raise KeyError(text) from cause

    return raised(function)


def test_causes_and_contexts_are_told_in_order() -> None:
    """The oldest first, as Python does it."""

    def function() -> None:
        try:
            try:
                raise ValueError("one")
            except ValueError:
                raise KeyError("two")  # noqa: B904
        except KeyError as error:
            raise RuntimeError("three") from error

    lines = describe(raised(function)).traceback.splitlines()
    order = ["ValueError: one", failures._DURING.strip(), "KeyError: 'two'", failures._BECAUSE.strip(), "RuntimeError: three"]
    assert [line for line in lines if line in order] == order


def test_suppressed_context_is_not_told() -> None:
    def function() -> None:
        try:
            raise ValueError("one")
        except ValueError:
            raise KeyError("two") from None

    assert "ValueError" not in describe(raised(function)).traceback


def test_chains_without_end() -> None:
    """Rings and very long chains end after a number of exceptions."""
    ring, other = ValueError("a"), ValueError("b")
    ring.__context__, other.__context__ = other, ring
    assert describe(ring).traceback.count("ValueError: a\n") == 1

    exc: BaseException = ValueError("first")
    for _ in range(100_000):
        exc, exc.__cause__ = ValueError("next"), exc
    last = ValueError("last")
    last.__cause__ = exc
    failure = describe(last)
    assert failure.traceback.count("ValueError: next\n") == failures.EXCEPTIONS - 1
    assert failure.traceback.endswith("ValueError: last\n")
    # The test's own: taking such a chain apart at once is deep recursion.
    while exc.__cause__ is not None:
        exc, exc.__cause__ = exc.__cause__, None


def test_groups_are_told_with_their_members() -> None:
    """Members are indented, with their own causes and calls; their number is limited."""
    member = raised(throw(KeyError("inner")))
    group = BaseExceptionGroup("many", [member, BaseExceptionGroup("deep", [SystemExit(3)]), *(ValueError(str(n)) for n in range(1000))])
    failure = described(group)
    assert failure.class_path == "builtins.BaseExceptionGroup"
    assert failure.text == "BaseExceptionGroup: many (1002 sub-exceptions)"
    assert "  | KeyError: 'inner'\n" in failure.traceback
    assert "  |   | SystemExit: 3\n" in failure.traceback
    assert "  | [9" in failure.traceback
    assert failure.traceback.count("ValueError") < failures.EXCEPTIONS


def test_groups_within_groups() -> None:
    """Depth is limited as well."""
    exc: Exception = ValueError("innermost")
    for _ in range(5_000):
        exc = ExceptionGroup("g", [exc])
    failure = describe(exc)
    assert failure.text == "g (1 sub-exception)"
    assert failure.traceback.count("+----") <= failures.EXCEPTIONS
    while isinstance(exc, ExceptionGroup):
        exc = exc.exceptions[0]


def test_endless_recursion() -> None:
    """C026: the innermost calls are told."""
    failure = describe(raised(recurse))
    assert failure.class_path == "builtins.RecursionError"
    assert "outer calls left out]\n" in failure.traceback
    assert "in recurse\n" in failure.traceback
    assert len(failure.traceback) < 5_000


def test_described_near_the_recursion_limit() -> None:
    """With hardly any room left on the stack there is still a failure."""

    def deep(room: int) -> Failure:
        return describe(ValueError("x")) if room == 0 else deep(room - 1)

    depth = 0
    with contextlib.suppress(RecursionError):
        while True:
            assert deep(depth).class_path in ("builtins.ValueError", "builtins.BaseException")
            depth += 1
    assert depth > 100


def test_notes_are_told() -> None:
    exc = ValueError("x")
    for number in range(100):
        exc.add_note(f"note {number}")
    exc.__notes__.insert(0, object())  # type: ignore[arg-type]
    text = described(exc).traceback
    assert "note 0\n" in text
    assert text.count("note ") < 100
    exc.__notes__ = "not a list"  # type: ignore[assignment]
    assert "x" in described(exc).text


def test_source_that_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader of the user's that raises costs the lines of source, not the calls."""

    def no_source(*args: Any) -> None:
        raise SystemExit

    monkeypatch.setattr("linecache.checkcache", no_source)
    failure = described(ValueError("x"))
    assert "in function\n" in failure.traceback
    assert failure.traceback.endswith("ValueError: x\n")


class Big:
    """Stands for the 10 MB of a local variable."""


def keep(exc: BaseException, refs: list[weakref.ref[Any]], wrap: Callable[[BaseException], BaseException]) -> None:
    def innermost() -> None:
        big = Big()
        refs.append(weakref.ref(big))
        # A cycle: the frame keeps the exception, the exception keeps the frame.
        own = exc
        raise own

    def outer() -> None:
        big = Big()
        refs.append(weakref.ref(big))
        try:
            innermost()
        except BaseException as error:
            kept = error
            raise wrap(kept) from kept

    describe(raised(outer))


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: RuntimeError("x"), lambda error: BaseExceptionGroup("g", [error])])
def test_frames_do_not_outlive_the_description(wrap: Callable[[BaseException], BaseException]) -> None:
    """C066: without the garbage collector's help the local variables are gone, even if somebody keeps the exception."""
    gc.collect()
    gc.disable()
    try:
        refs: list[weakref.ref[Any]] = []
        exc = ValueError("kept by somebody")
        keep(exc, refs, wrap)
        assert [ref() for ref in refs] == [None, None]
        assert exc.__traceback__ is None
    finally:
        gc.enable()


def test_suspended_coroutines_are_left_alone() -> None:
    """An exception that went through a coroutine still at work does not end it."""
    steps: list[str] = []

    async def main() -> None:
        shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def at_work() -> None:
            try:
                raise ValueError("shared")
            except ValueError as error:
                shared.set_exception(error)
            await asyncio.sleep(0)
            steps.append("went on")

        task = asyncio.create_task(at_work())
        try:
            await shared
        except ValueError as error:
            assert "in at_work\n" in describe(error).traceback
        await task

    asyncio.run(main())
    assert steps == ["went on"]


def test_description_is_cheap() -> None:
    """A thousand failures take far less than a second."""
    began = time.process_time()
    for _ in range(1000):
        described(ValueError("x"))
    assert time.process_time() - began < 2
