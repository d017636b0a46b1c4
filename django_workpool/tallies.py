"""Counts of what the pools have done, beside those that the loop writes."""

from .database import Database
from .models import Tally
from .types import Lane


def note_requeued(db: Database, pool: str, lane: Lane, number: int) -> None:
    """Note in the caller's transaction that finished works have left the archive to run again: they were counted when they ended."""
    minute = int(db.clock_ms() // 60_000)
    Tally.objects.using(db.using).bulk_create([Tally(pool=pool, lane=lane, minute=minute, requeued=number)])
