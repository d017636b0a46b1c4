"""The values that pass between the rooms: retry behaviour, segments."""

import dataclasses
import math
from datetime import timedelta

import pytest

from django_workpool import InvalidWork, RetryBehavior
from django_workpool.segments import SEGMENT_MS, ceil_segment, floor_segment, segment_ms
from django_workpool.types import MAX_ATTEMPTS, MAX_BACKOFF, Call, FnType

pytestmark = pytest.mark.anywhere


def test_default_retry_is_five_attempts_from_a_quarter_of_a_second():
    assert dataclasses.asdict(RetryBehavior()) == {
        "max_attempts": 5,
        "initial_backoff": timedelta(milliseconds=250),
        "base": 2,
        "max_backoff": timedelta(minutes=10),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": True},
        {"max_attempts": 2.0},
        {"max_attempts": "2"},
        {"max_attempts": None},
        {"max_attempts": MAX_ATTEMPTS + 1},
        {"initial_backoff": timedelta(microseconds=-1)},
        {"initial_backoff": 250},
        {"initial_backoff": None},
        {"initial_backoff": MAX_BACKOFF + timedelta(microseconds=1)},
        {"max_backoff": timedelta(-1)},
        {"max_backoff": 1.5},
        {"max_backoff": timedelta.max},
        {"base": 0.99},
        {"base": -2},
        {"base": math.nan},
        {"base": math.inf},
        {"base": 1e11},
        {"base": True},
        {"base": "2"},
    ],
)
def test_wrong_retry_values_are_refused_by_name(wrong):
    with pytest.raises(InvalidWork, match=next(iter(wrong))):
        RetryBehavior(**wrong)


@pytest.mark.parametrize(
    "behavior",
    [
        RetryBehavior(),
        RetryBehavior(max_attempts=1, initial_backoff=timedelta(0), base=1, max_backoff=timedelta(0)),
        RetryBehavior(max_attempts=MAX_ATTEMPTS, initial_backoff=MAX_BACKOFF, base=1e10, max_backoff=MAX_BACKOFF),
        RetryBehavior(initial_backoff=timedelta(microseconds=1), base=1.1),
    ],
)
def test_stored_retry_behaviour_comes_back(behavior):
    assert RetryBehavior.from_json(behavior.to_json()) == behavior


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RetryBehavior().max_attempts = 3


def test_calls_do_not_share_their_arguments():
    first, second = Call(), Call()
    first.kwargs["a"] = 1
    assert second.kwargs == {}


def test_function_types_are_their_stored_text():
    assert [str(kind) for kind in FnType] == ["action", "mutation", "query", "callback"]


@pytest.mark.parametrize(
    ("ms", "floor", "ceil"),
    [(0, 0, 0), (1, 0, 1), (99.999, 0, 1), (100, 1, 1), (100.001, 1, 2), (-1, -1, 0), (1_700_000_000_050, 17_000_000_000, 17_000_000_001)],
)
def test_now_is_rounded_down_and_a_due_time_up(ms, floor, ceil):
    assert floor_segment(ms) == floor
    assert ceil_segment(ms) == ceil
    assert segment_ms(floor) <= ms <= segment_ms(ceil)


def test_a_segment_begins_every_hundred_milliseconds():
    assert SEGMENT_MS == 100
    assert [segment_ms(n) for n in (0, 1, -1)] == [0, 100, -100]
