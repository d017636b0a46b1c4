"""One line a thing that happens: structured events, written to a logger.

Arguments and return values of works are never logged: they may be secret.
"""

import json
import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: The levels of events, with the number that logging knows them by.
LEVELS: Mapping[str, int] = MappingProxyType({"DEBUG": 10, "INFO": 20, "REPORT": 25, "WARN": 30, "ERROR": 40})
#: Where neither the settings, the row nor the environment name a level.
DEFAULT_LEVEL = "REPORT"
#: Characters of one value: enough for a dotted path, an error's first lines.
VALUE_MAX = 1000
#: Characters of one line: below what syslog and container logs cut.
LINE_MAX = 8000

logger = logging.getLogger("django_workpool.events")

_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")

if logging.getLevelName(LEVELS["REPORT"]) == f"Level {LEVELS['REPORT']}":
    logging.addLevelName(LEVELS["REPORT"], "REPORT")


def emit(event: str, *, pool: str, level: str, threshold: str, **fields: Any) -> None:
    """Write one line ``event=… pool=… key=value …`` in plain ASCII, or nothing if ``level`` is below ``threshold``. Never raises.

    The log record carries the same as a dictionary in its attribute ``workpool``.

    Args:
        event: what happened: "enqueued", "started", "completed", "report"…
        pool: name of the pool.
        level, threshold: one of ``LEVELS``; an unknown threshold counts as REPORT.
        fields: what to tell, in this order; no arguments of works.
    """
    try:
        if not is_wanted(level, threshold):
            return
        number = LEVELS.get(level, LEVELS["ERROR"])
        told = {"event": event, "pool": pool, **fields}
        logger.log(number, _line(told), extra={"workpool": told}, stacklevel=2)
    except Exception:
        # A handler or filter of the project that raises must not become a failure of the pool; logging shows it on stderr.
        _complain()


def is_wanted(level: str, threshold: str) -> bool:
    """Return whether ``emit`` would write an event of a level."""
    return LEVELS.get(level, LEVELS["ERROR"]) >= LEVELS.get(threshold, LEVELS[DEFAULT_LEVEL]) and is_logged(level)


def is_logged(level: str) -> bool:
    """Return whether the project's loggers let a level through."""
    return logger.isEnabledFor(LEVELS.get(level, LEVELS["ERROR"]))


def _line(told: Mapping[str, Any]) -> str:
    line = " ".join(f"{key}={_value(value)}" for key, value in told.items())
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 3] + "..."


def _value(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    try:
        text = str(value)
    except Exception as error:
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    if len(text) > VALUE_MAX:
        text = text[:VALUE_MAX] + "..."
    # Plain ASCII always: a log line must not fail on the encoding of the stream that it goes to.
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _complain() -> None:
    try:
        record = logging.LogRecord(logger.name, logging.ERROR, __file__, 0, "an event could not be logged", None, None)
        logging.Handler().handleError(record)
    except Exception:  # noqa: S110 - stderr itself may be closed
        pass
