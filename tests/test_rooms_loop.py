"""Single rooms of the loop and of the liveness watch, without rows: backoff, windows of death, places in workers, cursors."""

import time
import uuid
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from django_workpool import RetryBehavior
from django_workpool.execution.liveness import GAP, WINDOW, WINDOW_WITHOUT_LOCKS, Observer
from django_workpool.loop.fleet import CALLBACK_CAPACITY, Fleet, Placement, Room, WorkerInfo
from django_workpool.loop.memory import BEGINNING, BEHIND_EVERY, BUFFER, BUFFER_EVERY, Cursor, Depth, PoolMemory, Running
from django_workpool.loop.retries import backoff_ms
from django_workpool.types import MAX_ATTEMPTS, MAX_BACKOFF, Lane

# Backoff ----------------------------------------------------------------------------------------------------------------


def test_the_default_wait_begins_with_a_quarter_of_a_second_and_doubles() -> None:
    assert [backoff_ms(RetryBehavior(), attempts, 1.0) for attempts in (1, 2, 3, 4)] == [250, 500, 1000, 2000]


def test_the_jitter_is_a_factor_from_a_half_to_one_and_a_half() -> None:
    waits = [backoff_ms(RetryBehavior(), 3) for _ in range(300)]
    assert 500 <= min(waits) < 600
    assert 1400 < max(waits) < 1500


def test_the_cap_comes_after_the_jitter() -> None:
    behavior = RetryBehavior(initial_backoff=timedelta(seconds=1), max_backoff=timedelta(seconds=1))
    assert backoff_ms(behavior, 1, 1.4) == 1000
    assert backoff_ms(behavior, 1, 0.5) == 500
    assert backoff_ms(RetryBehavior(), 100, 0.5) == 600_000


def test_a_first_wait_of_nothing_stays_nothing() -> None:
    behavior = RetryBehavior(initial_backoff=timedelta(0), base=1e10)
    assert backoff_ms(behavior, 1) == backoff_ms(behavior, MAX_ATTEMPTS) == 0


durations = st.timedeltas(min_value=timedelta(0), max_value=MAX_BACKOFF)


@settings(derandomize=True, database=None, deadline=None)
@given(durations, durations, st.floats(1, 1e10), st.integers(1, MAX_ATTEMPTS), st.floats(0.5, 1.5, exclude_max=True))
def test_a_wait_is_never_negative_longer_than_the_cap_or_an_overflow(
    first: timedelta, cap: timedelta, base: float, attempts: int, jitter: float
) -> None:
    wait = backoff_ms(RetryBehavior(initial_backoff=first, max_backoff=cap, base=base, max_attempts=MAX_ATTEMPTS), attempts, jitter)
    assert 0 <= wait <= cap / timedelta(milliseconds=1)


# Death is observed ------------------------------------------------------------------------------------------------------


def look(observer: Observer, beats: dict[int, Any], held: set[int] | None, start: float, end: float, step: float = 1.0) -> list[set[int]]:
    """Return what each look sees, from ``start`` to before ``end``."""
    looks = []
    while start < end:
        looks.append(observer.observe(beats, held, start))
        start += step
    return looks


def test_a_worker_is_dead_when_its_lock_was_free_and_its_beat_unchanged_for_the_window() -> None:
    observer = Observer()
    assert look(observer, {1: "a"}, set(), 0, WINDOW) == [set()] * int(WINDOW)
    assert observer.observe({1: "a"}, set(), WINDOW) == {1}
    assert observer.observe({1: "a"}, set(), WINDOW + 1) == {1}


def test_a_new_beat_starts_the_window_again() -> None:
    observer = Observer()
    look(observer, {1: "a"}, set(), 0, WINDOW)
    assert observer.observe({1: "b"}, set(), WINDOW) == set()
    assert observer.observe({1: "b"}, set(), WINDOW + 1) == set()
    assert look(observer, {1: "b"}, set(), WINDOW + 2, 2 * WINDOW + 1)[-1] == {1}


def test_while_the_lock_is_held_the_beat_is_not_judged() -> None:
    """A process whose interpreter is blocked for minutes lives."""
    observer = Observer()
    assert look(observer, {1: "a"}, {1}, 0, 300) == [set()] * 300
    last_held = 299
    assert look(observer, {1: "a"}, set(), 300, last_held + WINDOW) == [set()] * int(WINDOW - 1)
    assert observer.observe({1: "a"}, set(), last_held + WINDOW) == {1}


