"""The kick: who wakes the loop, when, and how often; what the loop's status says; and the status that it writes."""

from typing import Any

import pytest
from django.db import transaction

from django_workpool import Workpool, call, kick
from django_workpool.database import Hint, database
from django_workpool.kick import Source, pointless
from django_workpool.loop import status
from django_workpool.loop.context import Iteration
from django_workpool.models import RunStatus
from django_workpool.segments import YEAR

from .states import functions
from .states.driver import FAILED, SUCCESS, Loop, complete
from .states.functions import RETRY
from .states.rows import POOL, S2, USING, given, run_of

pytestmark = pytest.mark.django_db(transaction=True)

NOW = 1000
ENQUEUE, COMPLETE, RETRY_SOURCE, CANCEL, CONFIGURE = Source.ENQUEUE, Source.COMPLETE, Source.RETRY, Source.CANCEL, Source.CONFIGURE

NEEDED = [
    # status, its segment, saturated, source, due, needed
    ("running", 0, False, ENQUEUE, NOW, False),
    ("running", 0, False, CANCEL, NOW, False),
    ("running", 0, False, CONFIGURE, NOW, False),
    ("idle", 0, False, ENQUEUE, NOW, True),
    ("idle", 0, False, ENQUEUE, NOW + 500, True),
    ("idle", 0, False, COMPLETE, NOW, True),
    ("scheduled", NOW + 50, False, ENQUEUE, NOW, True),
    ("scheduled", NOW + 50, False, ENQUEUE, NOW + 49, True),
    ("scheduled", NOW + 50, False, ENQUEUE, NOW + 50, False),
    ("scheduled", NOW + 50, False, ENQUEUE, NOW + 51, False),
    ("scheduled", NOW + 1, False, ENQUEUE, NOW, False),
    ("scheduled", NOW - 5, False, ENQUEUE, NOW, False),
    ("scheduled", NOW + 2, False, ENQUEUE, NOW, True),
    ("scheduled", NOW + YEAR, True, ENQUEUE, NOW, False),
    ("scheduled", NOW + YEAR, True, COMPLETE, NOW, True),
    ("scheduled", NOW + YEAR, True, RETRY_SOURCE, NOW, True),
    ("scheduled", NOW + YEAR, True, CANCEL, NOW, True),
    ("scheduled", NOW + YEAR, True, CONFIGURE, NOW, True),
    ("scheduled", NOW + 1, False, RETRY_SOURCE, NOW, True),
    ("scheduled", NOW + 1, False, CANCEL, NOW, True),
]


@pytest.mark.parametrize(("state", "segment", "saturated", "source", "due", "needed"), NEEDED)
@pytest.mark.parametrize("now", [str(NOW), f"{NOW}.75", f"floor({NOW}.75)"])
def test_a_kick_is_needed(state: str, segment: int, saturated: bool, source: Source, due: int, needed: bool, now: str) -> None:
    idle(state, segment, saturated)
    condition, params = pointless(source, due, now)
    assert (not database(USING).fetch(f"SELECT 1 FROM {{RunStatus}} WHERE pool = %s AND {condition}", [POOL, *params])) is needed


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Hint]:
    """Return the hints that would be sent to other processes, on any database."""
    hints: list[Hint] = []
    db = database(USING)
    monkeypatch.setattr(db, "kicks", True, raising=False)
    monkeypatch.setattr(db, "notify", lambda new, unless=None: None if unless and db.fetch(*unless) else hints.extend(new))
    return hints


def idle(state: str = "idle", segment: int = 0, saturated: bool = False) -> None:
    RunStatus.objects.filter(pool=POOL).update(state=state, segment=segment, saturated=saturated)


def test_enqueue_kicks_an_idle_loop_after_its_commit(sent: list[Hint]) -> None:
    idle()
    with transaction.atomic():
        Workpool().enqueue(functions.act)
        assert sent == []
    assert sent == [Hint("pool", POOL)]


def test_a_rollback_kicks_nobody(sent: list[Hint]) -> None:
    idle()
    with transaction.atomic():
        Workpool().enqueue(functions.act)
        transaction.set_rollback(True)
    assert sent == []


def test_many_inserts_of_a_transaction_kick_once_and_those_of_a_lost_savepoint_count_for_nothing(sent: list[Hint]) -> None:
    idle()
    with transaction.atomic():
        for _ in range(3):
            Workpool().enqueue(functions.act)
        Workpool("imports").enqueue(functions.act)
        try:
            with transaction.atomic():
                Workpool().cancel_all()
                raise KeyError
        except KeyError:
            pass
    assert sent == [Hint("pool", POOL), Hint("pool", "imports")]


