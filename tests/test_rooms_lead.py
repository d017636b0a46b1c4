"""The lead: a lease by the database's clock (or a lock), taken over with a new generation, never waited for."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection
from django.db.models import F, Model

from django_workpool.database import Hint, database
from django_workpool.database.parts import one_by_one
from django_workpool.exceptions import StaleGeneration
from django_workpool.loop.fleet import Fleet
from django_workpool.loop.iteration import run_iteration
from django_workpool.loop.memory import PoolMemory
from django_workpool.models import InternalState, Lead
from django_workpool.runner import lead
from django_workpool.runner.lead import LEASE, MARGIN, RENEW_EVERY, STUCK_AFTER, UNCHANGED, Leadership

from .other_session import another_session
from .states.rows import POOL, USING

pytestmark = pytest.mark.django_db(transaction=True)

on_leases = pytest.mark.skipif(connection.vendor == "sqlite", reason="the lead is a lock of the process here, not a lease")


class Clock:
    """This process's monotonic clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lead, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture(autouse=True)
def no_lock_is_left() -> Iterator[None]:
    """Processes that other tests start must be able to lead."""
    yield
    database(USING).release_lead_lock()


@pytest.fixture
def one(clock: Clock) -> Leadership:
    return Leadership(USING, uuid.uuid4())


@pytest.fixture
def other(clock: Clock) -> Leadership:
    return Leadership(USING, uuid.uuid4())


def renew(lead: Leadership, progress: object = None) -> bool:
    """Send what the watch sends; return whether the lead is kept."""
    lead.take_answers(one_by_one(database(USING), lead.ask(progress or object())))
    return not lead.is_lost


def row() -> tuple[object, ...]:
    return Lead.objects.values_list("owner", "term").get()


@contextmanager
def locked(model: type[Model]) -> Iterator[None]:
    """Let another session hold all rows of a table."""
    with another_session(lambda: list(model._default_manager.select_for_update())):
        yield


def generations() -> list[int]:
    return list(InternalState.objects.order_by("pool").values_list("generation", flat=True))


def let_the_lease_end() -> None:
    Lead.objects.update(expires_ms=F("expires_ms") - int(LEASE * 1000))


def test_a_free_lead_is_taken_with_a_new_term_and_a_new_generation_of_every_pool(one: Leadership) -> None:
    assert one.take(set()) is True
    assert one.held
    assert row() == (one.owner, 1)
    assert one.term == 1
    assert generations() == [1, 1]


@on_leases
def test_a_lead_is_not_taken_before_its_lease_has_ended_by_the_databases_clock(one: Leadership, other: Leadership, clock: Clock) -> None:
    one.take(set())
    clock.now += 1000
    assert other.take(set()) is False
    assert (row(), generations()) == ((one.owner, 1), [1, 1])
    let_the_lease_end()
    assert other.take(set()) is True
    assert (row(), generations()) == ((other.owner, 2), [2, 2])


@on_leases
def test_the_lease_is_as_long_as_it_says(one: Leadership) -> None:
    db = database(USING)
    before = db.clock_ms()
    one.take(set())
    expires = Lead.objects.get().expires_ms
    assert expires is not None
    assert before <= expires - LEASE * 1000 + 1 <= db.clock_ms() + 1


@on_leases
def test_the_lead_of_a_holder_that_was_seen_dead_is_taken_once_it_was_unchanged_for_a_while(
    one: Leadership, other: Leadership, clock: Clock
) -> None:
    one.take(set())
    dead = {one.owner}
    assert other.take(dead) is False
    clock.now += UNCHANGED - 0.1
    assert other.take(dead) is False
    clock.now += 0.2
    assert other.take({uuid.uuid4()}) is False
    assert other.take(dead) is True
    assert generations() == [2, 2]


@on_leases
def test_a_renewal_in_between_starts_that_while_again(one: Leadership, other: Leadership, clock: Clock) -> None:
    one.take(set())
    assert other.take({one.owner}) is False
    clock.now += RENEW_EVERY
    assert renew(one)
    clock.now += UNCHANGED - 0.1
    assert other.take({one.owner}) is False
    clock.now += 0.2
    assert other.take({one.owner}) is False
    clock.now += UNCHANGED
    assert other.take({one.owner}) is True


@on_leases
def test_a_renewal_is_written_now_and_then(one: Leadership, clock: Clock) -> None:
    one.take(set())
    first = Lead.objects.get().expires_ms
    clock.now += RENEW_EVERY - 0.1
    assert renew(one) is True
    assert Lead.objects.get().expires_ms == first
    clock.now += 0.2
    assert renew(one) is True
    second = Lead.objects.get().expires_ms
    assert first is not None and second is not None and second > first
    clock.now += RENEW_EVERY - 0.1
    assert renew(one) is True
    assert Lead.objects.get().expires_ms == second


@on_leases
def test_a_leader_that_could_not_renew_is_over_by_its_own_clock_before_the_lease_ends(one: Leadership, clock: Clock) -> None:
    one.take(set())
    clock.now += LEASE - MARGIN - 0.1
    assert not one.is_over
    clock.now += 0.2
    assert one.is_over
    assert renew(one) is False


@on_leases
def test_a_renewal_moves_the_deadline_from_the_time_before_it_was_sent(one: Leadership, clock: Clock) -> None:
    one.take(set())
    clock.now += RENEW_EVERY + 1
    sent = clock.now

    def slow(execute: object, sql: str, *args: object) -> object:
        clock.now += 2
        return execute(sql, *args)  # type: ignore[operator]

    with connection.execute_wrapper(slow):
        assert renew(one) is True
    assert clock.now > sent
    clock.now = sent + LEASE - MARGIN - 0.1
    assert not one.is_over
    clock.now += 0.2
    assert one.is_over


