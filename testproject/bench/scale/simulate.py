"""A simulation of one shard, event by event: enqueuers, leader, server, log, and processes that run functions.

All shards are alike, so one is simulated and its rates are multiplied. Every work has a number: none may be lost or run twice. Left out:
failures, retries, callbacks, the look at all running rows each ten seconds, and that an interpreter changes between threads.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from django_workpool.execution.writer import BATCH as WRITTEN
from django_workpool.loop.completions import BATCH as RETIRED
from django_workpool.loop.status import LASTING

from .constants import BATCH, Constants
from .devices import Cores, Hints, Log
from .model import MB, US, Fleet, wall
from .parts import Result, Worker

#: Works that may wait before whoever enqueues has to wait, too: a backlog that grows tells nothing more.
BACKLOG = 4 * BATCH
#: Transactions that may come at once.
BURST = 4
#: How much more than can be carried is enqueued at most.
FLOOD = 1.2
#: The share of the time that is not looked at, at first.
WARM = 0.3
#: Seconds of a simulation, at least and at most.
SHORT, LONG = 0.3, 10.0


class Simulation:
    """One shard.

    Args:
        constants: What the parts cost.
        fleet: What is asked of what.
        seed: Of the times at which works are enqueued.
        works: About so many are enqueued.
    """

    def __init__(self, constants: Constants, fleet: Fleet, *, seed: int = 1, works: int = 10_000) -> None:
        self.c, self.fleet, self.n = constants, fleet, fleet.processes
        carried = wall(constants, fleet)[1] / fleet.shards
        #: Works that are enqueued a second. Whoever has to wait does not come in a flood afterwards.
        self.rate = min(fleet.demand / fleet.shards, FLOOD * carried)
        #: Seconds that a microsecond of Python takes.
        self.slow = US / fleet.speed(constants)
        self.random = random.Random(seed)
        seconds = min(max(works / carried, SHORT), LONG)
        self.begin, self.end = WARM * seconds + fleet.duration, seconds + 2 * fleet.duration
        self.cores = Cores(int(constants.server_cores))
        self.log = Log(constants.flush_us * US, constants.wal_mb_s * MB)
        self.hints = Hints(self.cores, constants.signal_us * US, constants.signal_again_us * US, constants.wake_server_us * US)
        self.workers = [Worker() for _ in range(self.n)]
        self.result = Result()
        #: When each work was committed, those that are due, those that have ended unseen by the loop, and who runs which.
        self.committed: list[float] = []
        self.due: deque[int] = deque()
        self.completed: deque[int] = deque()
        self.worker_of: dict[int, int] = {}
        #: Enqueued and not started; whether that is too much.
        self.waiting, self.held = 0, False
        self.iterates = self.heard = False
        self.full = self.next_worker = 0
        self.left_of_chunk = fleet.chunk
        self.led, self.offered, self.retired, self.batches = 0.0, 0, 0, [0, 0]
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Have something called at a time, with the time."""
        self._number += 1
        heappush(self._events, (when, self._number, call, args))

    def run(self) -> Result:
        """Simulate until all that was enqueued has ended."""
        self.at(0.0, self.enqueue)
        self.at(0.0, self.pulse)
        self.at(self.begin, self.count, -1)
        self.at(self.end, self.count, 1)
        while self._events:
            now, _, call, args = heappop(self._events)
            call(now, *args)
        result = self.result
        result.carried = self.retired / (self.end - self.begin) * self.fleet.shards
        result.offered = self.offered / (self.end - self.begin) * self.fleet.shards
        result.leader = self.led / (self.end - self.begin)
        result.batch = self.batches[1] / max(1, self.batches[0])
        # What still waits for a core at the end has been counted, too.
        result.cores = min(result.cores, self.cores.n)
        result.latencies.sort()
        return result

    def count(self, now: float, sign: int) -> None:
        """Count what was used from the begin to the end of the time that counts."""
        window = (self.end - self.begin) * sign
        self.result.cores += self.cores.busy / window
        self.result.wal_mb_s += self.log.bytes / MB / window
        self.result.hints_s += self.hints.sent / window

    # Whoever enqueues, and the pulses ---------------------------------------------------------------------------

    def enqueue(self, now: float) -> None:
        """Enqueue a batch, and come back for the next one."""
        if now >= self.end:
            return
        if self.waiting >= BACKLOG + BURST * self.fleet.enqueue_batch:
            self.held = self.result.held_back = True
            return
        size = self.fleet.enqueue_batch
        self.waiting += size
        self.offered += size if now >= self.begin else 0
        done = self.cores.serve(now, (self.c.enqueue_fixed_us + size * self.c.enqueue_work_us) * US)
        self.at(done, self.commit, size * self.c.enqueue_wal, self.enqueued, size)
        self.at(now + self.random.gammavariate(size, 1 / self.rate), self.enqueue)

    def commit(self, now: float, size: float, then: Callable[..., None], *args: Any) -> None:
        """Go on when a transaction is durable."""
        self.at(self.log.commit(now, size), then, *args)

    def enqueued(self, now: float, size: int) -> None:
        """Take a batch that is committed, and tell the loop."""
        first = len(self.committed)
        self.committed += [now] * size
        self.result.runs += [0] * size
        self.result.ends += [0] * size
        self.due.extend(range(first, first + size))
        self.kick(now)

    def kick(self, now: float) -> None:
        """Wake the loop, unless it has said that it goes on by itself."""
        if self.full < LASTING:
            self.at(self.hints.send(now, self.c.notify_us * US, self.fleet.listeners(1))[1], self.hear)

    def pulse(self, now: float) -> None:
        """Have the next process beat and look at the others; each does so once a second."""
        if now < self.end:
            self.cores.serve(now, (self.c.pulse_us + self.n * self.c.pulse_row_us) * US)
            self.log.commit(now, 0)
            self.at(now + 1 / self.n, self.pulse)

    # The leader -------------------------------------------------------------------------------------------------

    def hear(self, now: float) -> None:
        """Iterate now, or once more after this iteration."""
        self.heard = True
        if not self.iterates:
            self.iterates = True
            self.iterate(now)

    def iterate(self, now: float) -> None:
        """Iterate as soon as this process's functions let the loop have the interpreter."""
        self.at(max(now, self.workers[0].python.free_at), self.begin_iteration)

    def begin_iteration(self, now: float) -> None:
        """Begin an iteration: what has ended makes room, what is due takes it."""
        self.heard = False
        c = self.c
        ended = [self.completed.popleft() for _ in range(min(RETIRED, len(self.completed)))]
        numbers = [self.worker_of.pop(work) for work in ended]
        for number in numbers:
            self.workers[number].running -= 1
        started: list[int] = []
        while self.due and len(started) < BATCH and self.place(self.due[0]):
            started.append(self.due.popleft())
        self.full = self.full + 1 if len(started) == BATCH else 0
        # Half of what a work costs here is its start, half its end.
        numbers += [self.worker_of[work] for work in started]
        works, own = len(numbers) / 2, numbers.count(0) / 2
        alone = own == works
        python = c.leader_own_iteration_us if alone else c.leader_other_iteration_us
        python += self.n * c.leader_worker_us + own * c.leader_own_work_us + (works - own) * c.leader_other_work_us
        server = c.server_own_iteration_us if alone else c.server_other_iteration_us
        server += own * c.server_own_work_us + (works - own) * c.server_other_work_us
        wal = works * c.run_own_wal + (own * c.archive_wal if self.fleet.archive else 0.0)
        self.at(self.workers[0].python.serve(now, python * self.slow), self.write_down, now, server, wal, started, ended)

    def place(self, work: int) -> bool:
        """Assign a work to the process that comes next of those that have room; return False if none has."""
        if self.fleet.stays and self.workers[0].running < self.c.capacity:
            self.workers[0].running += 1
            self.worker_of[work] = 0
            return True
        for _ in range(self.n + 1):
            worker = self.workers[self.next_worker]
            if self.left_of_chunk and worker.running < self.c.capacity:
                self.left_of_chunk -= 1
                worker.running += 1
                self.worker_of[work] = self.next_worker
                return True
            self.next_worker, self.left_of_chunk = (self.next_worker + 1) % self.n, self.fleet.chunk
        return False

    def write_down(self, now: float, began: float, server: float, wal: float, started: list[int], ended: list[int]) -> None:
        """Let the server do what the iteration asks for."""
        self.at(self.cores.serve(now, server * US), self.commit, wal, self.hand_over, began, started, ended)

    def hand_over(self, now: float, began: float, started: list[int], ended: list[int]) -> None:
        """Give the works that have been started to their processes."""
        for work in ended:
            self.result.ends[work] += 1
        self.retired += len(ended) if self.begin <= now < self.end else 0
        self.batches = [self.batches[0] + bool(started), self.batches[1] + len(started)]
        self.waiting -= len(started)
        if self.held:
            self.held = False
            self.at(now, self.enqueue)
        own = [work for work in started if self.worker_of[work] == 0]
        if own:
            ends = self.execute(now, self.workers[0], own, 0.0, 0.0)
            self.at(ends + self.fleet.duration, self.come_home, own)
        others = {self.worker_of[work] for work in started} - {0}
        for work in started:
            if self.worker_of[work]:
                self.workers[self.worker_of[work]].assigned.append(work)
        through = now
        if others:
            sent, heard = self.hints.send(now, self.c.notify_us * US, self.fleet.listeners(len(others)))
            self.at(heard, self.wake, sorted(others))
            through = sent + self.c.notify_python_us * self.slow
        self.at(through, self.look_again, began)

    def look_again(self, now: float, began: float) -> None:
        """Iterate again if there is anything to do."""
        self.led += max(0.0, min(now, self.end) - max(began, self.begin))
        if self.heard or self.completed or (self.due and len(self.worker_of) < self.n * self.c.capacity):
            self.iterate(now)
        else:
            self.iterates = False

    def come_home(self, now: float, works: list[int]) -> None:
        """Take the ends of works of the leader's own process: it is told without a hint."""
        self.completed.extend(works)
        self.hear(now)

    # The other processes ----------------------------------------------------------------------------------------

    def execute(self, now: float, worker: Worker, works: Sequence[int], fixed: float, each: float) -> float:
        """Begin the functions one after the other; return when the last one has had the interpreter."""
        step = (each + self.c.exec_us) * self.slow
        begins, ends = worker.python.serve_at(now, fixed * self.slow + len(works) * step)
        for number, work in enumerate(works):
            self.result.runs[work] += 1
            if begins >= self.begin:
                self.result.latencies.append(begins + fixed * self.slow + number * step - self.committed[work])
        return ends

    def wake(self, now: float, numbers: list[int]) -> None:
        """Have processes look for what is assigned to them."""
        for number in numbers:
            self.fetch(now, self.workers[number])

    def fetch(self, now: float, worker: Worker) -> None:
        """Fetch what is assigned to a process; one fetch at a time."""
        if worker.fetches or not worker.assigned:
            return
        worker.fetches, works, worker.assigned = True, worker.assigned, []
        server = self.c.fetch_server_fixed_us + len(works) * self.c.fetch_server_work_us
        self.at(self.cores.serve(now, server * US), self.fetched, worker, works)

    def fetched(self, now: float, worker: Worker, works: list[int]) -> None:
        """Run what was fetched."""
        worker.fetches = False
        ends = self.execute(now, worker, works, self.c.fetch_python_fixed_us, self.c.fetch_python_work_us)
        self.at(ends + self.fleet.duration, self.bring_home, worker, works)
        self.fetch(now, worker)

    def bring_home(self, now: float, worker: Worker, works: list[int]) -> None:
        """Give what has ended to the writer."""
        worker.ended.extend(works)
        if not worker.writes:
            self.write(now, worker)

    def write(self, now: float, worker: Worker) -> None:
        """Complete a batch."""
        worker.writes = bool(worker.ended)
        if worker.ended:
            works = [worker.ended.popleft() for _ in range(min(WRITTEN, len(worker.ended)))]
            python = self.c.complete_python_fixed_us + len(works) * self.c.complete_python_work_us
            self.at(worker.python.serve(now, python * self.slow), self.complete, worker, works)

    def complete(self, now: float, worker: Worker, works: list[int]) -> None:
        """Let the server complete a batch."""
        server = self.c.complete_server_fixed_us + len(works) * self.c.complete_server_work_us
        wal = self.c.run_other_wal - self.c.run_own_wal + (self.c.archive_wal if self.fleet.archive else 0.0)
        self.at(self.cores.serve(now, server * US), self.commit, len(works) * wal, self.written, worker, works)

    def written(self, now: float, worker: Worker, works: list[int]) -> None:
        """Tell the loop that a batch has ended."""
        self.completed.extend(works)
        self.kick(now)
        self.write(now, worker)
