"""``call(function, ...)``: the arguments of many, held to a function."""

import pytest

from django_workpool import InvalidWork, OnCompleteArgs, UnregisteredFunction, Workpool, call
from django_workpool.models import Work
from django_workpool.types import Call

from .works.tasks import count_up, note

pytestmark = pytest.mark.django_db


def test_a_call_with_its_function_is_that_call() -> None:
    assert call(note, "x", key="y") == Call(("x",), {"key": "y"}, note)
    assert call("x") == Call(("x",), {}, None)
    ids = Workpool().enqueue_many(note, [call(note, "1"), call("2"), call(note, key="3")])
    stored = Work.objects.in_bulk(ids)
    assert [stored[one].arguments.replace(" ", "") for one in ids] == [
        '{"args":["1"],"kwargs":{}}',
        '{"args":["2"],"kwargs":{}}',
        '{"args":[],"kwargs":{"key":"3"}}',
    ]
    assert len(Workpool().enqueue_many("tests.works.tasks.note", [call(note, "4")])) == 1


def test_a_call_of_another_function_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidWork, match="item 1 is a call of count_up, not of tests.works.tasks.note"):
        Workpool().enqueue_many(note, [call(note, "x"), call(count_up, "x")])
    with pytest.raises(UnregisteredFunction):
        Workpool().enqueue_many(print, [call("x")])
    with pytest.raises(InvalidWork):
        # A function can stand in the first place only.
        Workpool().enqueue_many(note, [call("x", note)])
    assert Work.objects.count() == 0


def test_what_an_on_complete_takes_can_be_named_with_its_context() -> None:
    """For type checkers; it is the same class."""
    assert OnCompleteArgs[dict[str, int]].__origin__ is OnCompleteArgs  # type: ignore[attr-defined]