def test_without_locks_the_beat_alone_is_judged_over_a_longer_window() -> None:
    observer = Observer()
    assert set().union(*look(observer, {1: "a"}, None, 0, WINDOW_WITHOUT_LOCKS)) == set()
    assert observer.observe({1: "a"}, None, WINDOW_WITHOUT_LOCKS) == {1}


def test_a_worker_behind_a_pooler_is_judged_by_its_beat_though_others_hold_locks() -> None:
    """It can hold none: to an observer that sees locks it must not look as if it had lost its own."""
    observer = Observer()
    seen = [observer.observe({1: "a", 2: "a"}, set(), second, lockless={2}) for second in range(int(WINDOW_WITHOUT_LOCKS) + 1)]
    assert seen[int(WINDOW)] == {1}
    assert seen[-2:] == [{1}, {1, 2}]


def test_an_observer_that_did_not_look_for_a_while_knows_nothing_of_it() -> None:
    observer = Observer()
    look(observer, {1: "a", 2: "x"}, set(), 0, WINDOW)
    late = WINDOW - 1 + GAP + 0.1
    assert observer.observe({1: "a", 2: "x"}, set(), late) == set()
    assert look(observer, {1: "a", 2: "x"}, set(), late + 1, late + WINDOW)[-1] == set()
    assert observer.observe({1: "a", 2: "x"}, set(), late + WINDOW) == {1, 2}


def test_an_observer_that_reconnected_starts_again() -> None:
    observer = Observer()
    look(observer, {1: "a"}, set(), 0, WINDOW)
    observer.reset()
    assert observer.observe({1: "a"}, set(), WINDOW) == set()
    assert observer.observe({1: "a"}, set(), WINDOW + 1) == set()


def test_workers_that_come_and_go_have_windows_of_their_own() -> None:
    observer = Observer()
    look(observer, {1: "a"}, set(), 0, 3)
    assert look(observer, {1: "a", 2: "b"}, set(), 3, WINDOW + 1)[-1] == {1}
    assert observer.observe({2: "b"}, set(), WINDOW + 1) == set()
    assert observer.observe({1: "a", 2: "b"}, set(), WINDOW + 2) == set()
    assert observer.observe({1: "a", 2: "b"}, set(), WINDOW + 3) == {2}


# Places in workers ------------------------------------------------------------------------------------------------------


def worker(number: int, threads: int = 2, coroutines: int = 2, **changes: Any) -> WorkerInfo:
    return WorkerInfo(
        **{  # type: ignore[arg-type]
            "id": number,
            "name": f"w{number}",
            "process": uuid.uuid4(),
            "capacity": {Room.THREAD: threads, Room.COROUTINE: coroutines, Room.CALLBACK: CALLBACK_CAPACITY},
            "pools": None,
            "functions": {"f": "action", "g": "action:async", "c": "callback"},
            "accepting": True,
        }
        | changes
    )


def fleet_of(*workers: WorkerInfo, own: int | None = None) -> Fleet:
    return Fleet(own=own, workers={one.id: one for one in workers})


def runs_on(number: int, path: str = "f", lane: Lane = Lane.WORK) -> Running:
    return Running(token=1, work_id=uuid.uuid4(), lane=lane, worker_id=number, func_path=path, started_ms=0)


def test_the_worker_with_the_largest_free_share_gets_the_work_and_none_more_than_it_takes() -> None:
    placement = Placement(fleet_of(worker(1, threads=2), worker(2, threads=8)), "p")
    places = [placement.take("f", "action") for _ in range(11)]
    assert (places.count(1), places.count(2), places[-1]) == (2, 8, None)
    assert set(places[:5]) == {1, 2}
    assert not placement.has_room(Lane.WORK) or placement.free(placement.workers[0], Room.COROUTINE) == 2


def test_the_leaders_own_worker_wins_a_tie() -> None:
    assert [Placement(fleet_of(*map(worker, (1, 2, 3)), own=own), "p").take("f", "action") for own in (1, 2, 3)] == [1, 2, 3]


def test_coroutines_callbacks_and_threads_have_room_of_their_own() -> None:
    placement = Placement(fleet_of(worker(1, threads=1, coroutines=3)), "p")
    assert [placement.take("f", "action") for _ in range(2)] == [1, None]
    assert [placement.take("g", "action") for _ in range(4)] == [1, 1, 1, None]
    assert not placement.has_room(Lane.WORK)
    assert [placement.take("c", "callback") for _ in range(CALLBACK_CAPACITY + 1)] == [1] * CALLBACK_CAPACITY + [None]
    assert not placement.has_room(Lane.CALLBACK)


