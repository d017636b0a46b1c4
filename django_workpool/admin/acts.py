"""What may be done from the admin's pages: by the package's public functions alone, in bounded portions, each noted in the admin's log."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from .. import conf
from ..exceptions import WorkpoolError
from ..permissions import HasPermissions
from ..serialization import clean

if TYPE_CHECKING:
    from .base import ReadOnly

#: Rows that one request acts on at most, and the seconds after which it leaves the rest: a browser waits for its answer.
ROWS_MAX, SECONDS_MAX = 10_000, 20.0
#: Rows of one transaction, noted together.
CHUNK = 100
#: Different reasons of refusals that one message tells.
REASONS_MAX = 5


def _always(row: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing that may be done with a row."""

    #: As addresses and forms name it.
    name: str
    #: What the button says.
    label: str
    #: What was done, for the message and the log.
    done: str
    #: Why nothing was done where the function says so.
    refused: str
    allowed: Callable[[HasPermissions], bool]
    #: Does it: given the row's pool and its key, returns whether there was anything to do.
    do: Callable[[str, Any], bool]
    #: Does it with many of a pool in one go: given their keys, returns those with which it was possible.
    do_many: Callable[[str, Sequence[Any]], Collection[Any]] | None = None
    #: Whether the row's page offers it.
    fits: Callable[[Any], bool] = _always
    in_lists: bool = True
    #: Asks for more before it is done; answers None if all is known.
    ask: "Callable[[ReadOnly, HttpRequest, Any], HttpResponse | None] | None" = None


@dataclass(slots=True)
class Performed:
    """What became of the rows that something was asked for."""

    done: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    #: Rows that were not tried, as there were too many or it took too long.
    left: int = 0


def perform(model_admin: "ReadOnly", request: HttpRequest, act: Act, rows: QuerySet[Any] | Sequence[Any]) -> Performed:
    """Do something with rows, as far as that is possible now; note in the admin's log with which of them it was done.

    Args:
        model_admin: The admin of the rows' table.
        request: Who asks.
        act: What is to be done.
        rows: The rows; a query of them is read as far as it is acted on.
    """
    performed, began = Performed(), time.monotonic()
    chosen = list(_light(rows)[: ROWS_MAX + 1]) if isinstance(rows, QuerySet) else list(rows)
    if len(chosen) > ROWS_MAX:
        performed.left, chosen = 1, chosen[:ROWS_MAX]
    tried = 0
    for some in _chunks(chosen):
        if time.monotonic() - began > SECONDS_MAX:
            performed.left += len(chosen) - tried
            break
        tried += len(some)
        with _together(some):
            done = _done(act, some, performed)
            note(request, done, act.done)
        performed.done += len(done)
    return performed


def note(request: HttpRequest, rows: Sequence[Any], message: str) -> None:
    """Note in the admin's log what was done with rows."""
    if rows:
        # Django's own table: the router says where it is.
        log: Any = LogEntry._meta.default_manager
        log.log_actions(request.user.pk, rows, CHANGE, change_message=message)


def tell(model_admin: "ReadOnly", request: HttpRequest, act: Act, performed: Performed) -> None:
    """Tell the user what became of it."""
    told = [f"{act.done}: {performed.done:,}."]
    told += [f"{number:,} not: {reason}." for reason, number in performed.reasons.most_common(REASONS_MAX) if number]
    if performed.left:
        told.append("There are more that were not tried: do it again for them.")
    level = messages.SUCCESS if performed.done and not any(performed.reasons.values()) else messages.WARNING
    model_admin.message_user(request, " ".join(told), level)


def _light(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Load what acts and the log need of rows, and nothing that may be large."""
    names = {one.name for one in rows.model._meta.concrete_fields}
    return rows.only(*(name for name in (rows.model._meta.pk.name, "pool", "name") if name in names))


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def _together(rows: Sequence[Any]) -> AbstractContextManager[Any]:
    # A single one is its function's own transaction: that may wait for a moment, which it would not do in another one.
    return transaction.atomic(using=rows[0]._state.db) if len(rows) > 1 else nullcontext()


def _done(act: Act, rows: Sequence[Any], performed: Performed) -> list[Any]:
    """Do it; return the rows with which that was possible, and count why it was not with the others."""
    done: list[Any] = []
    groups: dict[str, list[Any]] = {}
    for row in rows:
        groups.setdefault(row.pool, []).append(row)
    for pool, group in groups.items():
        if refusal := _refusal(pool, group[0]._state.db):
            performed.reasons[refusal] += len(group)
        elif act.do_many is not None and len(group) > 1:
            taken = set(act.do_many(pool, [row.pk for row in group]))
            done += [row for row in group if row.pk in taken]
            performed.reasons[act.refused] += len(group) - len(taken)
        else:
            done += [row for row in group if _did(act, row, performed)]
    return done


def _refusal(pool: str, using: str | None) -> str:
    """Return why nothing can be done in a pool; empty if it can."""
    if pool not in conf.pools():
        return f"the settings do not name the pool {clean(pool, 100)!r} any more"
    return "" if conf.database_alias(pool) == using else f"the settings have the pool {clean(pool, 100)!r} in another database"


def _did(act: Act, row: Any, performed: Performed) -> bool:
    try:
        reason = "" if act.do(row.pool, row.pk) else act.refused
    except WorkpoolError as error:
        reason = clean(str(error), 300).rstrip(".")
    if reason:
        performed.reasons[reason] += 1
    return not reason
