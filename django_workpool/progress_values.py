"""How far the function of a work has come: what it may say, and what others are told of it."""

import math
from dataclasses import dataclass
from datetime import datetime
from numbers import Real

from .exceptions import InvalidWork

#: No database has trouble with numbers inside of these bounds.
SMALLEST, LARGEST = 1e-100, 1e100


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running work's function has come, as it has said itself."""

    done: float
    total: float
    #: When that was written down.
    said: datetime

    @property
    def fraction(self) -> float:
        """The part that is done, from 0 to 1."""
        return min(1.0, self.done / self.total)


def check_progress(done: object, total: object) -> tuple[float, float]:
    """Return both as floats.

    Raises:
        InvalidWork: one is not a finite number, ``total`` is not above 0, or ``done`` is below 0.
    """
    whole = _number("total", total)
    if not SMALLEST <= whole <= LARGEST:
        raise InvalidWork(f"total must be a finite number above 0 (from {SMALLEST} to {LARGEST}), not {total!r}.")
    part = _number("done", done)
    if not 0 <= part <= LARGEST:
        raise InvalidWork(f"done must be a finite number from 0 to {LARGEST}, not {done!r}.")
    return (part if part >= SMALLEST else 0.0), whole


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        raise InvalidWork(f"{name} must be a number, not {type(value).__name__}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf
