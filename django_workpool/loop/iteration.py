"""One iteration of one pool: one transaction, read from top to bottom.

``run_iteration`` returns an ``Outcome`` that the runner acts on after the commit. Whatever the runner loses in a crash can be
read again from the rows.
"""

import uuid
from collections.abc import Sequence

from ..database import database
from ..types import Attempted
from . import batches, cancelations, completions, fence, periodic, recovery, starts, state, tallies
from .context import Iteration
from .fleet import Fleet
from .memory import PoolMemory


def run_iteration(
    using: str, memory: PoolMemory, fleet: Fleet, owner: uuid.UUID, *, results: Sequence[Attempted] = (), yields: bool = False
) -> Iteration:
    """Work off a pool's queues once.

    Args:
        using: The database.
        memory: The pool's memory; changed after the commit.
        fleet: The workers; their load is changed after the commit.
        owner: Who leads, so we think: the fence checks it.
        results: Attempts of the pool that have ended in this process.
        yields: Whether other pools have waited longer for the room that this one's completions free.

    Raises:
        StaleGeneration: somebody else leads. Nothing has been written.
        OperationalError: the fence's row is locked, or the database is away. Nothing has been written.
    """
    it = Iteration(db=database(using), memory=memory, fleet=fleet, depth=memory.depth(), results=results, yields=yields)
    with it.db.write():
        with it.db.pipeline():
            asked = fence.enter(it)
            completions.end_successes(it)
        fence.check(it, asked, owner)
        completions.verify(it)
        completions.retire(it)
        cancelations.cancel(it)
        recovery.recover(it)
        batches.end(it)
        periodic.tick(it)
        starts.start(it)
        state.keep(it)
        with starts.beginning(it):
            tallies.write(it)
    _remember(it)
    return it


def _remember(it: Iteration) -> None:
    """Take over what has been committed into the memory."""
    memory = it.memory
    it.fleet.swap([one for one in it.ended.values() if memory.end(one)], it.started)
    for one in it.started:
        memory.begin(one)
    memory.learn(one.took for one in it.results if one.took)
    memory.orphans = [one for one in memory.orphans if one.token not in it.ended]
    memory.starts |= it.new_starts
    for cursor, position in it.advances:
        cursor.advance(position)
    for row_id, page in it.pages.items():
        if page is None:
            memory.pages.pop(row_id, None)
        else:
            memory.pages[row_id] = page
    memory.read(it.depth)
    if it.batches is not None:
        memory.batches = it.batches
    if it.ahead is not None:
        memory.ahead = it.ahead
    periodic.remember(it)
    state.remember(it)
