"""Phase (e): the report once a minute, and the cursors and counters written down once a second at most.

They live in the leader's memory: the fence's row would otherwise get a version for each iteration.
"""

import time
from dataclasses import asdict

from .. import serialization, stats
from ..models import InternalState
from .context import Iteration
from .memory import Report

REPORT_EVERY_MS = 60_000
SAVE_EVERY = 1.0


def keep(it: Iteration) -> None:
    """Emit the report if it is due, and write the state if it has changed and was not written within the last second."""
    memory = it.memory
    report = it.report
    changed = memory.dirty or it.advances or report != Report()
    total = Report(**asdict(memory.report))
    total.add(report)
    if memory.report_ms is None:
        memory.report_ms = it.now_ms
    if it.now_ms - memory.report_ms >= REPORT_EVERY_MS:
        running = len(memory.running) - len(it.ended) + sum(it.taken)
        # What was chosen is still among what waits.
        it.held = max(0, stats.backlog(it.db, it.pool) - sum(it.taken)), running
        it.emit("report", "REPORT", **stats.report(asdict(total), running, it.held[0]))
        it.reported, total, changed = True, Report(), True
    if changed and time.monotonic() - memory.saved >= SAVE_EVERY:
        _save(it, total)
        it.saved = True
    memory.dirty = bool(changed)


def _save(it: Iteration, total: Report) -> None:
    memory = it.memory
    cursors = {f"{lane}:{priority}": cursor.position for (lane, priority), cursor in memory.starts.items()}
    InternalState.objects.using(it.db.using).filter(pool=it.pool).update(
        incoming_cursor=serialization.encode(cursors, "cursors"),
        completion_cursor=max(0, memory.completions.position[0]),
        cancelation_cursor=max(0, memory.cancelations.position[0]),
        last_recovery=it.now,
        last_report=int(it.now_ms if it.reported else memory.report_ms or 0) // 100,
        **asdict(total),
    )


def remember(it: Iteration) -> None:
    """Take over what has been committed."""
    it.memory.report.add(it.report)
    if it.reported:
        it.memory.report, it.memory.report_ms = Report(), it.now_ms
    if it.saved:
        it.memory.saved, it.memory.dirty = time.monotonic(), False


def load(using: str, pool: str) -> Report:
    """Return the counts that an earlier leader has written down."""
    fields = ("completed", "succeeded", "failed", "retries", "canceled")
    row = InternalState.objects.using(using).filter(pool=pool).values(*fields).first()
    return Report(**row) if row else Report()
