"""What a type checker must accept."""

import uuid
from datetime import timedelta
from typing import Any, TypedDict, assert_type

from django_workpool import (
    BatchResult,
    BatchStatus,
    OnCompleteArgs,
    RetryBehavior,
    Status,
    WorkBatch,
    WorkExists,
    Workpool,
    action,
    aenqueue,
    batch,
    call,
    enqueue,
    mutation,
    on_batch_complete,
    on_complete,
    query,
)


@action
def send(user_id: int, subject: str = "", *, urgent: bool = False) -> str:
    return subject


@action(retry=RetryBehavior(max_attempts=3))
async def fetch(url: str) -> bytes:
    return url.encode()


@mutation(retry=False)
def change(amount: float) -> None: ...


@query
def total() -> int:
    return 1


@on_complete
def sent(done: OnCompleteArgs) -> None:
    assert_type(done.work_id, uuid.UUID)


@on_complete()
def broad(done: object) -> int:
    return 1


class Context(TypedDict):
    user: int


@on_complete
def typed(done: OnCompleteArgs[dict[str, int]]) -> None:
    assert_type(done.context, dict[str, int])


@on_complete()
def structured(done: OnCompleteArgs[Context]) -> None:
    assert_type(done.context["user"], int)


def bare(done: OnCompleteArgs) -> Any:
    return done.context["anything"]


@on_batch_complete
def imported(done: BatchResult) -> None:
    assert_type(done.failed, int)


@on_batch_complete()
def broad_too(done: object) -> None: ...


# The decorators keep the type of the function.
assert_type(send(1, "a", urgent=True), str)
assert_type(total(), int)

assert_type(enqueue(send, 1), uuid.UUID)
enqueue(send, 1, "a", urgent=True)
enqueue(send, user_id=1, subject="a")
enqueue(fetch, "https://example.org")
enqueue(change, 1)
enqueue(total)
enqueue("app.tasks.send", 1, anything=True)

email = Workpool("email")
assert_type(email.enqueue(send, 1), uuid.UUID)
later = email.using(on_complete=sent, on_complete_context={"user": 1}, delay=timedelta(seconds=5), retry=True, priority=1, name="label")
assert_type(later, Workpool)
later.using(on_complete=broad, retry=RetryBehavior()).enqueue(change, 1.5)
later.using(on_complete="app.tasks.sent")
assert_type(email.enqueue_many(send, [call(1), call(2, urgent=True)]), list[uuid.UUID])
email.enqueue_many(send, (call(send, number, "a", urgent=True) for number in range(3)))
email.enqueue_many(send, [call(1), call(send, user_id=2)])
email.enqueue_many(total, [call(), call(total)])
email.enqueue_many("app.tasks.send", [call((1, 2), [3], {"a": None}, key=1.5)])
email.using(on_complete=typed, on_complete_context={"user": 1}).enqueue(send, 1)
email.using(on_complete=typed).using(on_complete_context={"user": 1}, priority=1)
email.using(on_complete=structured, on_complete_context=Context(user=1)).enqueue(send, 1)
email.using(on_complete=on_complete(bare), on_complete_context=["anything"])
email.using(on_complete=broad, on_complete_context=("anything", 1))
email.using(on_complete=None, retry=None, delay=None, run_after=None)
assert_type(email.cancel(uuid.uuid4()), bool)
assert_type(email.status(uuid.uuid4()), Status)
email.configure(max_parallelism=20)
email.using(unique="a").using(unique=None)
try:
    email.using(unique="a", if_taken="raise").enqueue(send, 1)
except WorkExists as error:
    assert_type(error.work_id, uuid.UUID)

with batch(on_complete=imported, on_complete_context={"a": 1}, name="a", pool="email") as filled:
    assert_type(filled, WorkBatch)
    assert_type(filled.enqueue(send, 1), uuid.UUID)
    assert_type(filled.enqueue_many(send, [call(1)]), list[uuid.UUID])
    filled.using(unique="b", if_taken="replace").enqueue(send, 1, urgent=True)
with email.batch(on_complete="app.tasks.imported") as other:
    other.enqueue("app.tasks.send", 1)
assert_type(other.status(), BatchStatus | None)
assert_type(email.cancel_batch(other.id), int)


async def coroutines() -> None:
    assert_type(await aenqueue(send, 1), uuid.UUID)
    assert_type(await email.aenqueue(fetch, url="https://example.org"), uuid.UUID)
    assert_type(await email.aenqueue_many(send, [call(send, 1), call(2)]), list[uuid.UUID])
    assert_type(await email.aenqueue_many("app.tasks.send", [call(2)]), list[uuid.UUID])
    assert_type(await email.acancel(uuid.uuid4()), bool)
    assert_type(await email.astatus_many([uuid.uuid4()]), dict[uuid.UUID, Status])
    await email.acancel_all()
    await email.aconfigure(log_level="WARN")
    assert_type(await fetch("https://example.org"), bytes)
    assert_type(await email.astatus(uuid.uuid4()), Status)
    assert_type(await email.abatch_status(uuid.uuid4()), BatchStatus | None)
