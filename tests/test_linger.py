"""When the loop iterates for what has ended in its own process."""

import time
from typing import Any

import pytest

from django_workpool.database import Hint
from django_workpool.runner.linger import LINGER, LINGER_WRITTEN, MOMENT, Linger


class Executors:
    """Stands for the executors of a process."""

    has_enough = is_busy = False


@pytest.fixture
def linger() -> Linger:
    executors: Any = Executors()
    return Linger(executors)


def plan(linger: Linger, unwritten: tuple[str, ...] = ("p",), *, short: bool = False) -> float:
    """Return when the pool is iterated, measured from now."""
    times = {"p": float("inf"), "other": float("inf")}
    linger.plan(times, unwritten, lambda pool: short)
    assert times["other"] == float("inf"), "nothing has ended there"
    return times["p"] and times["p"] - time.monotonic()


def test_what_has_ended_is_looked_at_at_once(linger: Linger) -> None:
    assert plan(linger, ()) == float("inf")
    assert plan(linger) == 0


def test_while_enough_waits_it_comes_a_moment_after_the_last_iteration(linger: Linger) -> None:
    linger.executors.has_enough = True  # type: ignore[misc]
    linger.end("p")
    assert LINGER / 2 < plan(linger) <= LINGER
    assert linger.covers(Hint("ended", "p")) and not linger.covers(Hint("ended", "other")) and not linger.covers(Hint("pool", "p"))
    assert LINGER < plan(linger, ()) <= LINGER_WRITTEN, "what is written only keeps its slots"
    linger.begin("p")
    assert not linger.covers(Hint("ended", "p")), "what ends from here on asks again"
    assert plan(linger, ()) == float("inf")


def test_short_works_that_were_started_together_are_waited_for_a_moment(linger: Linger) -> None:
    linger.executors.is_busy = True  # type: ignore[misc]
    assert plan(linger) == 0, "long ones are not"
    first = plan(linger, short=True)
    assert 0 < first <= MOMENT
    assert plan(linger, short=True) < first, "the moment is that of the first one"
    linger.executors.is_busy = False  # type: ignore[misc]
    assert plan(linger, short=True) == 0