@on_leases
def test_a_renewal_of_a_lead_that_was_taken_is_refused_and_changes_nothing(one: Leadership, other: Leadership, clock: Clock) -> None:
    one.take(set())
    let_the_lease_end()
    other.take(set())
    before = Lead.objects.values().get()
    clock.now += RENEW_EVERY
    assert renew(one) is False
    assert Lead.objects.values().get() == before


@on_leases
def test_the_lease_of_a_loop_that_is_stuck_is_not_renewed(one: Leadership, clock: Clock) -> None:
    one.take(set())
    first = Lead.objects.get().expires_ms
    for _ in range(STUCK_AFTER + 1):
        assert renew(one, "where it was") is True
    clock.now += RENEW_EVERY
    assert renew(one, "where it was") is True
    assert Lead.objects.get().expires_ms == first
    assert renew(one, "elsewhere") is True
    assert Lead.objects.get().expires_ms != first
    # A process that stood still as a whole goes on where it was, and renews at once.
    clock.now += LEASE - MARGIN - 0.1
    assert renew(one, "elsewhere") is True
    clock.now += 1
    assert not one.is_over


@on_leases
def test_an_answer_about_an_earlier_term_says_nothing(one: Leadership, other: Leadership, clock: Clock) -> None:
    """The watch has asked before the loop has lost the lead, and hears the answer when it leads again."""
    one.take(set())
    clock.now += RENEW_EVERY
    answers = one_by_one(database(USING), one.ask(object()))
    assert answers["lease"] == [(1,)]
    one.step_down()
    clock.now += 1
    one.take(set())
    taken = clock.now
    one.take_answers(answers)
    assert not one.is_lost
    clock.now = taken + LEASE - MARGIN - 0.1
    assert not one.is_over
    # Nor does one that was asked for while nobody of this process led.
    let_the_lease_end()
    other.take(set())
    asked = one_by_one(database(USING), other.ask(object()))
    one.step_down()
    one.take_answers(asked)
    assert not one._lost


@on_leases
def test_a_row_that_somebody_holds_is_not_waited_for_by_its_renewal(one: Leadership, clock: Clock) -> None:
    one.take(set())
    first = Lead.objects.get().expires_ms
    clock.now += RENEW_EVERY
    with locked(Lead):
        assert renew(one) is True
    assert Lead.objects.get().expires_ms == first
    assert renew(one) is True
    assert Lead.objects.get().expires_ms != first


def test_a_lead_that_is_handed_over_is_free_at_once_and_standbys_are_told(
    one: Leadership, other: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints: list[Hint] = []
    monkeypatch.setattr(database(USING), "notify", hints.extend)
    one.take(set())
    one.hand_over()
    assert not one.held
    assert row() == (None, 1)
    assert hints == [Hint("lead")]
    assert other.take(set()) is True
    assert row() == (other.owner, 2)
    one.hand_over()
    assert row() == (other.owner, 2)


def test_a_leader_that_steps_down_writes_nothing(one: Leadership) -> None:
    one.take(set())
    before = Lead.objects.values().get()
    one.step_down()
    assert not one.held
    assert Lead.objects.values().get() == before


def test_its_own_lead_can_be_taken_again_at_once(one: Leadership) -> None:
    one.take(set())
    one.step_down()
    assert one.take(set()) is True
    assert (row(), generations()) == ((one.owner, 2), [2, 2])


def test_from_the_take_over_on_the_fence_refuses_the_old_leader(one: Leadership, other: Leadership) -> None:
    one.take(set())
    memory = PoolMemory(pool=POOL, generation=generations()[0])
    run_iteration(USING, memory, Fleet(), one.owner)
    if database(USING).leases:
        let_the_lease_end()
    other.take(set())
    with pytest.raises(StaleGeneration):
        run_iteration(USING, memory, Fleet(), one.owner)
    with pytest.raises(StaleGeneration):
        run_iteration(USING, PoolMemory(pool=POOL, generation=generations()[0]), Fleet(), one.owner)
    run_iteration(USING, PoolMemory(pool=POOL, generation=generations()[0]), Fleet(), other.owner)


def test_a_candidate_that_was_overtaken_takes_nothing(one: Leadership, other: Leadership, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its look and its lock somebody else has taken the lead."""
    real = database(USING).take_lead_lock

    def overtaken() -> bool:
        monkeypatch.undo()
        other.take(set())
        return real()

    monkeypatch.setattr(database(USING), "take_lead_lock", overtaken)
    assert one.take(set()) is False
    assert not one.held
    assert (row(), generations()) == ((other.owner, 1), [1, 1])


@on_leases
@pytest.mark.parametrize("model", [Lead, InternalState], ids=lambda model: model.__name__)
def test_a_row_that_an_old_leader_holds_is_not_waited_for(one: Leadership, model: type[Lead] | type[InternalState]) -> None:
    with locked(model):
        with pytest.raises(OperationalError):
            one.take(set())
        assert not one.held
        assert (row(), generations()) == ((None, 0), [0, 0])
        if model is InternalState:
            with pytest.raises(OperationalError):
                run_iteration(USING, PoolMemory(pool=POOL, generation=0), Fleet(), one.owner)
    assert one.take(set()) is True
