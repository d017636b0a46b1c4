"""Why a work does not run: one line for each."""

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_workpool import InvalidWork, RetryBehavior, Workpool, call, health
from django_workpool.database import database
from django_workpool.health import WhyCode
from django_workpool.models import Archive, InternalState, Lead, PendingStart, RunningWork, Work, Worker

from .states.driver import FAILED, SUCCESS, Loop, complete
from .states.functions import act
from .states.rows import POOL, S5, S7, USING, given
from .test_health import lead_for_a_minute

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def loop() -> Loop:
    loop = Loop(limit=2)
    lead_for_a_minute(loop)
    return loop


@pytest.fixture(autouse=True)
def no_lock_is_left() -> Iterator[None]:
    yield
    database(USING).release_lead_lock()


def why(work_id: uuid.UUID) -> tuple[str, str]:
    """Return the code and the text."""
    told = health.why(USING, [work_id])[work_id]
    assert told.work_id == work_id and "\n" not in told.text
    return told.code, told.text


def test_what_waits_for_its_time_says_until_when(loop: Loop) -> None:
    work_id = Workpool().using(delay=timedelta(hours=1), retry=RetryBehavior(initial_backoff=timedelta(hours=1))).enqueue(act)
    told = health.why(USING, [str(work_id)])[work_id]
    assert (told.code, told.pool) == (WhyCode.LATER, POOL) and told.until
    assert told.until.timestamp() * 10 == PendingStart.objects.get().segment
    assert told.until.isoformat(" ", "seconds")[:10] in told.text
    assert Workpool().run_now(work_id)
    (run,) = loop.settle()
    complete(run, FAILED)
    loop.settle()
    code, text = why(work_id)
    assert code == "backoff" and text.startswith("attempt 1 has failed, and the next one is due at ")


def test_what_runs_has_ended_or_is_unknown_says_so(loop: Loop) -> None:
    work_id, other = Workpool().enqueue(act), uuid.uuid4()
    (run,) = loop.settle()
    told = health.why(USING, [work_id])[work_id]
    assert (told.code, told.since) == ("runs", RunningWork.objects.get().started)
    assert told.text.endswith(f"on {loop.worker.host}:{loop.worker.pid}, attempt 1")
    Workpool().cancel(work_id)
    loop.iterate()
    assert why(work_id)[1].endswith("attempt 1, and was told to stop")
    complete(run, SUCCESS)
    code, text = why(work_id)
    assert code == "ended" and text.startswith("it has ended as success at ")
    assert health.why(USING, [work_id])[work_id].since == Archive.objects.get().finished
    assert why(other) == ("unknown", "it is unknown, or no longer kept")
    assert why(given(S5, worker_id=loop.worker.id))[0] == "ending"
    assert why(given(S7))[0] == "canceled"


def test_a_cancel_all_that_waits_is_a_cancelation(loop: Loop) -> None:
    work_id = Workpool().enqueue(act)
    Workpool().cancel_all()
    assert why(work_id)[0] == "canceled"


def test_what_is_due_says_what_its_pool_lacks(loop: Loop) -> None:
    ids = Workpool().enqueue_many(act, [call()] * 3)
    assert why(ids[2]) == ("soon", "it is due, and starts any moment")
    loop.settle()
    assert why(ids[2]) == ("full", "the pool default is full: 2 of 2 run")
    Workpool().pause()
    assert why(ids[2]) == ("paused", "the pool default is paused")
    Workpool().configure(max_parallelism=9)
    Worker.objects.update(capacity=2, async_capacity=0)
    assert why(ids[2])[0] == "no_room"
    Worker.objects.update(accepting=False)
    assert why(ids[2]) == ("no_worker", "no live worker serves the pool default")


def test_what_nobody_knows_says_until_when_it_is_held(loop: Loop) -> None:
    work_id = Workpool().enqueue(act)
    Work.objects.update(func_path="gone.away")
    assert why(work_id) == ("held", "no live worker knows gone.away as an action")
    loop.iterate()
    told = health.why(USING, [work_id])[work_id]
    assert told.code == "held" and told.since and told.until == told.since + timedelta(minutes=10)
    assert told.text.startswith("no live worker knows gone.away as an action: held since ")
    Work.objects.update(func_path=f"{act.__module__}.act")
    assert why(work_id)[0] == "soon"


def test_a_leader_that_is_gone_or_stuck_is_told(loop: Loop) -> None:
    work_id = Workpool().enqueue(act)
    PendingStart.objects.update(segment=loop.db.segment() - 1000)
    InternalState.objects.update(last_recovery=loop.db.segment() - 500)
    assert why(work_id)[0] == "stalled"
    database(USING).release_lead_lock()
    Lead.objects.update(expires_ms=int(loop.db.clock_ms()) - 60_000)
    code, text = why(work_id)
    assert code == "no_leader" and text.startswith("no process leads since ")


def test_callback_work_is_asked_for_in_its_own_lane(loop: Loop) -> None:
    work_id = Workpool().enqueue(act)
    Work.objects.update(fn_type="callback", func_path=f"{act.__module__}.told", callback_of=uuid.uuid4())
    Workpool().cancel_all()
    Workpool().pause()
    assert why(work_id)[0] == "soon"


def test_the_number_of_statements_does_not_depend_on_the_number_of_works(loop: Loop) -> None:
    def statements(ids: list[uuid.UUID]) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert list(health.why(USING, ids)) == ids
        assert all(one["sql"].lstrip().upper().startswith("SELECT") and "FOR UPDATE" not in one["sql"] for one in captured)
        return len(captured)

    ids = Workpool().enqueue_many(act, [call()] * 50)
    assert statements(ids) == statements(ids[:1]) <= 20


def test_what_is_no_id_is_refused() -> None:
    with pytest.raises(InvalidWork, match="'x' is not the id of a work"):
        health.why(USING, ["x"])
    assert health.why(USING, []) == {}
