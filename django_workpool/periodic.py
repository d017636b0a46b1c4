"""Periodic works as users see them: rows that say what is enqueued when. The leader does it (``loop/periodic.py``). Writes Periodic."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Case, F, When
from django.utils import timezone

from . import conf, functions, serialization
from .database_errors import lacks_table
from .exceptions import InvalidWork
from .models import Periodic
from .options import CheckedOptions, check_options
from .ticks import SECOND_MS, Cron, zone
from .types import Missed

#: Characters of a name: what its column holds.
NAME_MAX = 200
#: Times that ``next_times`` returns at most.
TIMES_MAX = 1_000


def schedule(
    name: str,
    function: Callable[..., Any] | str,
    *,
    cron: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    pool: str = "default",
    time_zone: str | None = None,
    missed: Missed | str = Missed.LAST,
    priority: int = 0,
    enabled: bool = True,
) -> None:
    """Enqueue a call of ``function`` at each tick of a cron expression from now on; change what the name stands for if it is there.

    In the caller's transaction. Saying the same once more changes nothing: no tick is lost or comes twice.

    Args:
        name: Of the periodic work, at most 200 characters.
        function: A registered action, mutation or query, or its dotted path.
        cron: Five fields (minute, hour, day of the month, month, day of the week), or six, with seconds first.
        args: The function's arguments: JSON.
        kwargs: Its keyword arguments: JSON.
        pool: The pool.
        time_zone: In whose local time ``cron`` is meant, such as "Europe/London"; TIME_ZONE if left out.
        missed: What becomes of ticks that could not be enqueued within a minute: "all", "last" or "skip"; see ``Missed``.
        priority: -100 to 100, higher first.
        enabled: False keeps the row, and enqueues nothing.

    Raises:
        UnknownPool: the settings do not name the pool.
        UnregisteredFunction: ``function`` is not a registered action, mutation or query.
        InvalidWork: anything else cannot be taken, or ``cron`` never ticks. Nothing has been written.
        WorkpoolSettingsError: the library of the extra ``cron`` is not installed.
    """
    said: dict[str, Any] = {"cron": cron, "args": args, "kwargs": kwargs, "pool": pool, "time_zone": time_zone}
    columns = check(name, function, **said, missed=missed, priority=priority, enabled=enabled)
    using = conf.database_alias(pool)
    with transaction.atomic(using=using, savepoint=False):
        if not change(using, columns, name=name):
            Periodic.objects.using(using).bulk_create([Periodic(**columns)], ignore_conflicts=True)
            # Somebody else may have been first.
            change(using, columns, name=name)
        # Its pool may have been in another database. What is rolled back here must not be lost there.
        transaction.on_commit(lambda: _remove_from([other for other in conf.database_aliases() if other != using], name), using=using)


async def aschedule(name: str, function: Callable[..., Any] | str, **options: Any) -> None:
    """Async twin of ``schedule``."""
    await sync_to_async(schedule)(name, function, **options)


def unschedule(name: str) -> bool:
    """Remove a periodic work, in the caller's transaction; return whether it was there. What it has enqueued stays."""
    return _remove_from(conf.database_aliases(), name) > 0


def _remove_from(aliases: Collection[str], name: str) -> int:
    removed = 0
    for using in aliases:
        try:
            with transaction.atomic(using=using):
                removed += remove(using, name=name)
        except DatabaseError as error:
            # Databases are migrated one after the other, and works scheduled after each.
            if not lacks_table(error):
                raise
    return removed


async def aunschedule(name: str) -> bool:
    """Async twin of ``unschedule``."""
    return await sync_to_async(unschedule)(name)


def next_times(cron: str, time_zone: str | None = None, count: int = 5) -> list[datetime]:
    """Return the next moments at which a cron expression ticks, in its time zone.

    Args:
        cron, time_zone: As ``schedule`` takes them.
        count: How many, 1 to 1000; fewer are returned where no more come within 50 years.

    Raises:
        InvalidWork: something cannot be taken, or ``cron`` never ticks.
        WorkpoolSettingsError: the library of the extra ``cron`` is not installed.
    """
    if type(count) is not int or not 1 <= count <= TIMES_MAX:
        raise InvalidWork(f"count must be a whole number from 1 to {TIMES_MAX}, not {count!r}.")
    name = settings.TIME_ZONE if time_zone is None else time_zone
    expression, place = Cron(cron, name), zone(name)
    ms = [expression.after(timezone.now().timestamp() * SECOND_MS)]
    while len(ms) < count:
        try:
            ms.append(expression.after(ms[-1]))
        except InvalidWork:
            break
    return [moment(one, place) for one in ms]


def moment(ms: float, place: tzinfo) -> datetime:
    """Return a stored time in a time zone."""
    return datetime.fromtimestamp(ms / SECOND_MS, UTC).astimezone(place)


# What the admin shares -------------------------------------------------------------------------------------------


def check(
    name: str,
    function: object,
    *,
    cron: str,
    args: object,
    kwargs: object,
    pool: str,
    time_zone: str | None,
    missed: object,
    priority: int,
    enabled: bool,
) -> dict[str, Any]:
    """Return the columns of a row; the arguments and errors are those of ``schedule``."""
    settings_of = conf.pool(pool)
    registered = functions.registered(function, functions.WORK_KINDS)
    options = check_options(CheckedOptions(), {"priority": priority})
    zone_name = settings.TIME_ZONE if time_zone is None else time_zone
    Cron(cron, zone_name).after(timezone.now().timestamp() * SECOND_MS)
    if type(enabled) is not bool:
        raise InvalidWork(f"enabled must be True or False, not {enabled!r}.")
    return {
        "name": check_name(name),
        "pool": pool,
        "func_path": registered.path,
        "fn_type": registered.fn_type.value,
        "retry": options.retry_text(registered, settings_of),
        "arguments": encode_arguments(args, {} if kwargs is None else kwargs),
        "priority": priority,
        "cron": cron,
        "time_zone": zone_name,
        "missed": check_missed(missed),
        "enabled": enabled,
    }


def check_name(name: object) -> str:
    """Return a name.

    Raises:
        InvalidWork: it cannot be one.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_MAX:
        raise InvalidWork(f"name must be text of 1 to {NAME_MAX} characters, not {name!r:.100}.")
    serialization.encode(name, "name")
    return str(name)


def check_missed(missed: object) -> str:
    """Return a policy for missed ticks.

    Raises:
        InvalidWork: it is none.
    """
    if not isinstance(missed, str) or missed not in list(Missed):
        raise InvalidWork(f"missed must be one of {', '.join(Missed)}, not {missed!r:.100}.")
    return Missed(missed).value


def encode_arguments(args: object, kwargs: object) -> str:
    """Return the arguments of a call as JSON text.

    Raises:
        InvalidWork: they are not a list and a mapping, or JSON cannot carry them.
    """
    if not isinstance(args, (list, tuple)):
        raise InvalidWork(f"args must be a list or tuple, not {type(args).__name__}.")
    if not isinstance(kwargs, Mapping):
        raise InvalidWork(f"kwargs must be a dictionary, not {type(kwargs).__name__}.")
    return serialization.encode_call(tuple(args), kwargs)


def change(using: str, columns: Mapping[str, Any], **which: Any) -> int:
    """Change a row; where the times stay the same it keeps its place, else the leader works out the next tick from now."""
    kept = Case(When(cron=columns["cron"], time_zone=columns["time_zone"], then=F("next_ms")), default=None)
    # First: some databases see in a later assignment what an earlier one has made.
    return Periodic.objects.using(using).filter(**which).update(**{"next_ms": kept, "error": "", **columns})


def create(using: str, columns: Mapping[str, Any]) -> Periodic:
    """Insert a row."""
    return Periodic.objects.using(using).create(**columns)


def enable(using: str, ids: Collection[int], *, enabled: bool) -> int:
    """Enable or disable rows."""
    return Periodic.objects.using(using).filter(id__in=ids).update(enabled=enabled)


def remove(using: str, **which: Any) -> int:
    """Delete rows."""
    return Periodic.objects.using(using).filter(**which).delete()[0]
