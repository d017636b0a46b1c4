"""Drills of SQLite's one writer."""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable

from .drill import Drill, drill
from .evidence import conclude
from .sampler import Sampler

SQLITE = ("sqlite",)
#: How much longer a write may take with an idle main beside it.
RATIO = 1.2
#: Below that a ratio is one of the machine's noise, in seconds.
NOISE = 0.002


def _options(journal: str) -> dict[str, object]:
    # As the system check asks for, but for the journal.
    return {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": f"PRAGMA journal_mode={journal}"}


def _use(drill: Drill, journal: str) -> dict[str, str]:
    """Let this process use the file with these options, and return what lets mains do so."""
    from django.conf import settings
    from django.db import connections

    connections.close_all()
    settings.DATABASES["default"]["OPTIONS"] = _options(journal)
    for connection in connections.all(initialized_only=True):
        connection.settings_dict["OPTIONS"] = _options(journal)
    # The kind of journal can be changed only while nobody else has the file open.
    drill.sampler.__exit__()
    mode = drill.database.fetch(f"PRAGMA journal_mode={journal}")[0][0]
    drill.expect(mode == journal.lower(), f"the journal is {mode}")
    drill.sampler = Sampler(drill.database, drill.limits)
    drill.sampler.__enter__()
    return {"DJANGO_SETTINGS_MODULE": "tests.faults.settings_pooled", "WORKPOOL_DRILL_OPTIONS": json.dumps(_options(journal))}


def _contention_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--each", type=int, default=200, help="Works that each of 8 threads enqueues (default: %(default)s).")


@drill(
    "8 threads enqueue after a SELECT, beside a main with 4 writing works, with both kinds of journal: no error, none lost",
    databases=SQLITE,
    seconds=90,
    quick=("--each", "25"),
    options=_contention_options,
)
def contention(drill: Drill) -> None:
    """Let many write at once, with the documented options."""
    drill.set_limit(4)
    for journal in ("WAL", "DELETE"):
        environment = _use(drill, journal)
        main = drill.fleet.start("--threads", "4", env=environment)
        drill.fleet.wait_for(main, "process_started")
        errors: list[str] = []

        def enqueue(number: int, journal: str = journal, errors: list[str] = errors) -> None:
            from django.db import connection, transaction

            from ..works.models import Event

            try:
                for count in range(drill.options.each):
                    with transaction.atomic():
                        Event.objects.filter(name="asked").first()
                        drill.enqueue(f"insert.{journal}{number}-{count}", 0.0, callback=count % 2 == 0)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
            finally:
                connection.close()

        _together([lambda number=number: enqueue(number) for number in range(8)])
        drill.expect(not errors, f"{journal}: {errors[:2]}")
        found = conclude(drill)
        drill.expect(not [event for event in found.events if event.event == "wedged"], f"{journal}: the loop was wedged")
        main.tell_to_end()
        drill.expect(main.wait() == 0, f"main {main.number} did not end in time")
    drill.sampler.__exit__()


def _together(bodies: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@drill("a web process writes 1,000 times beside an idle main: its p95 is at most 1.2 times that without one", databases=SQLITE, seconds=60)
def web_writes(drill: Drill) -> None:
    """Write in turns beside a main that idles and beside one that is not there (stopped), so that noise meets both."""
    main = drill.fleet.start(env=_use(drill, "WAL"))
    drill.fleet.wait_for(main, "process_started")
    time.sleep(2)
    took: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(10):
        for name in ("with", "without"):
            if name == "without":
                main.stop()
            took[name] += _write(50)
            main.go_on()
            time.sleep(0.3)
    p95 = {name: statistics.quantiles(times, n=20)[-1] for name, times in took.items()}
    ratio = p95["with"] / p95["without"]
    drill.expect(ratio <= RATIO or p95["with"] - p95["without"] < NOISE, f"p95 {ratio:.2f} times as long")
    drill.figures.update(
        p95_ratio=f"{ratio:.2f}",
        p95_ms=f"{1000 * p95['with']:.2f}/{1000 * p95['without']:.2f}",
        longest_ms=f"{1000 * max(took['with']):.0f}",
    )


def _write(number: int) -> list[float]:
    from ..works.models import Event

    took = []
    for _ in range(number):
        began = time.monotonic()
        Event.objects.create(name="web", key="", at=time.time())
        took.append(time.monotonic() - began)
        time.sleep(0.005)
    return took
