"""The WORKPOOLS setting: one dictionary of options for each pool, read when first needed."""

import logging
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import environ  # type: ignore[import-untyped]
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .events import DEFAULT_LEVEL, LEVELS
from .exceptions import InvalidWork, UnknownPool, WorkpoolSettingsError
from .types import RetryBehavior, check_timeout

#: The limit of a new pool that the settings give none.
DEFAULT_MAX_PARALLELISM = 10
#: Functions that one worker process runs at once on threads, unless told otherwise.
DEFAULT_THREADS = 10
#: How long finished work is kept, unless told otherwise.
DEFAULT_RETENTION = timedelta(days=1)
#: How long a work waits for a worker that knows its function.
DEFAULT_HOLD = timedelta(minutes=10)
#: More than this is a typing error: each running work costs a row, a thread or a coroutine.
MAX_LIMIT = 1_000_000
#: Characters of a pool's name: what its columns hold.
NAME_MAX = 100
#: Longest retention and hold that date arithmetic stands; None keeps for ever.
MAX_PERIOD = timedelta(days=36_500)
#: The variable that names the level of events where settings and row name none.
LOG_LEVEL_VARIABLE = "WORKPOOL_LOG_LEVEL"

_KEYS = ("MAX_PARALLELISM", "LOG_LEVEL", "RETENTION", "RETRY", "HOLD", "FUNCTIONS", "DATABASE", "DIRECT", "TIMEOUT")

logger = logging.getLogger("django_workpool.conf")
_warned: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The options of one pool, checked."""

    name: str
    #: Works that may run at once over all processes, applied when a worker starts; None: the row decides.
    max_parallelism: int | None = None
    #: Least level of its events; None: the row decides, then WORKPOOL_LOG_LEVEL.
    log_level: str | None = None
    #: How long finished work is kept; 0 keeps nothing, None keeps for ever.
    retention: timedelta | None = DEFAULT_RETENTION
    #: Retry of actions that say nothing themselves.
    retry: RetryBehavior | bool = False
    #: How long a work waits for a worker that knows its function, before it fails.
    hold: timedelta = DEFAULT_HOLD
    #: Modules outside the installed apps whose functions may be called, with all below them.
    functions: tuple[str, ...] = ()
    #: The alias whose database holds its rows; None: the router decides.
    database: str | None = None
    #: Another alias of the same database that leads there past the pooler, for the pool's own sessions.
    direct: str | None = None
    #: How long an attempt may take whose call and function say nothing themselves; None: as long as it wants.
    timeout: timedelta | None = None


def pools() -> Mapping[str, PoolSettings]:
    """Return the options of all pools by name.

    Raises:
        WorkpoolSettingsError: the setting cannot be used; the text says why.
    """
    return _pools()


def pool(name: object) -> PoolSettings:
    """Return the options of the pool ``name``.

    Raises:
        UnknownPool: the settings do not name it.
        WorkpoolSettingsError: the setting cannot be used.
    """
    known = _pools()
    found = known.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnknownPool(f"There is no pool {_short(name)}; WORKPOOLS names {', '.join(map(repr, known))}.")
    return found


def function_prefixes() -> tuple[str, ...]:
    """Return the modules that the pools' FUNCTIONS allow, beside the installed apps."""
    return tuple(prefix for options in _pools().values() for prefix in options.functions)


def direct_alias(using: str) -> str | None:
    """Return the alias of the pool's own sessions in the database ``using``; None if they use that very alias.

    Raises:
        WorkpoolSettingsError: the pools name several, or one that DATABASES does not have.
    """
    named = {_pools()[name].direct for name in pools_in(using)} - {None, using}
    if len(named) > 1:
        raise WorkpoolSettingsError(f"WORKPOOLS: pools of one database name one DIRECT alias, not {', '.join(sorted(map(repr, named)))}.")
    for alias in named:
        if alias not in settings.DATABASES:
            raise WorkpoolSettingsError(f"WORKPOOLS: DIRECT names {alias!r}, which is not in DATABASES.")
    return next(iter(named), None)


def check_limit(value: object) -> int:
    """Return ``value`` if it can be a pool's ``max_parallelism``: a whole number from 0 (paused) to a million.

    Raises:
        InvalidWork: it is something else.
    """
    if type(value) is not int or not 0 <= value <= MAX_LIMIT:
        raise InvalidWork(f"max_parallelism must be a whole number from 0 to {MAX_LIMIT}, not {_short(value)}.")
    return value


def check_log_level(value: object) -> str:
    """Return ``value`` if it is a level of events: DEBUG, INFO, REPORT, WARN or ERROR.

    Raises:
        InvalidWork: it is something else.
    """
    if not isinstance(value, str) or value not in LEVELS:
        raise InvalidWork(f"log_level must be one of {', '.join(LEVELS)}, not {_short(value)}.")
    return str(value)


def default_log_level() -> str:
    """Return the level that the environment variable WORKPOOL_LOG_LEVEL names, else REPORT."""
    try:
        named = environ.Env().str(LOG_LEVEL_VARIABLE, default="")
    except ImproperlyConfigured as error:
        named = str(error)
    if named in LEVELS:
        return str(named)
    if named and named not in _warned:
        _warned.add(named)
        logger.warning("%s is %s, not one of %s: ignored.", LOG_LEVEL_VARIABLE, _short(named), ", ".join(LEVELS))
    return DEFAULT_LEVEL


