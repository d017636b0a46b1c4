"""What an iteration counts, and the rows of Tally that tell of it: inserted by its own transaction, so that their sums are exact.

All that ends or goes back passes through an iteration: a pending completion of another process, a result of its own, or a work that
the iteration itself settles. Each is counted where it is taken, once, in its lane; the minute's report is made of the same counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..segments import segment_ms
from ..tallies import COLUMNS, COUNTS, LAGS, bucket, minute_of
from ..types import Follow, Lane, ResultKind
from .memory import Report

if TYPE_CHECKING:
    from .context import Iteration

_VALUES = f"({', '.join(['%s'] * len(COLUMNS))})"


@dataclass(slots=True)
class Counts:
    """What one iteration has counted in a lane: see the columns of Tally."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    failed_attempts: int = 0
    retried: int = 0
    returned: int = 0
    #: Of works, not of iterations: operators count them.
    requeued: int = 0
    lags: list[int] = field(default_factory=lambda: [0] * len(LAGS))

    def start(self, due: Mapping[int, int], now_ms: float) -> None:
        """Count starts: so many that were due at each segment."""
        for segment, number in due.items():
            self.started += number
            self.lags[bucket(lag_ms(segment, now_ms))] += number

    def end(self, kind: str, follow: str, *, attempt: bool = True) -> None:
        """Count the end of an attempt, or (``attempt`` False) that of a work without one. Whether it is retried is counted elsewhere."""
        if follow == Follow.RETURN:
            self.returned += 1
            return
        # Whoever has settled it has kept the attempt: all but successes leave a row.
        self.failed_attempts += attempt and kind != ResultKind.SUCCESS
        if follow == Follow.END:
            self.succeeded += kind == ResultKind.SUCCESS
            self.failed += kind == ResultKind.FAILED
            self.canceled += kind == ResultKind.CANCELED

    @property
    def is_empty(self) -> bool:
        """Whether nothing has happened."""
        return not any(getattr(self, name) for name in COUNTS)

    def report(self) -> Report:
        """Return what the minute's report has of it."""
        completed = self.succeeded + self.failed_attempts
        return Report(completed, self.succeeded, self.failed, self.retried, self.canceled)


def lag_ms(segment: int, now_ms: float) -> int:
    """Return how late something starts now that was due at a segment, in milliseconds."""
    return max(0, round(now_ms - segment_ms(segment)))


def write(it: "Iteration") -> None:
    """Insert a row for each lane in which anything has happened; with the report, what the pool holds in that of its works."""
    rows = []
    for lane, counts in zip(Lane, it.counts, strict=True):
        held = it.held if lane is Lane.WORK and it.held is not None and any(it.held) else (None, None)
        if held != (None, None) or not counts.is_empty:
            rows.append([it.pool, lane.value, minute_of(it.now_ms), *(getattr(counts, name) for name in COUNTS), *counts.lags, *held])
    if rows:
        statement = f"INSERT INTO {{Tally}} ({', '.join(COLUMNS)}) VALUES {', '.join([_VALUES] * len(rows))}"
        it.db.execute(statement, [value for row in rows for value in row])
