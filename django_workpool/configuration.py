"""The live configuration of the pools: their rows, their limits, their pauses.

A pool that is paused has a limit of 0, and keeps in ``paused_limit`` what it goes on with: whoever finds that set knows that an
operator has paused it, and that neither a deploy nor a restart is to undo that.
"""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce, NullIf

from . import conf
from .exceptions import InvalidWork
from .kick import Source, kick, kick_after_commit
from .models import Globals, InternalState, Lead, RunStatus


def create_rows(using: str, pools: Iterable[str] | None = None) -> None:
    """Make the single rows of the pools (of all pools that are in this database) where they are missing."""
    names = conf.pools_in(using) if pools is None else list(pools)

    def missing(model: type[Globals | InternalState | RunStatus]) -> list[str]:
        # A leader that has stopped may hold rows, and on MariaDB an INSERT waits for a row that is there, even one that then does nothing.
        there = set(model.objects.using(using).values_list("pool", flat=True)) if names else set()
        return [name for name in names if name not in there]

    for name in missing(Globals):
        limit = conf.pool(name).max_parallelism
        first = Globals(pool=name, max_parallelism=conf.DEFAULT_MAX_PARALLELISM if limit is None else limit)
        Globals.objects.using(using).bulk_create([first], ignore_conflicts=True)
    for name in missing(InternalState):
        # A status that is left is of a generation that this pool has had: what comes now is newer.
        told = RunStatus.objects.using(using).filter(pool=name).values_list("generation", flat=True).first()
        InternalState.objects.using(using).bulk_create([InternalState(pool=name, generation=told or 0)], ignore_conflicts=True)
    for name in missing(RunStatus):
        RunStatus.objects.using(using).bulk_create([RunStatus(pool=name)], ignore_conflicts=True)
    if names and not Lead.objects.using(using).exists():
        Lead.objects.using(using).bulk_create([Lead()], ignore_conflicts=True)


def apply_settings(using: str) -> None:
    """Make the rows, and put the limits and levels that the settings name into force (those they leave out are the rows').

    A pool that is paused stays so: the limit is what it will go on with.
    """
    create_rows(using)
    for name in conf.pools_in(using):
        limit, level = conf.pool(name).max_parallelism, conf.pool(name).log_level
        rows = Globals.objects.using(using).filter(pool=name)
        if limit is not None:
            paused = Q(paused_limit__isnull=False)
            # One statement, so that a pause that begins or ends meanwhile comes before or after it.
            rows.exclude(paused, paused_limit=limit).exclude(~paused, max_parallelism=limit).update(
                max_parallelism=Case(When(paused, then=F("max_parallelism")), default=Value(limit)),
                paused_limit=Case(When(paused, then=Value(limit))),
            )
        if level is not None:
            rows.exclude(log_level=level).update(log_level=level)


def configure(pool: str, max_parallelism: int | None, log_level: str | None) -> None:
    """Change a pool's limit, its level of events, or both. A limit of 0 pauses it, another one lets it go on.

    Raises:
        InvalidWork: a value is of the wrong type or out of range, or none is given.
    """
    changes: dict[str, Any] = {}
    if max_parallelism is not None:
        changes["max_parallelism"] = conf.check_limit(max_parallelism)
        changes["paused_limit"] = None
    if log_level is not None:
        changes["log_level"] = conf.check_log_level(log_level)
    if not changes:
        raise InvalidWork("configure() needs max_parallelism or log_level.")
    using = conf.database_alias(pool)
    with transaction.atomic(using=using):
        if max_parallelism == 0:
            pause(pool)
            del changes["max_parallelism"], changes["paused_limit"]
        if changes:
            _change(using, pool, changes)


def pause(pool: str) -> bool:
    """Let nothing more of a pool start; its limit is kept. Return False if it was paused already."""
    # In this order: MariaDB gives each column its value before it works out the next one's.
    return _change(
        conf.database_alias(pool), pool, {"paused_limit": F("max_parallelism"), "max_parallelism": 0}, only={"paused_limit__isnull": True}
    )


def resume(pool: str) -> bool:
    """Give a paused pool its limit back: the one that it had, else that of the settings, else 10. Return False if it is not paused."""
    named = conf.pool(pool).max_parallelism or conf.DEFAULT_MAX_PARALLELISM
    limit = Coalesce(NullIf(F("paused_limit"), Value(0)), Value(named))
    return _change(conf.database_alias(pool), pool, {"max_parallelism": limit, "paused_limit": None}, only={"max_parallelism": 0})


def wake(pool: str) -> None:
    """Let the main loop look at all of a pool's queues, whatever its status says. Takes effect after the caller's commit."""
    using = conf.database_alias(pool)
    transaction.on_commit(lambda: kick(using, pool, Source.CONFIGURE, late=True), using=using, robust=True)


def _change(using: str, pool: str, changes: dict[str, Any], only: dict[str, Any] | None = None) -> bool:
    """Change a pool's row, which is made if it is missing, and wake the loop; return whether ``only`` fitted it."""
    rows = Globals.objects.using(using).filter(pool=pool)
    with transaction.atomic(using=using):
        changed = rows.filter(**(only or {})).update(**changes)
        if not changed and not rows.exists():
            create_rows(using, [pool])
            changed = rows.filter(**(only or {})).update(**changes)
        if changed:
            kick_after_commit(using, pool, Source.CONFIGURE)
    return bool(changed)
