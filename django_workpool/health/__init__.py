"""Is it well? For each pool the one reason why its due works do not start, if there is one. Reads only, and what it reads is bounded.

``examine`` is what the command and the system check ask. A reason that is a fault counts only if a second look finds it, too: between
two holders of the lead, and while a worker takes another one's place, there is a moment of nobody. ``watchdog`` is what the loop asks.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from django.db.utils import DEFAULT_DB_ALIAS, Error

from ..database import Watch, database
from ..database_errors import lacks_table
from ..exceptions import WorkpoolSettingsError
from .reading import Look
from .states import Health, LeaderHealth, PoolHealth, Reason, WorkerHealth, shortened
from .waiting import Why, WhyCode, look_at, why, why_due, why_later

__all__ = [
    "Health",
    "LeaderHealth",
    "PoolHealth",
    "Reason",
    "Unasked",
    "Why",
    "WhyCode",
    "WorkerHealth",
    "examine",
    "examine_all",
    "look",
    "look_at",
    "shortened",
    "why",
    "why_due",
    "why_later",
]

#: Seconds between two looks that must agree on a fault: longer than a process that lives needs to find what it has missed.
AGAIN_AFTER = 2.5
#: Seconds in which the database must have answered.
TIMEOUT = 20.0


class Unasked(Exception):
    """The database could not be asked; the text, one line, says why."""


def examine(using: str, pools: Sequence[str] | None = None) -> Health:
    """Look, and look once more where something seems to be wrong: only what both looks find is.

    Raises:
        Unasked: the database cannot be reached or has no tables, or does not answer in time.
    """
    first = look(using, pools)
    if not first.problems:
        return first
    time.sleep(AGAIN_AFTER)
    return confirmed(first, look(using, pools))


def confirmed(first: Health, second: Health) -> Health:
    """Return the second of two looks, with what only one of them has found left out. They are ``AGAIN_AFTER`` or more apart."""
    before = {one.pool: one for one in first.pools if one.reason.is_fault}
    kept = tuple(
        one if not one.reason.is_fault or _agree(before.get(one.pool), one) else replace(one, reason=Reason.OK) for one in second.pools
    )
    leader = second.leader if first.leader.is_missing else replace(second.leader, expected=False)
    return replace(second, pools=kept, leader=leader)


def examine_all(databases: Sequence[str], pools: Sequence[str] | None = None) -> tuple[dict[str, Health], dict[str, str]]:
    """Examine several databases at the same time.

    Returns:
        What was found in each, and of those that could not be asked, why.
    """
    found: dict[str, Health] = {}
    unasked: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(databases)), thread_name_prefix="workpool-health") as threads:
        for using, answer in [(using, threads.submit(examine, using, pools)) for using in databases]:
            try:
                found[using] = answer.result()
            except Unasked as error:
                unasked[using] = str(error)
    return found, unasked


def _agree(before: PoolHealth | None, now: PoolHealth) -> bool:
    # The faults of nobody change names when a lease ends; the loop's own is one only if it has taken nothing in between.
    return before is not None and (now.reason is not Reason.STALLED or before.head == now.head)


def look(using: str, pools: Sequence[str] | None = None, most: int | None = None) -> Health:
    """Take one look, on a thread with a connection of the pool's own: with its planner's options and time-outs, whatever the caller's does.

    Args:
        using: The database.
        pools: Only these; None for all.
        most: Rows that a count of a pool counts at most; None for what many pools leave each.

    Raises:
        Unasked: see ``examine``.
    """
    answer: Future[Health] = Future()

    def ask() -> None:
        try:
            answer.set_result(_look_here(using, pools, most))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="workpool-health", daemon=True).start()
    try:
        return answer.result(TIMEOUT)
    except TimeoutError as error:
        raise Unasked(f"The database {using!r} has not answered within {TIMEOUT:.0f} s.") from error


def migrate_command(using: str) -> str:
    """Return what makes the tables in a database."""
    return "manage.py migrate" if using == DEFAULT_DB_ALIAS else f"manage.py migrate --database {using}"


def _look_here(using: str, pools: Sequence[str] | None, most: int | None) -> Health:
    try:
        watch = database(using).watch()
        try:
            return Look(database(using), _held(watch), pools, most=most).health()
        finally:
            watch.close()
    except (Error, OSError, WorkpoolSettingsError) as error:
        said = " ".join(str(error).split())
        if lacks_table(error):
            raise Unasked(f"The pool's tables in the database {using!r} cannot be read ({said}). Run: {migrate_command(using)}") from error
        raise Unasked(f"The database {using!r} cannot be asked: {said}") from error


def _held(watch: Watch) -> set[int] | None:
    try:
        return watch.held()
    except OSError:
        # Lock files that only somebody else may open.
        return None
