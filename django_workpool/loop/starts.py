"""Phase (d): start due work by priority, then age, as much as there is spare capacity and room in the workers."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .. import tracing
from ..database import Start
from ..models import Work
from ..types import FnType, Lane, Run
from . import due, holds
from .context import Iteration
from .due import Due
from .fleet import Placement
from .memory import Cursor, Depth, Running
from .tallies import lag_ms

#: Works started in one iteration.
BATCH = 512
#: Rows passed over at the head of a queue (all workers that know them are full) in search of one that can be placed.
PASSED_MAX = 200
#: Rows looked at in one iteration, whatever can be done with them: the lease must not end meanwhile.
LOOK_MAX = 1_000
#: As much of them as one queue may take for what cannot be started (nobody knows its function): those behind it need some, too.
FRUITLESS = 0.5
#: Rows read at least by the second and later reads of a queue.
STEP = 100


def start(it: Iteration) -> None:
    """Choose a batch of each lane, and find out what is due next."""
    # Room that this iteration has freed is for whoever has waited for room longest.
    placement = Placement(it.fleet, it.pool, () if it.yields else it.ended.values(), stays=it.memory.stays)
    queues = due.queues(it)
    room = BATCH
    for lane in (Lane.CALLBACK, Lane.WORK):
        for priority in sorted((p for one, p in queues if one == lane), reverse=True):
            if it.spare(lane) <= 0 or not placement.has_room(lane) or room <= 0:
                break
            room -= _start_queue(it, lane, priority, placement, min(room, it.spare(lane)))
    it.again |= room <= 0 or (it.yields and bool(it.ended))
    crowded = bool(placement.workers) and it.spare(Lane.WORK) > 0
    it.starved = crowded and (it.starved or (not placement.has_room(Lane.WORK) and due.has_due(it)))
    it.saturated = it.spare(Lane.WORK) <= 0 or not placement.has_room(Lane.WORK)
    due.look_ahead(it)


def _start_queue(it: Iteration, lane: Lane, priority: int, placement: Placement, most: int) -> int:
    """Choose at most ``most`` works of one queue; return how many."""
    cursor = it.memory.starts.get((lane, priority))
    if cursor is None:
        cursor = it.new_starts[lane, priority] = Cursor()
    position, begun, passed, least = cursor.start(it.depth), 0, 0, 0
    before, fruitless = it.looked, (LOOK_MAX - it.looked) * FRUITLESS
    # One more than there are threads for tells whether what comes next needs none.
    step = placement.free_threads(lane) + 1 if placement.workers else BATCH
    while begun < most:
        if it.looked >= LOOK_MAX or it.looked - before - begun >= fruitless:
            it.again = True
            break
        rows = due.read(it, lane, priority, position, min(max(most - begun + passed, least), step, BATCH))
        if not rows:
            break
        # What could not be started may go on for long: larger steps from now on.
        it.looked, least, step = it.looked + len(rows), STEP, BATCH
        started, left = _start_rows(it, lane, rows, placement, most - begun)
        begun += started
        if passed == 0:
            worked = [row.position for row in rows if row.id not in left]
            first_left = min((row.position for row in rows if row.id in left), default=None)
            done = [one for one in worked if first_left is None or one < first_left]
            if done:
                it.advances.append((cursor, max(done)))
        passed += len(left)
        position = rows[-1].position
        # Coroutines behind works that wait for a thread are looked for now and then, not each time.
        over = not placement.has_room(lane) or (it.depth is Depth.EXACT and not placement.free_threads(lane))
        if passed > PASSED_MAX or (left and over):
            break
    return begun


def _start_rows(it: Iteration, lane: Lane, rows: list[Due], placement: Placement, most: int) -> tuple[int, set[int]]:
    """Choose what can be started; return how many, and the ids of the rows that stay as they are."""
    chosen: list[tuple[Due, int]] = []
    drop, over, unknown, left = [], [], [], set()
    waived = due.waived(it, rows)
    for row in rows:
        if row.fn_type is None or it.is_running(row.work_id):
            drop.append(row)
        elif row.canceled:
            over.append(row)
        elif waived and row.work_id in waived:
            # The cancelation that waits will delete it.
            continue
        elif placement.workers and not placement.known(row.func_path, row.fn_type):
            unknown.append(row)
        elif len(chosen) >= most:
            left.add(row.id)
        elif (worker_id := placement.take(row.func_path, row.fn_type)) is not None:
            chosen.append((row, worker_id))
        else:
            it.starved |= lane is Lane.WORK
            left.add(row.id)
    left |= holds.end_canceled(it, over) | holds.hold(it, unknown)
    holds.delete_starts(it, drop)
    it.choose(lane, chosen)
    return len(chosen), left


@contextmanager
def beginning(it: Iteration) -> Iterator[None]:
    """Begin what was chosen. What is sent inside the block goes with it, where the driver can, so that it costs no wait of its own."""
    if not any(it.chosen):
        yield
        return
    held = [row.work_id for chosen in it.chosen for row, _ in chosen if row.held]
    if held:
        Work.objects.using(it.db.using).filter(id__in=held).update(held_since=None)
    with it.db.pipeline():
        begun = [(lane, _send(it, lane, chosen)) for lane, chosen in zip(Lane, it.chosen, strict=True) if chosen]
        yield
    for lane, tokens in begun:
        _begin(it, lane, tokens())


def _send(it: Iteration, lane: Lane, chosen: list[tuple[Due, int]]) -> Callable[[], dict[int, int]]:
    # Those of one segment are as late as each other.
    it.counts[lane].start(Counter(row.segment for row, _ in chosen), it.now_ms)
    return it.db.begin_runs(it.pool, lane, [Start(row.id, row.work_id, row.segment, worker_id) for row, worker_id in chosen], it.now_ms)


def _begin(it: Iteration, lane: Lane, tokens: dict[int, int]) -> None:
    chosen = it.chosen[lane]
    started, kinds = it.db.moment(it.now_ms), {kind.value: kind for kind in FnType}
    lags = [lag_ms(row.segment, it.now_ms) for row, _ in chosen]
    for (row, worker_id), lag in zip(chosen, lags, strict=True):
        token = tokens[row.id]
        it.started.append(Running(token, row.work_id, lane, worker_id, row.func_path, it.now_ms))
        it.runs.setdefault(worker_id, []).append(
            Run(
                token,
                row.work_id,
                it.pool,
                kinds[row.fn_type or ""],
                row.func_path,
                row.name,
                row.arguments,
                row.attempts,
                bool(row.has_callback),
                bool(row.retryable),
                started,
                row.timeout_ms,
                row.trace or "",
                lag,
            )
        )
    if it.tells("INFO"):
        for (row, _), lag in zip(chosen, lags, strict=True):
            traced = tracing.told(row.trace or "")
            it.emit("started", "INFO", work_id=row.work_id, name=row.name, attempt=row.attempts + 1, lag_ms=lag, **traced)
