"""What a type checker must refuse: each line with a mark, and no other."""

from datetime import UTC, datetime, timedelta

from django_workpool import (
    BatchResult,
    OnCompleteArgs,
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


@action(retry=True)
async def fetch(url: str) -> bytes:
    return url.encode()


@on_complete
def of_work(done: OnCompleteArgs) -> None: ...


@on_batch_complete
def of_batch(done: BatchResult) -> None: ...


def wants_text(done: str) -> None: ...


def wants_two(done: OnCompleteArgs, more: int) -> None: ...


@on_complete
def with_numbers(done: OnCompleteArgs[dict[str, int]]) -> None: ...


@on_complete()
def with_text(done: OnCompleteArgs[str]) -> None:
    len(done.context + 1)  # E:


NOW = datetime.now(tz=UTC)


on_complete(wants_text)  # E:
on_complete(wants_two)  # E:
mutation(retry=3)  # E:
mutation(batch="50")  # E:
action(send, retry=True)  # E:
action(3)  # E:
query(batch=2)  # E:

enqueue(send, "1")  # E:
enqueue(send)  # E:
enqueue(send, 1, "a", "b")  # E:
enqueue(send, 1, urgnt=True)  # E:
enqueue(send, 1, urgent="yes")  # E:
enqueue(fetch, 1)  # E:
enqueue(3)  # E:
enqueue("app.tasks.send", NOW)  # E:
enqueue("app.tasks.send", at=NOW)  # E:

email = Workpool("email")
email.enqueue(send, "1")  # E:
email.enqueue(fetch)  # E:
email.enqueue_many(send, [1])  # E:
email.enqueue_many(send, [call(send, "1")])  # E:
email.enqueue_many(send, [call(1), call(send)])  # E:
email.enqueue_many(send, [call(fetch, "https://example.org")])  # E:
email.enqueue_many("app.tasks.send", [1])  # E:
email.enqueue_many(send)  # E:
call(NOW)  # E:
call(1, at=NOW)  # E:
call(send, "1")  # E:
call(send, 1, urgnt=True)  # E:
email.using(on_complete=wants_text)  # E:
email.using(on_complete=with_numbers, on_complete_context="user")  # E:
email.using(on_complete=with_numbers, on_complete_context={"user": "one"})  # E:
email.using(on_complete_context={"user": 1}, on_complete=with_text)  # E:
email.using(on_complete=with_text, on_complete_context=None)  # E:
email.using("label")  # E:
email.using(run_after=5)  # E:
email.using(name=5)  # E:
email.using(on_complete=wants_two)  # E:
email.using(on_complete=3)  # E:
email.using(delay=5)  # E:
email.using(dealy=timedelta(1))  # E:
email.using(retry="yes")  # E:
email.using(priority="high")  # E:
email.using(unique=1)  # E:
email.using(unique="a", if_taken="ignore")  # E:
email.using(on_complete=of_batch)  # E:
email.configure(max_parallelism="20")  # E:
email.configure(20)  # E:
on_batch_complete(wants_text)  # E:
batch(on_complete=of_work)  # E:
with email.batch(on_complete=of_batch) as filled:
    filled.enqueue(send, "1")  # E:
    filled.using(priority="high")  # E:
Workpool(1)  # E:


async def coroutines() -> None:
    await aenqueue(send, "1")  # E:
    await email.aenqueue(fetch)  # E:
    await email.aenqueue_many(send, [call(send, "1")])  # E:
    await email.aenqueue_many(send, [1])  # E:
    await email.aconfigure(max_parallelism="20")  # E:
    await fetch(1)  # E:
