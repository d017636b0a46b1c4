"""Exceptions for tests: how to get one, and some that lie."""

from collections.abc import Callable
from typing import Any

from django_workpool.failures import describe
from django_workpool.types import Failure


def raised(function: Callable[[], Any]) -> BaseException:
    """Return what ``function`` raises."""
    try:
        function()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def throw(exc: BaseException) -> Callable[[], Any]:
    def function() -> None:
        raise exc

    return function


def described(exc: BaseException) -> Failure:
    return describe(raised(throw(exc)))


def recurse() -> None:
    recurse()


class TextRaises(Exception):
    def __init__(self, what: type[BaseException]) -> None:
        self.what = what

    def __str__(self) -> str:
        raise self.what

    __repr__ = __str__


class TextRecurses(Exception):
    def __str__(self) -> str:
        return str(self)


class TextIsNoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Slippery(str):
    def __getitem__(self, key: Any) -> str:
        raise RuntimeError

    def __str__(self) -> str:
        raise RuntimeError

    def __format__(self, spec: str) -> str:
        raise RuntimeError

    __len__ = __iter__ = __contains__ = encode = replace = None  # type: ignore[assignment]


class TextIsSlippery(Exception):
    def __str__(self) -> str:
        return Slippery("slippery")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise SystemExit


class Endless(Exception):
    """Lies about everything that has to do with its chain."""

    @property
    def __cause__(self) -> Any:
        return Endless()

    __context__ = __cause__

    @property
    def __traceback__(self) -> Any:
        raise SystemExit

    @property
    def __notes__(self) -> Any:
        raise SystemExit

    @property
    def __class__(self) -> Any:
        raise SystemExit

    def __getattr__(self, name: str) -> Any:
        raise SystemExit
