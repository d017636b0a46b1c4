"""One iteration of one pool: one transaction, read from top to bottom.

``run_iteration`` returns an ``Outcome`` that the runner acts on after the commit. Whatever the runner loses in a crash can be
read again from the rows.
"""

import uuid

from ..database import database
from . import cancelations, completions, fence, recovery, starts, state
from .context import Iteration
from .fleet import Fleet
from .memory import PoolMemory


def run_iteration(using: str, memory: PoolMemory, fleet: Fleet, owner: uuid.UUID, *, yields: bool = False) -> Iteration:
    """Work off a pool's queues once.

    Args:
        using: The database.
        memory: The pool's memory; changed after the commit.
        fleet: The workers; their load is changed after the commit.
        owner: Who leads, so we think: the fence checks it.
        yields: Whether other pools have waited longer for the room that this one's completions free.

    Raises:
        StaleGeneration: somebody else leads. Nothing has been written.
        OperationalError: the fence's row is locked, or the database is away. Nothing has been written.
    """
    it = Iteration(db=database(using), memory=memory, fleet=fleet, depth=memory.depth(), yields=yields)
    with it.db.write():
        fence.enter(it, owner)
        completions.retire(it)
        cancelations.cancel(it)
        recovery.recover(it)
        starts.start(it)
        state.keep(it)
    _remember(it)
    return it


def _remember(it: Iteration) -> None:
    """Take over what has been committed into the memory."""
    memory = it.memory
    for work_id, one in it.ended.items():
        if memory.running.pop(work_id, None) is not None:
            it.fleet.add(one, -1)
    for one in it.started:
        memory.running[one.work_id] = one
        it.fleet.add(one)
    memory.orphans = [one for one in memory.orphans if one.work_id not in it.ended]
    memory.starts |= it.new_starts
    for cursor, position in it.advances:
        cursor.advance(position)
    for row_id, page in it.pages.items():
        if page is None:
            memory.pages.pop(row_id, None)
        else:
            memory.pages[row_id] = page
    memory.read(it.depth)
    state.remember(it)
