"""What a type checker must refuse: each line with a mark, and no other."""

from datetime import timedelta

from django_workpool import (
    BatchResult,
    OnCompleteArgs,
    Workpool,
    action,
    aenqueue,
    batch,
    enqueue,
    mutation,
    on_batch_complete,
    on_complete,
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


on_complete(wants_text)  # E:
on_complete(wants_two)  # E:
mutation(retry=3)  # E:

enqueue(send, "1")  # E:
enqueue(send)  # E:
enqueue(send, 1, "a", "b")  # E:
enqueue(send, 1, urgnt=True)  # E:
enqueue(send, 1, urgent="yes")  # E:
enqueue(fetch, 1)  # E:
enqueue(3)  # E:

email = Workpool("email")
email.enqueue(send, "1")  # E:
email.enqueue(fetch)  # E:
email.enqueue_many(send, [1])  # E:
email.using(on_complete=wants_text)  # E:
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
on_batch_complete(wants_text)  # E:
batch(on_complete=of_work)  # E:
with email.batch(on_complete=of_batch) as filled:
    filled.enqueue(send, "1")  # E:
    filled.using(priority="high")  # E:
Workpool(1)  # E:


async def coroutines() -> None:
    await aenqueue(send, "1")  # E:
    await email.aenqueue(fetch)  # E:
