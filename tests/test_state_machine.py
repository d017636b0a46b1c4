"""Every transition of the composite state of one work, by the names of the contract's table. No-ops: test_state_noops."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection

from django_workpool import RetryBehavior, Workpool
from django_workpool.types import Attempted, Outcome

from .states import functions
from .states.driver import FAILED, FINAL, RETURNED, STOPPED, SUCCESS, Loop, complete, complete_alone
from .states.functions import RETRY
from .states.rows import (
    FINISHED,
    S1,
    S2,
    S3,
    S4,
    S5,
    S6,
    S7,
    S8,
    S9,
    S10,
    S11,
    S12,
    CompositeState,
    finished,
    given,
    left_over,
    name_of,
    numbers,
    observe,
    pass_time,
    run_of,
)

pytestmark = pytest.mark.django_db

#: Where nothing may be started, so that an iteration's other phases are seen alone.
PAUSED = 0

S5_RETURNED = replace(S5, attempts=0, follow="return")
S6_RETURNED = replace(S6, attempts=0, follow="return")
S9_RETURNED = replace(S9, attempts=0, follow="return")
S3_FAILED = replace(S3, archived="failed")
S3_CANCELED = replace(S3, archived="canceled")
S4_FAILED = replace(S4, archived="failed")


@pytest.fixture
def loop() -> Loop:
    return Loop()


def ending(outcome: Outcome) -> Callable[[Loop, uuid.UUID], Any]:
    return lambda loop, work_id: complete(run_of(work_id), outcome)


def ending_alone(outcome: Outcome) -> Callable[[Loop, uuid.UUID], Any]:
    return lambda loop, work_id: complete_alone(run_of(work_id), outcome)


def iterate(loop: Loop, work_id: uuid.UUID) -> None:
    loop.iterate()


def iterate_paused(loop: Loop, work_id: uuid.UUID) -> None:
    loop.iterate(limit=PAUSED)


def cancel(loop: Loop, work_id: uuid.UUID) -> None:
    assert Workpool().cancel(work_id) is True


def lose_worker(loop: Loop, work_id: uuid.UUID) -> None:
    loop.kill()
    loop.iterate(limit=PAUSED)


@dataclass(frozen=True)
class Step:
    """From one state to another."""

    before: CompositeState
    act: str
    do: Callable[[Loop, uuid.UUID], Any]
    after: CompositeState
    func: str = "act"
    retry: RetryBehavior | None = None
    #: The numbers of the failed attempts that are kept afterwards.
    attempts: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{name_of(self.before)} {self.func} + {self.act} -> {name_of(self.after)} {self.after.archived}".strip()


STEPS = [
    # A start.
    Step(S1, "start", iterate, S2),
    Step(S10, "start", iterate, replace(S2, attempts=1), attempts=(1,)),
    # The end of an attempt.
    Step(S2, "complete(success)", ending(SUCCESS), S3),
    Step(S2, "complete(success) alone", ending_alone(SUCCESS), S3),
    Step(S2, "complete(failed)", ending(FAILED), S3_FAILED, attempts=(1,)),
    Step(S2, "complete(failed) alone", ending_alone(FAILED), S3_FAILED, attempts=(1,)),
    Step(S2, "complete(NonRetryableError)", ending(FINAL), S3_FAILED, "act_retried", RETRY, (1,)),
    Step(S2, "complete(failed, attempts left)", ending(FAILED), S5, "act_retried", RETRY, (1,)),
    Step(S2, "complete(failed, attempts left) alone", ending_alone(FAILED), S5, "act_retried", RETRY, (1,)),
    Step(replace(S2, attempts=2), "complete(failed, no attempts left)", ending(FAILED), S3_FAILED, "act_retried", RETRY, (1, 2, 3)),
    Step(S2, "complete(returned)", ending(RETURNED), S5_RETURNED),
    Step(S2, "complete(returned) alone", ending_alone(RETURNED), S5_RETURNED),
    Step(replace(S2, attempts=1), "complete(returned)", ending(RETURNED), replace(S5_RETURNED, attempts=1), attempts=(1,)),
    # The loop takes it.
    Step(S3, "iteration", iterate, FINISHED),
    Step(S3_FAILED, "iteration", iterate, finished("failed"), attempts=(1,)),
    Step(S5, "iteration", iterate, S10, "act_retried", RETRY, (1,)),
    Step(S5_RETURNED, "iteration of a full pool", iterate_paused, S1),
    Step(replace(S5_RETURNED, attempts=1), "iteration of a full pool", iterate_paused, S10, attempts=(1,)),
    Step(S5_RETURNED, "iteration with room", iterate, S2),
    # A cancelation is asked for.
    Step(S1, "cancel", cancel, S7),
    Step(S10, "cancel", cancel, replace(S7, attempts=1), attempts=(1,)),
    Step(S2, "cancel", cancel, S8),
    Step(S5, "cancel", cancel, S6, "act_retried", RETRY, (1,)),
    Step(S5_RETURNED, "cancel", cancel, S6_RETURNED),
    # The loop works it off.
    Step(S7, "iteration", iterate, finished("canceled")),
    Step(S7, "iteration of a full pool", iterate_paused, finished("canceled")),
    Step(replace(S7, attempts=1), "iteration", iterate, finished("canceled"), attempts=(1,)),
    Step(S8, "iteration", iterate, S12),
    # An attempt ends after that was asked.
    Step(S8, "complete(success)", ending(SUCCESS), S4),
    Step(S8, "complete(failed)", ending(FAILED), S4_FAILED, attempts=(1,)),
    Step(S12, "complete(success)", ending(SUCCESS), S3),
    Step(S12, "complete(failed)", ending(FAILED), S3_FAILED, attempts=(1,)),
    Step(S8, "complete(failed, attempts left)", ending(FAILED), S6, "act_retried", RETRY, (1,)),
    Step(S8, "complete(returned)", ending(RETURNED), S6_RETURNED),
    Step(S12, "complete(failed, attempts left)", ending(FAILED), S9, "act_retried", RETRY, (1,)),
    Step(S12, "complete(returned)", ending(RETURNED), S9_RETURNED),
    # It has stopped for that; or says so, and it is not so.
    Step(S12, "complete(stopped)", ending(STOPPED), S3_CANCELED, attempts=(1,)),
    Step(S12, "complete(stopped) alone", ending_alone(STOPPED), S3_CANCELED, "act_retried", RETRY, (1,)),
    Step(replace(S12, attempts=2), "complete(stopped)", ending(STOPPED), S3_CANCELED, "act_retried", RETRY, (1, 2, 3)),
    Step(S2, "complete(stopped)", ending(STOPPED), S3_FAILED, attempts=(1,)),
    Step(S2, "complete(stopped, attempts left)", ending(STOPPED), S5, "act_retried", RETRY, (1,)),
    Step(S3_CANCELED, "iteration", iterate, finished("canceled")),
    Step(S6, "iteration", iterate, finished("canceled"), "act_retried", RETRY, (1,)),
    Step(S6_RETURNED, "iteration", iterate, finished("canceled")),
    Step(S9, "iteration", iterate, finished("canceled"), "act_retried", RETRY, (1,)),
    Step(S9_RETURNED, "iteration", iterate, finished("canceled")),
    Step(S4, "iteration", iterate, FINISHED),
    Step(S4_FAILED, "iteration", iterate, finished("failed"), attempts=(1,)),
    Step(S11, "iteration", iterate, FINISHED),
    # The same by a cancel_all.
    Step(replace(S1, covered=True), "iteration", iterate, finished("canceled")),
    Step(replace(S2, covered=True), "iteration", iterate, S12),
    Step(replace(S5, covered=True), "iteration", iterate, finished("canceled"), "act_retried", RETRY, (1,)),
    Step(replace(S12, covered=True), "iteration", iterate, S12),
    # The worker is lost.
    Step(S2, "worker lost", lose_worker, S10, "act_retried", RETRY, (1,)),
    Step(S2, "worker lost", lose_worker, finished("failed"), "act", attempts=(1,)),
    Step(replace(S2, attempts=2), "worker lost", lose_worker, finished("failed"), "act_retried", RETRY, (1, 2, 3)),
    Step(S2, "worker lost", lose_worker, S1, "mutate"),
    Step(S2, "worker lost", lose_worker, S1, "ask"),
    Step(S8, "worker lost", lose_worker, finished("canceled"), "act_retried", RETRY),
    Step(S8, "worker lost", lose_worker, finished("canceled"), "mutate"),
    Step(S12, "worker lost", lose_worker, finished("canceled"), "act"),
    Step(S12, "worker lost", lose_worker, finished("canceled"), "mutate"),
    Step(S3, "worker lost", lose_worker, FINISHED),
    Step(S4, "worker lost", lose_worker, FINISHED),
    Step(S5, "worker lost", lose_worker, S10, "act_retried", RETRY, (1,)),
    Step(S9, "worker lost", lose_worker, finished("canceled"), "act_retried", RETRY, (1,)),
]


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_transition(loop: Loop, step: Step) -> None:
    """Each act leads to the state that the contract names, and counts and keeps the failed attempts."""
    assert name_of(step.before) is not None
    work_id = given(step.before, worker_id=loop.worker.id, func=step.func, retry=step.retry)
    assert observe(work_id) == step.before
    step.do(loop, work_id)
    assert observe(work_id) == step.after
    assert numbers(work_id) == list(step.attempts)


def test_s4_whose_cancelation_has_to_wait_becomes_s11_and_then_finished(loop: Loop) -> None:
    """A page of other cancelations comes first: the slot is free before the late wish is deleted."""
    for _ in range(64):
        given(S11)
    work_id = given(S4, worker_id=loop.worker.id)
    assert loop.iterate().again
    assert observe(work_id) == S11
    loop.iterate()
    assert observe(work_id) == FINISHED
    assert left_over() == {}


def test_running_processes_do_not_mind_columns_that_a_deploy_adds(loop: Loop) -> None:
    """Whatever their names: of other tables, or of values on their way into them."""
    tables = [model._meta for model in apps.get_app_config("workpool").get_models()]
    names = {column.column for table in tables for column in table.fields}
    names |= {"token", "begun", "result", "ran_on", "place", "item", "ms", "key"}
    act(loop)
    quote = connection.ops.quote_name
    added = {
        quote(table.db_table): [quote(name) for name in sorted(names - {column.column for column in table.fields})] for table in tables
    }
    if connection.features.can_rollback_ddl:
        execute(f"ALTER TABLE {table} ADD COLUMN {name} integer" for table, new in added.items() for name in new)
        act(loop)
        return
    execute(f"ALTER TABLE {table} {', '.join(f'ADD COLUMN {name} integer' for name in new)}" for table, new in added.items())
    try:
        act(loop)
    finally:
        # What was altered has been committed, and all that the test had written before.
        execute(f"ALTER TABLE {table} {', '.join(f'DROP COLUMN {name}' for name in new)}" for table, new in added.items())
        call_command("flush", interactive=False, verbosity=0)
        execute(["COMMIT"])


def execute(statements: Iterable[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def act(loop: Loop) -> None:
    """Take one work each of several ways."""
    pool = Workpool()
    works = [pool.using(retry=RETRY).enqueue(functions.act_retried) for _ in range(3)]
    works += [pool.enqueue(functions.mutate), pool.using(on_complete=functions.told).enqueue(functions.act)]
    canceled = pool.enqueue(functions.act)
    assert pool.cancel(canceled)
    loop.settle()
    complete(run_of(works[0]), SUCCESS)
    complete(run_of(works[1]), FAILED)
    loop.results = [Attempted(run_of(works[2]), SUCCESS, "here")]
    for work_id in works[3:]:
        loop.perform(run_of(work_id))
    loop.settle()
    assert [observe(one) for one in works] == [FINISHED, S10, FINISHED, FINISHED, FINISHED]
    assert observe(canceled) == finished("canceled")
    assert pool.status(works[1]).previous_attempts == 1
    loop.kill()
    loop.worker = loop.add_worker()
    pass_time(100_000)
    loop.settle()
    complete(run_of(works[1]), SUCCESS)
    loop.settle()
    assert left_over() == {}