def log_level(pool: str) -> str:
    """Return the level of a pool's events where its row names none: what the settings name, else ``default_log_level``."""
    with suppress(WorkpoolSettingsError):
        named = _pools().get(pool)
        if named is not None and named.log_level is not None:
            return named.log_level
    return default_log_level()


def database_alias(pool: str | None = None) -> str:
    """Return the alias of the database that holds the rows of a pool: what its DATABASE names, else where the router writes.

    Args:
        pool: Its name; None, or one that the settings do not name: where the router writes.
    """
    named = _pools().get(pool) if pool is not None else None
    if named is not None and named.database is not None:
        return named.database
    # Models cannot be imported before the apps are loaded, and this module is needed before that.
    from django.db import router

    from .models import Work

    return router.db_for_write(Work)


def database_aliases(pools: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the aliases of all databases that hold pools, or one of ``pools``, each once, in the order of the settings."""
    return tuple(dict.fromkeys(database_alias(name) for name in _pools() if pools is None or name in pools))


def pools_in(using: str) -> list[str]:
    """Return the names of the pools whose rows are in the database ``using``."""
    return [name for name in _pools() if database_alias(name) == using]


@cache
def _pools() -> Mapping[str, PoolSettings]:
    configured = getattr(settings, "WORKPOOLS", {"default": {}})
    if not isinstance(configured, Mapping) or not configured:
        raise WorkpoolSettingsError('WORKPOOLS must be a dictionary of at least one pool, such as {"default": {}}.')
    return {_name(name): _options(name, options) for name, options in configured.items()}


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in ("WORKPOOLS", "DATABASES"):
        _pools.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_workpool.conf")


def _name(name: object) -> str:
    fits = isinstance(name, str) and 0 < len(name) <= NAME_MAX and name == name.strip()
    # Cc, Cs: control characters and lone surrogates, which neither databases nor log lines can carry.
    if not fits or any(unicodedata.category(character) in ("Cc", "Cs") for character in str(name)):
        raise WorkpoolSettingsError(
            f"WORKPOOLS: the name of a pool is text of 1 to {NAME_MAX} characters without control characters or outer spaces, "
            f"not {_short(name)}."
        )
    return str(name)


def _options(name: str, options: object) -> PoolSettings:
    place = f"WORKPOOLS[{_short(name)}]"
    if not isinstance(options, Mapping):
        raise WorkpoolSettingsError(f"{place} must be a dictionary, not {_short(options)}.")
    for key in options:
        if key not in _KEYS:
            raise WorkpoolSettingsError(f"{place} has an unknown key {_short(key)}; known are {', '.join(_KEYS)}.")
    readers = {
        "MAX_PARALLELISM": _max_parallelism,
        "LOG_LEVEL": _log_level,
        "RETENTION": _retention,
        "RETRY": _retry,
        "HOLD": _period,
        "FUNCTIONS": _functions,
        "DATABASE": _database,
        "DIRECT": _direct,
        "TIMEOUT": check_timeout,
    }
    read: dict[str, Any] = {}
    for key, value in options.items():
        try:
            read[key.lower()] = readers[key](value)
        except InvalidWork as error:
            raise WorkpoolSettingsError(f"{place}[{key!r}]: {error}") from error
    return PoolSettings(name=str(name), **read)


def _max_parallelism(value: object) -> int | None:
    return None if value is None else check_limit(value)


def _log_level(value: object) -> str | None:
    return None if value is None else check_log_level(value)


def _retention(value: object) -> timedelta | None:
    return None if value is None else _period(value)


def _period(value: object) -> timedelta:
    if not isinstance(value, timedelta) or not timedelta(0) <= value <= MAX_PERIOD:
        raise InvalidWork(f"must be a timedelta from 0 to {MAX_PERIOD.days} days, not {_short(value)}.")
    return value


def _retry(value: object) -> RetryBehavior | bool:
    if isinstance(value, (bool, RetryBehavior)):
        return value
    if not isinstance(value, Mapping):
        raise InvalidWork(f"must be True, False, a RetryBehavior or a dictionary of its arguments, not {_short(value)}.")
    try:
        return RetryBehavior(**value)
    except TypeError as error:
        raise InvalidWork(f"{error}.") from error


def _functions(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidWork(f"must be a list of dotted module names, not {_short(value)}.")
    for prefix in value:
        if not isinstance(prefix, str) or not all(part.isidentifier() for part in prefix.split(".")):
            raise InvalidWork(f"must hold dotted module names, not {_short(prefix)}.")
    return tuple(str(prefix) for prefix in value)


def _database(value: object) -> str | None:
    alias = _direct(value)
    if alias is not None and alias not in settings.DATABASES:
        raise InvalidWork(f"{_short(alias)} is not in DATABASES.")
    return alias


def _direct(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidWork(f"must be an alias of DATABASES, not {_short(value)}.")
    return value


def _short(value: object) -> str:
    """Return a value for an error text: short, printable ASCII, whatever its repr does."""
    try:
        text = ascii(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 100 else text[:100] + "..."
