"""A shop's mixed load for pictures, and the tallies of a day that it could have had before."""

import math
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from django.db import transaction

from django_workpool import Workpool, call, periodic
from django_workpool.models import PendingCompletion, RunningWork, Tally
from django_workpool.types import Lane

from . import tasks

#: Works a second of each kind.
RATES: dict[Callable[[], object], float] = {}
BINS = ("lag_100ms", "lag_200ms", "lag_500ms", "lag_1s", "lag_2s", "lag_5s", "lag_10s")
DAY = 24 * 60
#: Starts of a pool in a minute at noon, and the part of them that fails.
MINUTES = {"default": (900, 0.001), "email": (500, 0.002), "images": (160, 0.03), "reports": (6, 0.0), "stock": (40, 0.2)}


def kind(rate: float) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register what enqueues one work, so many times a second."""

    def register(enqueue: Callable[[], object]) -> Callable[[], object]:
        RATES[enqueue] = rate
        return enqueue

    return register


@kind(12)
def email() -> object:
    return Workpool("email").enqueue(tasks.send_welcome_email, random.randrange(10**6))


@kind(6)
def image() -> object:
    """More than the pool can do: its backlog grows."""
    name = f"/media/products/{random.randrange(10**5)}.{random.choice(['jpg', 'jpg', 'jpg', 'png', 'tiff'])}"
    return Workpool("images").using(priority=random.choice([0, 0, 0, 10])).enqueue(tasks.resize_image, name, 640)


@kind(1)
def stock() -> object:
    return Workpool("stock").using(name="stock of Hamburg", timeout=timedelta(seconds=30)).enqueue(tasks.sync_stock, "Hamburg")


@kind(15)
def order() -> object:
    return Workpool().using(on_complete=tasks.note_end).enqueue(tasks.book_order, random.randrange(10**6))


@kind(2)
def count() -> object:
    return Workpool().enqueue(tasks.count_orders, "2026-11-30")


@kind(0.7)
def report() -> object:
    number = random.randrange(10**4)
    return Workpool("reports").using(unique=f"report-{number}").enqueue(tasks.build_report, f"sales-{number}", 12)


@kind(0.5)
def card() -> object:
    return Workpool().using(on_complete=tasks.break_down).enqueue(tasks.charge_card, random.randrange(10**6))


@kind(0.5)
def later() -> object:
    return Workpool("email").using(delay=timedelta(hours=random.uniform(0.1, 30))).enqueue(tasks.send_welcome_email, 7)


def begin() -> None:
    """Do what happens once: a batch, periodic works, a pool that is paused."""
    Workpool("stock").configure(max_parallelism=0)
    with Workpool("images").batch(name="catalogue of winter", on_complete=None) as batch:
        batch.enqueue_many(tasks.resize_image, [call(f"/media/winter/{number}.jpg", 320) for number in range(25)])
    periodic.schedule(
        "nightly report", tasks.build_report, cron="30 2 * * *", args=["nightly", 60], pool="reports", time_zone="Europe/Berlin"
    )
    periodic.schedule("count orders", tasks.count_orders, cron="*/5 * * * *", args=["today"])


def run(stop: threading.Event, seconds: float = math.inf) -> None:
    """Enqueue for a while or until told to stop, each kind at its rate; cancel some."""
    begun, done = time.monotonic(), dict.fromkeys(RATES, 0)
    while (passed := time.monotonic() - begun) < seconds and not stop.wait(0.1):
        with transaction.atomic():
            for enqueue, rate in RATES.items():
                while done[enqueue] < rate * passed:
                    made = enqueue()
                    done[enqueue] += 1
                    if enqueue is image and random.random() < 0.05:
                        Workpool("images").cancel(made)


def a_day_before() -> None:
    """Write the tallies of the day before now, as the loop would have."""
    assert not RunningWork.objects.exists() and not PendingCompletion.objects.exists(), "only before the processes start"
    now = int(time.time() // 60)
    rows = []
    for minute in range(now - DAY, now):
        daylight = 0.55 + 0.45 * math.sin((minute % DAY) / DAY * 2 * math.pi - 1.2)
        for pool, each, failing in (
            ("default", 900, 0.001),
            ("email", 500, 0.002),
            ("images", 160, 0.03),
            ("reports", 6, 0.0),
            ("stock", 40, 0.2),
        ):
            started = int(each * daylight * random.uniform(0.8, 1.2))
            late = max(0.0, daylight - 0.7) if pool == "images" else 0.02
            lags = {name: int(started * late / 2**place) for place, name in enumerate(BINS[1:], start=1)}
            lags[BINS[0]] = started - sum(lags.values())
            failed = sum(random.random() < failing for _ in range(started))
            rows.append(
                Tally(
                    pool=pool, lane=Lane.WORK, minute=minute, started=started, succeeded=started - failed, failed=failed // 2,
                    failed_attempts=failed, retried=failed - failed // 2, waiting=int(started * late * random.uniform(1, 3)),
                    running=random.randrange(1, 5), **lags,
                )
            )  # fmt: skip
    Tally.objects.bulk_create(rows, batch_size=1000)
