"""After an iteration: tell in RunStatus what the loop does next, so that pointless kicks are spared.

Written in a transaction of its own that need not be durable, and only when it changes. *running* and *saturated* only spare
kicks, so they are written when they have lasted; leaving them is written at once, and the queues are looked at once more
afterwards: whoever writes first, the other sees it.
"""

from ..database import Database
from ..models import RunStatus
from ..segments import YEAR
from ..types import LoopState
from .context import Iteration
from .memory import PoolMemory

#: Iterations in a row after which a backlog, or a full pool, is taken to last.
LASTING = 3

Status = tuple[str, int, bool]


def wanted(it: Iteration) -> Status:
    """Return the (state, segment, saturated) that fits an iteration's end."""
    memory = it.memory
    memory.busy = memory.busy + 1 if it.again else 0
    memory.full = memory.full + 1 if it.saturated and not it.again else 0
    if it.again:
        unsettled = memory.busy < LASTING and memory.status is not None
        return memory.status if unsettled and memory.status is not None else (LoopState.RUNNING.value, 0, False)
    if it.saturated and (memory.full >= LASTING or (memory.status is not None and memory.status[2])):
        # Nothing is started before something else happens; what happens kicks.
        return LoopState.SCHEDULED.value, it.now + YEAR if memory.status is None or not memory.status[2] else memory.status[1], True
    if it.next_segment is not None:
        return LoopState.SCHEDULED.value, it.next_segment, False
    return LoopState.IDLE.value, 0, False


def settle(db: Database, memory: PoolMemory, status: Status) -> bool:
    """Write the status if it has changed; return whether the queues are to be looked at once more before sleeping."""
    if status == memory.status:
        return False
    state, segment, saturated = status
    with db.fast_commit():
        RunStatus.objects.using(db.using).filter(pool=memory.pool, generation__lte=memory.generation).update(
            state=state, segment=segment, saturated=saturated, generation=memory.generation
        )
    memory.status = status
    return state != LoopState.RUNNING