def test_an_insert_after_one_in_a_lost_savepoint_still_kicks(sent: list[Hint]) -> None:
    idle()
    with transaction.atomic():
        try:
            with transaction.atomic():
                Workpool().enqueue(functions.act)
                raise KeyError
        except KeyError:
            pass
        Workpool().enqueue(functions.act)
    assert sent == [Hint("pool", POOL)]


def test_enqueue_spares_the_kick_of_a_loop_that_runs_or_is_saturated(sent: list[Hint]) -> None:
    idle("running")
    Workpool().enqueue(functions.act)
    idle("scheduled", database(USING).segment() + YEAR, True)
    Workpool().enqueue_many(functions.act, [call()])
    assert sent == []
    Workpool().cancel_all()
    Workpool().configure(max_parallelism=3)
    assert sent == [Hint("pool", POOL)] * 2


def test_a_completion_kicks_and_one_that_goes_back_kicks_a_loop_that_comes_soon_anyway(sent: list[Hint]) -> None:
    loop = Loop()
    ended, again = (given(S2, worker_id=loop.worker.id, func="act_retried", retry=RETRY) for _ in range(2))
    idle("scheduled", database(USING).segment())
    complete(run_of(ended), SUCCESS)
    assert sent == []
    complete(run_of(again), FAILED)
    assert sent == [Hint("pool", POOL)]


def test_a_late_commit_kicks_whatever_the_status_and_says_that_it_is_late(sent: list[Hint], monkeypatch: pytest.MonkeyPatch) -> None:
    idle("running")
    with transaction.atomic():
        Workpool().enqueue(functions.act)
        monkeypatch.setattr(kick, "LATE_AFTER", -1.0)
    assert sent == [Hint("late", POOL)]


def test_a_loop_of_the_same_process_is_told_directly(sent: list[Hint]) -> None:
    heard: list[Hint] = []

    def hear(hint: Hint) -> bool:
        heard.append(hint)
        return True

    idle()
    remove = kick.listen(USING, hear)
    Workpool().enqueue(functions.act)
    remove()
    assert (heard, sent) == ([Hint("pool", POOL)], [])
    Workpool().enqueue(functions.act)
    assert (heard, sent) == ([Hint("pool", POOL)], [Hint("pool", POOL)])


# The status that the loop writes ----------------------------------------------------------------------------------------


def after(loop: Loop, **changes: Any) -> status.Status:
    """Return the status that an iteration with such an end wants."""
    it = Iteration(db=loop.db, memory=loop.memory, fleet=loop.fleet, depth=loop.memory.depth(), now_ms=NOW * 100.0)
    for name, value in changes.items():
        setattr(it, name, value)
    return status.wanted(it)


def test_an_iteration_with_nothing_left_is_idle_and_one_with_something_due_later_is_scheduled() -> None:
    loop = Loop()
    assert after(loop) == ("idle", 0, False)
    assert after(loop, next_segment=NOW + 7) == ("scheduled", NOW + 7, False)


def test_running_is_told_only_when_a_backlog_lasts() -> None:
    """Each change of the status costs a write, and a kick that is not spared costs little."""
    loop = Loop()
    assert status.settle(loop.db, loop.memory, after(loop)) is True
    told = [after(loop, again=True)[0] for _ in range(status.LASTING)]
    assert told == ["idle"] * (status.LASTING - 1) + ["running"]
    after(loop)
    assert after(loop, again=True)[0] == "idle"


def test_saturated_is_told_when_it_lasts_and_keeps_its_segment() -> None:
    loop = Loop()
    for _ in range(status.LASTING - 1):
        assert after(loop, saturated=True) == ("idle", 0, False)
    told = after(loop, saturated=True)
    assert told == ("scheduled", NOW + YEAR, True)
    status.settle(loop.db, loop.memory, told)
    assert after(loop, saturated=True, now_ms=(NOW + 9) * 100.0) == told
    assert after(loop) == ("idle", 0, False)


def test_the_status_is_written_when_it_changes_and_then_asks_for_one_more_look() -> None:
    loop = Loop()
    assert status.settle(loop.db, loop.memory, ("scheduled", 5, False)) is True
    row = RunStatus.objects.get(pool=POOL)
    assert (row.state, row.segment, row.saturated, row.generation) == ("scheduled", 5, False, loop.memory.generation)
    assert status.settle(loop.db, loop.memory, ("scheduled", 5, False)) is False
    assert status.settle(loop.db, loop.memory, ("running", 0, False)) is False
    assert RunStatus.objects.get(pool=POOL).state == "running"


def test_a_deposed_leader_does_not_change_the_status_of_the_new_one() -> None:
    loop = Loop()
    old = loop.memory
    loop.take_over()
    status.settle(loop.db, loop.memory, ("running", 0, False))
    status.settle(loop.db, old, ("idle", 0, False))
    assert RunStatus.objects.get(pool=POOL).state == "running"