def test_what_runs_takes_room_and_what_this_iteration_has_ended_gives_it() -> None:
    fleet = fleet_of(worker(1, threads=1), worker(2, threads=1))
    running = [runs_on(1), runs_on(2)]
    fleet.recount(running)
    assert Placement(fleet, "p").take("f", "action") is None
    assert Placement(fleet, "p", [running[1]]).take("f", "action") == 2
    fleet.swap(running[:1], [])
    assert Placement(fleet, "p").take("f", "action") == 1


def test_rows_that_are_read_again_replace_what_was_counted() -> None:
    fleet = fleet_of(worker(1), worker(2))
    old, new = [runs_on(1), runs_on(1)], [runs_on(1), runs_on(2), runs_on(2, "g")]
    fleet.recount(old)
    fleet.swap(old, new)
    counted = {place: count for place, count in fleet.load.items() if count}
    assert counted == {(1, Room.THREAD): 1, (2, Room.THREAD): 1, (2, Room.COROUTINE): 1}


def test_only_live_accepting_workers_of_the_pool_that_know_the_function_count() -> None:
    workers = [
        worker(1, accepting=False),
        worker(2, pools=frozenset({"other"})),
        worker(3, functions={}),
        worker(4),
        worker(5, pools=frozenset({"p", "other"})),
    ]
    fleet = fleet_of(*workers)
    fleet.dead.add(4)
    placement = Placement(fleet, "p")
    assert [one.id for one in placement.workers] == [3, 5]
    assert [placement.take("f", "action") for _ in range(3)] == [5, 5, None]
    assert (placement.known("f", "action"), placement.known("nowhere", "action")) == (True, False)
    assert [fleet.is_lost(number) for number in (1, 4, 5, 99)] == [False, True, False, True]


def test_a_function_that_is_of_another_kind_now_is_unknown() -> None:
    """As while a release is deployed that makes a mutation of an action."""
    placement = Placement(fleet_of(worker(1), worker(2, functions={"f": "mutation", "g": "action:async"})), "p")
    assert [placement.take("f", "action") for _ in range(3)] == [1, 1, None]
    assert [placement.take("f", "mutation") for _ in range(3)] == [2, 2, None]
    assert (placement.known("f", "query"), placement.known("g", "action")) == (False, True)


# Cursors ----------------------------------------------------------------------------------------------------------------


def test_a_cursor_reads_from_its_position_the_buffer_before_it_or_the_beginning() -> None:
    cursor = Cursor()
    assert [cursor.start(depth) for depth in Depth] == [BEGINNING] * 3
    cursor.advance((500, 7))
    assert [cursor.start(depth) for depth in (Depth.EXACT, Depth.BUFFER, Depth.BEHIND)] == [(500, 7), (500 - BUFFER, 0), BEGINNING]


def test_a_late_row_does_not_move_a_cursor_back() -> None:
    cursor = Cursor((500, 7))
    cursor.advance((400, 99))
    assert cursor.position == (500, 7)
    cursor.advance((500, 8))
    assert cursor.position == (500, 8)


def test_an_iteration_looks_behind_its_cursors_once_a_second_and_into_the_buffer_more_often() -> None:
    memory = PoolMemory(pool="p", generation=1)
    assert memory.depth() is Depth.BEHIND
    memory.read(Depth.BEHIND)
    assert memory.depth() is Depth.EXACT
    memory.read_buffer -= BUFFER_EVERY
    assert memory.depth() is Depth.BUFFER
    memory.read(Depth.BUFFER)
    memory.read_behind -= BEHIND_EVERY
    assert memory.depth() is Depth.BEHIND
    memory.read(Depth.BEHIND)
    memory.rewind()
    assert memory.depth() is Depth.BEHIND


def test_what_has_been_told_of_is_looked_for_where_it_most_likely_is_and_then_everywhere() -> None:
    memory = PoolMemory(pool="p", generation=1)
    memory.hurries = True
    assert memory.depth() is Depth.BEHIND, "no queue is known yet"
    memory.active = {(0, 0)}
    assert memory.depth() is Depth.EXACT
    memory.read(Depth.EXACT)
    assert memory.next_look(Depth.EXACT) <= time.monotonic(), "at once"
    assert memory.depth() is Depth.BEHIND
    memory.hurries = True
    memory.rewind()
    assert memory.depth() is Depth.BEHIND, "a late commit lies behind the cursor"


def test_works_stay_with_the_leader_as_long_as_they_are_short() -> None:
    memory = PoolMemory(pool="p", generation=1)
    assert not memory.stays, "nothing is known"
    memory.learn([0.0001] * 3)
    assert memory.stays
    memory.learn([0.1])
    assert not memory.stays
