"""What a shop does in the background: realistic names, times and faults, for the pages to show."""

import random
import time
from datetime import timedelta

from django_workpool import NonRetryableError, OnCompleteArgs, RetryBehavior, action, mutation, on_complete, progress, query

# Workers know these functions from their start: what nobody knows is looked for only after a while.
from ..works import progress as _progress  # noqa: F401

SOON = RetryBehavior(max_attempts=4, initial_backoff=timedelta(milliseconds=500))


class GatewayError(Exception):
    """A service of others has answered with an error."""


@action(retry=SOON)
def send_welcome_email(user_id: int) -> str:
    """Take a moment, and fail now and then."""
    time.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.1:
        raise GatewayError(f"SMTP 451: mailbox of user {user_id} is busy, try again later")
    return f"message-{user_id}@mail.example"


@action
def resize_image(path: str, width: int) -> dict[str, int]:
    """Take longer, and fail for good if the file is none."""
    time.sleep(random.uniform(0.2, 1.5))
    if path.endswith(".tiff"):
        raise ValueError(f"cannot identify image file {path!r}")
    return {"width": width, "height": width * 3 // 4}


@action(retry=SOON)
def sync_stock(warehouse: str) -> int:
    """Fail always: the other side is down."""
    time.sleep(random.uniform(0.05, 0.3))
    raise ConnectionError(f"warehouse {warehouse}: connection refused by 10.0.3.17:8443")


@mutation
def book_order(order_id: int) -> int:
    """Change the database quickly."""
    time.sleep(random.uniform(0.005, 0.03))
    return order_id


@query
def count_orders(day: str) -> int:
    """Read the database quickly."""
    return len(day)


@action
def build_report(name: str, seconds: float) -> str:
    """Take long, and tell how far it has come."""
    steps = int(seconds * 10)
    for step in range(steps):
        time.sleep(0.1)
        progress(step + 1, steps)
    return f"/reports/{name}.pdf"


@action
def charge_card(order_id: int) -> None:
    """Fail at once: the card is refused."""
    raise NonRetryableError(f"card of order {order_id} was declined")


@on_complete
def note_end(done: OnCompleteArgs) -> None:
    """Do nothing."""


@on_complete
def break_down(done: OnCompleteArgs) -> None:
    """Fail, so that the callback is repeated."""
    raise KeyError("invoice")
