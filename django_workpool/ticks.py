"""The moments at which a cron expression ticks. The only module that knows the library, which the extra ``cron`` brings.

That is cronsim: its one aim is to do what Debian's cron does, at the changes of daylight saving time, too; it takes seconds as a
field of their own, is typed, depends on nothing, and is kept by the cron monitoring service that runs on it. (croniter ticks twice at a
local time that comes twice, and needs dateutil.)

Times are milliseconds since 1970, so that nothing depends on a local time that comes twice.
"""

import math
from datetime import UTC, datetime, tzinfo
from itertools import islice
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

from .exceptions import InvalidWork, WorkpoolSettingsError

#: Characters of an expression, and of a zone's name: what their columns hold.
CRON_MAX, ZONE_MAX = 200, 64
#: Steps of the library that may lie before the moment that is asked for: the ticks of a local time that comes a second time.
STEPS_MAX = 5_000
SECOND_MS = 1_000


def is_available() -> bool:
    """Return whether the library is installed."""
    try:
        _library()
    except WorkpoolSettingsError:
        return False
    return True


def _library() -> ModuleType:
    try:
        import cronsim
    except ImportError:
        raise WorkpoolSettingsError(
            "Periodic works need the library cronsim, which is not installed here: pip install 'django_workpool[cron]'."
        ) from None
    return cronsim


def zone(name: object) -> tzinfo:
    """Return a time zone by its name.

    Raises:
        InvalidWork: there is none of that name on this host.
    """
    if isinstance(name, str) and 0 < len(name) <= ZONE_MAX:
        try:
            # A fixed one is several times as fast.
            return UTC if name == "UTC" else ZoneInfo(name)
        except (LookupError, ValueError, OSError):
            pass
    raise InvalidWork(
        f"There is no time zone {_short(name)} on this host: use a name such as Europe/London (a system without zones needs tzdata)."
    )


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else text[:100] + "..."


class Cron:
    """One expression in one time zone.

    Args:
        expression: Five fields as of cron, or six: then the first one is of seconds.
        zone_name: In whose local time it is meant.

    Raises:
        InvalidWork: one of them cannot be used.
        WorkpoolSettingsError: the library is not installed.
    """

    def __init__(self, expression: object, zone_name: object) -> None:
        if not isinstance(expression, str) or len(expression) > CRON_MAX:
            raise InvalidWork(f"cron must be text of at most {CRON_MAX} characters, not {_short(expression)}.")
        self.expression, self.zone = expression, zone(zone_name)
        self._library: Any = _library()
        fields = expression.split()
        # The library moves a skipped time only where there are no seconds: a single one is added here, so that both forms tick alike.
        self._shift_ms = 0
        if len(fields) == 6 and fields[0].isascii() and fields[0].isdigit() and int(fields[0]) < 60:
            self._shift_ms, fields = int(fields[0]) * SECOND_MS, fields[1:]
        self._fields = " ".join(fields)
        self.check()

    def check(self) -> None:
        """Let the library read the expression.

        Raises:
            InvalidWork: it cannot.
        """
        try:
            self._library.CronSim(self._fields, datetime.now(UTC))
        except Exception as error:
            raise InvalidWork(
                f"{_short(self.expression)} is not a cron expression ({error}): five fields (minute, hour, day of the month, month, day of "
                'the week), such as "30 1 * * *", or six, with seconds first.'
            ) from error

    def after(self, ms: float) -> int:
        """Return the first tick after a moment.

        Raises:
            InvalidWork: there is none within 50 years.
        """
        since = ms - self._shift_ms
        try:
            begin = datetime.fromtimestamp(math.floor(since / SECOND_MS), UTC).astimezone(self.zone)
            for moment in islice(self._library.CronSim(self._fields, begin), STEPS_MAX):
                tick: int = round(moment.timestamp()) * SECOND_MS
                # The library goes by the local time: of an hour that comes twice it means the first one.
                if tick > since:
                    return tick + self._shift_ms
        except (OverflowError, OSError, ValueError):
            # Beyond the calendar.
            pass
        raise InvalidWork(f"{_short(self.expression)} never ticks: no such time comes within 50 years.")

    def last(self, tick: int, until: float) -> int:
        """Return the last tick up to a moment, by bisection: asking for each could take millions of steps.

        Args:
            tick: one that is not later.
            until: the moment.
        """
        end = math.floor(until)
        while (following := self.after(tick)) <= until:
            middle = (following + end) // 2
            found = self.after(middle)
            if found <= until:
                tick = found
            else:
                # None is after the middle.
                tick, end = following, middle
        return tick
