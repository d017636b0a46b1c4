"""Whatever a function raises becomes text that can be stored."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from django_workpool import failures
from django_workpool.exceptions import NonRetryableError
from django_workpool.failures import describe
from django_workpool.models import Attempt
from django_workpool.types import Failure

from .raising import Endless, Meta, TextIsNoText, TextIsSlippery, TextRaises, TextRecurses, described, raised, recurse

pytestmark = pytest.mark.anywhere


def test_ordinary_exception() -> None:
    """Class path, text and traceback are those that Python shows."""
    failure = described(ValueError("no such file"))
    assert (failure.class_path, failure.text, failure.retryable) == ("builtins.ValueError", "no such file", True)
    assert failure.traceback.startswith("Traceback (most recent call last):\n")
    assert 'tests/raising.py"' in failure.traceback
    assert "in function\n    raise exc\n" in failure.traceback
    assert failure.traceback.endswith("\nValueError: no such file\n")


class Outer:
    class Inner(Exception):
        pass


def test_class_path_is_module_and_qualified_name() -> None:
    assert described(Outer.Inner("x")).class_path == "tests.test_failures.Outer.Inner"
    assert described(Outer.Inner("x")).traceback.endswith("\ntests.test_failures.Outer.Inner: x\n")


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "CancelledError"),
        (MemoryError(), "MemoryError"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "'k'"),
    ],
)
def test_text_names_the_class_where_it_would_say_nothing(exc: BaseException, text: str) -> None:
    """C026: what ends a thread elsewhere is a failure like any other, and says what it was."""
    failure = described(exc)
    assert failure.text == text
    assert failure.class_path.endswith(f".{type(exc).__name__}")
    assert failure.retryable


def test_only_the_exception_itself_makes_a_failure_final() -> None:
    """NonRetryableError as a cause, in a group or as a pretended class changes nothing."""

    class Final(NonRetryableError):
        pass

    class Pretender(Exception):
        @property
        def __class__(self) -> Any:
            return NonRetryableError

    behind = ValueError("x")
    behind.__cause__ = NonRetryableError("y")
    assert not described(NonRetryableError("x")).retryable
    assert not described(Final("x")).retryable
    assert described(behind).retryable
    assert described(ExceptionGroup("g", [NonRetryableError("x")])).retryable
    assert described(Pretender("x")).retryable


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (TextRaises(ValueError), "<no text: str() raised ValueError>"),
        (TextRaises(SystemExit), "<no text: str() raised SystemExit>"),
        (TextRaises(KeyboardInterrupt), "<no text: str() raised KeyboardInterrupt>"),
        (TextRaises(asyncio.CancelledError), "<no text: str() raised CancelledError>"),
        (TextRaises(GeneratorExit), "<no text: str() raised GeneratorExit>"),
        (TextRecurses(), "<no text: str() raised RecursionError>"),
        (TextIsNoText(), "<no text: str() raised TypeError>"),
        (TextIsSlippery(), "slippery"),
    ],
)
def test_text_that_cannot_be_made(exc: BaseException, text: str) -> None:
    """Whatever str() does, the class and the calls are told."""
    failure = described(exc)
    assert failure.text == text
    assert failure.class_path == f"tests.raising.{type(exc).__name__}"
    assert "in function\n" in failure.traceback


def odd_classes() -> Iterator[type[BaseException]]:
    yield type("NoModule", (Exception,), {"__module__": None})
    yield type("OddModule", (Exception,), {"__module__": 7})
    yield type("Nul", (Exception,), {"__qualname__": "Nul\0Name"})
    yield type("Lone", (Exception,), {"__module__": "m\udc80", "__qualname__": "Lone\ud800Name"})
    yield type("Long" * 1000, (Exception,), {})
    yield Meta("Tricky", (Exception,), {})
    yield Endless


def test_odd_classes() -> None:
    """Names that are missing, odd or cannot be stored become names that can."""
    paths = []
    for kind in odd_classes():
        failure = described(kind())
        paths.append(failure.class_path)
        assert len(failure.class_path) <= failures.CLASS_PATH_LENGTH
        storable(failure)
        assert "in function\n" in failure.traceback
    own = "tests.test_failures"
    assert paths[:4] == ["NoModule", "OddModule", rf"{own}.Nul\x00Name", r"m\udc80.Lone\ud800Name"]
    assert paths[4].startswith(f"{own}.LongLong")
    assert paths[5:] == [f"{own}.Tricky", "tests.raising.Endless"]


def storable(failure: Failure) -> None:
    for text in (failure.class_path, failure.text, failure.traceback):
        assert type(text) is str
        assert "\0" not in text
        text.encode()


def test_class_path_fits_its_column() -> None:
    assert Attempt._meta.get_field("class_path").max_length == failures.CLASS_PATH_LENGTH


def test_text_that_databases_refuse_is_escaped() -> None:
    """NUL and lone surrogates, in the text, in notes and in names of files and functions."""
    exc = ValueError("a\0b\ud800c")
    exc.add_note("note\0\udfff")
    code = compile("def bad(exc):\n    raise exc", "file", "exec")
    inner = next(const for const in code.co_consts if hasattr(const, "co_code"))
    bad = type(recurse)(inner.replace(co_filename="fi\0le\udc80.py", co_name="ba\0d"), {})
    failure = describe(raised(lambda: bad(exc)))
    assert failure.text == r"a\x00b\ud800c"
    storable(failure)
    assert r"fi\x00le\udc80.py" in failure.traceback
    assert r"note\x00\udfff" in failure.traceback
