"""Unique keys: which work has a key, and the removal of keys whose work is gone.

A row tells to which work a key was given last. It means something only as long as that work stands, so whoever ends works
need not touch it: they pay nothing for keys, and never wait for a row that an open transaction of a caller holds.
"""

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

from django.db import transaction

from .database import Database, database
from .database.base import lock_rows
from .database.rows import PROBE, STANDS
from .exceptions import WorkpoolError
from .models import UniqueKey

#: Rows that one transaction looks at.
PRUNE_CHUNK = 500
#: Times that a row may be deleted between its insert and its lock: it is deleted once a minute at most.
TRIES = 5


def claim(db: Database, pool: str, key: str, work_id: uuid.UUID) -> uuid.UUID | None:
    """Lock a key until the end of the caller's transaction, and give it to a work if it is not taken.

    Waits for another open transaction that has claimed the same key.

    Returns:
        The work that has the key, None if it is ``work_id`` by now.
    """
    holder = _lock(db, pool, key, work_id)
    if holder == work_id:
        return None
    # What was committed while the lock was waited for is seen by a statement of its own only.
    if db.fetch(f"SELECT 1 FROM {{Work}} w WHERE w.id = %s AND {STANDS}", [db.uuid_param(holder)]):
        return holder
    give(db, pool, key, work_id)
    return None


def give(db: Database, pool: str, key: str, work_id: uuid.UUID) -> None:
    """Give a key that the caller has claimed to a work."""
    UniqueKey.objects.using(db.using).filter(digest=digest(pool, key)).update(work_id=work_id)


def regain(db: Database, work_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, tuple[str, uuid.UUID]]:
    """Let works that had ended, and that the caller's transaction inserts anew, have the keys that were given to them last.

    Whose key's row was deleted, or given to another work, has no key any more. The rows are locked, so that nobody takes a key for
    that of a work that is gone until the work's row can be seen.

    Returns:
        For works whose key somebody has taken at this very moment: the key, and the work that has it.
    """
    named = dict(UniqueKey.objects.using(db.using).filter(work_id__in=work_ids).values_list("id", "work_id"))
    if not named:
        return {}
    locked: Any = lock_rows(UniqueKey, db.using).filter(id__in=named).order_by("id").values_list("id", "key", "work_id")
    return {named[row_id]: (key, holder) for row_id, key, holder in locked if holder != named[row_id]}


def digest(pool: str, key: str) -> str:
    """Return what a key's row is found by."""
    # No pool's name has a NUL.
    return hashlib.sha256(f"{pool}\0{key}".encode()).hexdigest()


def _lock(db: Database, pool: str, key: str, work_id: uuid.UUID) -> uuid.UUID:
    """Lock the key's row, which is inserted for ``work_id`` if there is none; return its work."""
    row = UniqueKey(digest=digest(pool, key), pool=pool, key=key, work_id=work_id)
    locked: Any = lock_rows(UniqueKey, db.using).filter(digest=row.digest).values_list("work_id", flat=True)
    # Where one writer shuts out all others, a transaction that begins with a read fails instead of waiting for its turn. Elsewhere
    # a row that is there is locked first: an insert that meets it may keep a weaker lock of it, and two of these a deadlock.
    found: list[uuid.UUID] = list(locked) if db.skip_locked else []
    # That lock is the strong one where the insert is to change the row that it meets: to what it has.
    if_met: Any = {"update_conflicts": True, "update_fields": ["digest"]} if db.shares_conflicts else {"ignore_conflicts": True}
    for _ in range(TRIES):
        if found:
            return found[0]
        UniqueKey.objects.using(db.using).bulk_create([row], **if_met)
        found = list(locked.all())
    raise WorkpoolError(f"The key {key!r} of pool {pool} was deleted again and again.")


class Sweep:
    """Deletes the rows of works that are gone, a chunk at a time, from the first row to the last and then again.

    Args:
        using: The database.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self._after = 0

    def prune(self) -> bool:
        """Look at the next chunk of rows; return whether there are more behind it."""
        db = database(self.using)
        gone = f"NOT EXISTS (SELECT 1 FROM {{Work}} w WHERE w.id = k.work_id {PROBE})"
        rows = db.fetch(
            f"SELECT k.id, {gone} FROM {{UniqueKey}} k WHERE k.id > %s ORDER BY k.id LIMIT {PRUNE_CHUNK}",
            [self._after],
        )
        _delete(db, [row_id for row_id, is_gone in rows if is_gone])
        self._after = rows[-1][0] if len(rows) == PRUNE_CHUNK else 0
        return self._after > 0


def _delete(db: Database, ids: list[int]) -> None:
    """Delete those of the rows whose works are gone, except for what a caller's transaction holds: it may give the key to a work now."""
    if not ids:
        return
    with transaction.atomic(using=db.using):
        held: Any = lock_rows(UniqueKey, db.using, skip_locked=True).filter(id__in=ids).order_by("id").values_list("id", flat=True)
        locked = list(held)
        if locked:
            # Only a statement that begins when the rows are locked sees the works to which the keys were given last.
            among, param = db.among("id", locked)
            db.execute(
                f"DELETE FROM {{UniqueKey}} WHERE {among} AND NOT EXISTS "
                f"(SELECT 1 FROM {{Work}} w WHERE w.id = {{UniqueKey}}.work_id {PROBE})",
                [param],
            )
