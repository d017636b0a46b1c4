"""Functions that belong to a framework, whatever framework: called through their guest, who is told of the end of their work."""

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_workpool import NonRetryableError, functions
from django_workpool.complete import Completed
from django_workpool.execution.guests import Guests
from django_workpool.execution.isolation import Isolation
from django_workpool.execution.run import Performer
from django_workpool.settle import Verdict
from django_workpool.types import Attempted, Failure, Follow, Outcome, ResultKind, Run

from .runs import a_run


def guarded(text: str) -> str:
    """Be a function that a framework registers."""
    if text == "fail":
        raise ValueError(text)
    if text == "at once":
        raise NonRetryableError(text)
    return text


class Visitor:
    """A guest that notes what it is told."""

    def __init__(self, run: Run, using: str, worker: str) -> None:
        self.final = False
        self.error: BaseException | None = None
        self.run, self.using, self.worker = run, using, worker
        self.heard: list[tuple[str, str, str, str]] = []
        self.raises: BaseException | None = None

    @property
    def begin(self) -> Callable[[], Any]:
        return lambda: None

    @property
    def call(self) -> Callable[..., Any]:
        return lambda text: f"<{guarded(text)}>"

    def ended(self, outcome: Outcome) -> None:
        raised = sys.exc_info()[1]
        last = traceback.extract_tb(raised.__traceback__)[-1].name if raised is not None else ""
        self.heard.append((outcome.kind, outcome.value, repr(raised), last))
        if self.raises is not None:
            raise self.raises


@pytest.fixture
def visitors(monkeypatch: pytest.MonkeyPatch) -> list[Visitor]:
    """Register the function, and return the guests of its runs."""
    monkeypatch.setattr(functions, "_registry", {})
    made: list[Visitor] = []

    def adapter(run: Run, using: str, worker: str) -> Visitor:
        made.append(Visitor(run, using, worker))
        return made[-1]

    functions.register_adapted(guarded, adapter)
    return made


def run_of(text: str, token: int = 1) -> Run:
    """Return a run of the function."""
    return a_run(token)._replace(func_path=f"{__name__}.guarded", arguments=f'{{"args":["{text}"],"kwargs":{{}}}}')


def completed(run: Run, outcome: Outcome, follow: Follow = Follow.END) -> Completed:
    """Return what has been committed."""
    return Completed(run=run, verdict=Verdict(follow, ResultKind(outcome.kind), 1, 0, outcome.value, outcome.failure))


def attempt(guests: Guests, run: Run) -> Outcome:
    """Run the function as the performer does."""
    try:
        registered, args, kwargs, _ = guests.prepare(run)
        return Outcome("success", f'"{registered.func(*args, **kwargs)}"')
    except BaseException as error:
        return Outcome("failed", failure=guests.describe(run, error))


def test_a_guest_is_called_in_the_place_of_its_function_and_told_of_the_end(visitors: list[Visitor]) -> None:
    guests, run = Guests("default", "me"), run_of("a")
    outcome = attempt(guests, run)
    guests.tell(run, completed(run, outcome), Isolation())
    (visitor,) = visitors
    assert (visitor.run, visitor.using, visitor.worker) == (run, "default", "me")
    assert visitor.heard == [("success", '"<a>"', "None", "")]
    assert guests._present == {}


def test_what_it_has_raised_is_live_at_the_end_and_let_go_then(visitors: list[Visitor]) -> None:
    guests, run = Guests("default", "me"), run_of("fail")
    outcome = attempt(guests, run)
    assert outcome.failure is not None and outcome.failure.traceback.endswith("ValueError: fail\n")
    error = visitors[0].error
    assert error is not None and error.__traceback__ is not None
    guests.tell(run, completed(run, outcome), Isolation())
    assert visitors[0].heard == [("failed", "null", "ValueError('fail')", "guarded")]
    assert (error.__traceback__, sys.exc_info()[1]) == (None, None)


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(1)])
def test_a_guest_that_raises_at_the_end_harms_nobody(
    visitors: list[Visitor], raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    guests, run = Guests("default", "me"), run_of("fail")
    outcome = attempt(guests, run)
    visitors[0].raises = raised
    guests.tell(run, completed(run, outcome), Isolation())
    assert f"who was told of its end raised {type(raised).__name__}" in caplog.text
    assert guests._present == {} and visitors[0].error is not None and visitors[0].error.__traceback__ is None


def test_nobody_is_told_of_an_attempt_that_is_followed_by_another_or_does_not_count(visitors: list[Visitor]) -> None:
    guests = Guests("default", "me")
    for follow in (Follow.RETRY, Follow.RETURN, None):
        run = run_of("fail")
        outcome = attempt(guests, run)
        guests.tell(run, None if follow is None else completed(run, outcome, follow), Isolation())
    assert [visitor.heard for visitor in visitors] == [[], [], []]
    assert guests._present == {}


def test_whether_another_attempt_can_help_is_the_guests_to_say_too(visitors: list[Visitor]) -> None:
    guests = Guests("default", "me")
    assert attempt(guests, run_of("fail")).failure.retryable is True  # type: ignore[union-attr]
    assert attempt(guests, run_of("at once", 2)).failure.retryable is False  # type: ignore[union-attr]
    registered, args, _, _ = guests.prepare(run_of("fail", 3))
    visitors[-1].final = True
    with pytest.raises(ValueError) as caught:
        registered.func(*args)
    assert guests.describe(run_of("fail", 3), caught.value).retryable is False


def test_an_end_that_comes_from_elsewhere_is_told_to_a_new_guest(visitors: list[Visitor]) -> None:
    guests, run = Guests("default", "me"), run_of("a")
    lost = Outcome("failed", failure=Failure(class_path="django_workpool.WorkerLost", text="lost"))
    guests.tell(run, completed(run, lost), Isolation())
    assert [visitor.heard for visitor in visitors] == [[("failed", "null", "None", "")]]


def test_a_performer_that_ends_nothing_writes_all_outcomes(visitors: list[Visitor]) -> None:
    written: list[Attempted] = []
    performer = Performer("default", "me", written.append, lambda runs: None, lambda run: None, lambda: False, ends=False)
    performer.perform(run_of("fail"), Isolation())
    assert [one.outcome.kind for one in written] == ["failed"]
    error = visitors[0].error
    assert error is not None and error.__traceback__ is None
    assert performer.guests._present == {} and visitors[0].heard == []


def test_a_function_keeps_the_first_adapter_and_what_else_was_said_of_it(visitors: list[Visitor]) -> None:
    before = functions.resolve(f"{__name__}.guarded", functions.WORK_KINDS)
    functions._registry[before.path] = replace(before, retry=True)
    after = functions.register_adapted(guarded, lambda run, using, worker: Visitor(run, using, worker))
    assert (after.adapter, after.retry) == (before.adapter, True)
