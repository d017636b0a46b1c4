"""One simulated ``workpool_main``: the real Process and its parts, without their threads."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django_workpool.database import Hint, database
from django_workpool.execution import workers
from django_workpool.loop import status
from django_workpool.models import RunStatus
from django_workpool.runner import drain
from django_workpool.runner.leader import Leader
from django_workpool.runner.process import Options, Process
from django_workpool.runner.watcher import Watcher
from django_workpool.types import Attempted, LoopState

from .clock import clock, dice
from .crashes import LOST, Violation
from .network import Simulated, SimulatedWatch
from .parts import Clerk, Ear, Executors

if TYPE_CHECKING:
    from .world import World

USING = "default"
#: Milliseconds that a process gives its functions after SIGTERM.
GRACE_MS = 1_500.0


class Main:
    """One process: it leads or stands by, watches, and runs functions."""

    def __init__(self, world: "World", number: int, threads: int) -> None:
        self.world, self.name = world, f"main{number}"
        self.started = self.dead = self.paused = self.cut_off = self.stopping = False
        #: What would have happened while it is paused.
        self.deferred: list[tuple[str, Callable[[], None]]] = []
        #: Whether it is about to find that something has changed.
        self.looks = False
        self._lead_at = float("inf")
        self._writes = False
        process = self.process = Process(USING, Options(threads=threads, pools=None, drain=False, grace=GRACE_MS / 1000))
        clerk: Any = Clerk()
        process.clerk = clerk
        process.id, intake = uuid.UUID(int=dice.getrandbits(128)), process.intake
        executors: Any = Executors(self)
        intake.worker = intake.performer.worker = self.name
        intake.executors, intake.performer.write = executors, self._write
        write: Any = self._write
        intake.writer.put, self._put = write, intake.writer.put  # type: ignore[method-assign]
        self.intake = intake
        self.leader = process.leader = Leader(USING, process.id, intake)
        ear: Any = Ear(self)
        self.leader._ear = ear
        self._trouble = self.leader._trouble
        trouble: Any = self._take_trouble
        self.leader._trouble = trouble  # type: ignore[method-assign]
        self.watch = SimulatedWatch(self)

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register; the first pulse makes it a worker that others see alive, then the loop begins."""
        process, intake = self.process, self.intake
        worker_id = process._patiently(process._register)
        process.watcher = Watcher(USING, self.leader, intake.submit, intake.assignments.begin_fetch, process._register, worker_id)
        self.started = True
        self.soon(0.2, "pulse", self._pulse)
        self.soon(0.3, "hears", lambda: _tell_all(self))

    def soon(self, ms: float, what: str, body: Callable[[], None]) -> None:
        """Do something as this process after a while."""
        self.world.later(ms, lambda: self.do(what, body))

    def do(self, what: str, body: Callable[[], None]) -> None:
        """Do it now, unless it is dead; while it is paused, do it later."""
        if self.paused and not self.dead:
            self.deferred.append((what, body))
        elif not self.dead:
            self.world.act(self, what, body)

    @property
    def begun(self) -> set[int]:
        """The tokens of the functions that it is running."""
        executors: Any = self.intake.executors
        return set(executors.begun)

    def die(self) -> None:
        """End without a word."""
        if not self.dead:
            self.world.tell(self.name, "is dead")
            self.dead = True
            self.process.end.set()
            Simulated.locks.release(self)
            self.world.died()

    # The loop's thread ------------------------------------------------------------------------------------------

    def lead_in(self, ms: float) -> None:
        """Let the loop go on after ``ms``, or earlier if that was already wanted."""
        at = clock.ms + max(0.2, ms)
        if at < self._lead_at and not self.dead:
            self._lead_at = at
            self.world.later(at - clock.ms, lambda: self._lead(at))

    def _lead(self, at: float) -> None:
        if at == self._lead_at:
            self.do("leads", self._loop)

    def _loop(self) -> None:
        """Go through the body of the leader's loop once, as its thread does."""
        self._lead_at = float("inf")
        leader = self.leader
        with self._thread():
            leader.watchdog.turn(leads=leader.lead.held, fleet=leader.fleet, dead=leader.dead, lead=leader.outlook.lead)
            if leader.hand_over_asked.is_set() and leader.others:
                leader.results.detach()
                leader.lead.hand_over()
                leader._ear.wait(1.0)
            elif not leader.lead.held and not leader._take_lead():
                leader._stand_by()
            else:
                leader._take_hints(self.heard())
                leader._lead_once()
            if self._lead_at == float("inf"):
                # It has not slept, and goes on; each round takes a moment.
                self.lead_in(dice.uniform(0.5, 3))

    def go_on_leading(self) -> None:
        """Go on where a leader is stopped between two iterations: with its old memory, and without a look at its lease."""
        with self._thread():
            for pool, memory in list(self.leader._memories.items()):
                if self.leader.lead.held:
                    newer = RunStatus.objects.filter(pool=pool, generation__gt=memory.generation).exists()
                    if newer and dice.random() < 0.5:
                        # It was stopped between an iteration and what it says of it.
                        status.settle(self.leader.db, memory, (LoopState.RUNNING.value, 0, False))
                    memory.rewind()
                    self.leader._iterate_guarded(pool)

    @contextmanager
    def _thread(self) -> Iterator[None]:
        """What the loop's thread and its supervision do when it fails."""
        try:
            yield
        except BaseException:
            self.leader.lead.step_down()
            self.leader.results.detach()
            self.lead_in(dice.uniform(200, 1_000))
            raise
        finally:
            self._write_soon()

    def _take_trouble(self, pool: str, error: Exception) -> None:
        """Let the leader handle an error that was made on purpose; no other may come."""
        if LOST not in str(error):
            self.world.crashes.fail(Violation(f"the loop failed: {type(error).__name__}: {error}"))
        self._trouble(pool, error)

    def heard(self) -> set[Hint]:
        """Take what has come while the loop was asleep."""
        ear: Any = self.leader._ear
        hints, ear.hints = ear.hints, set()
        return set(hints)

    # The watch's thread -----------------------------------------------------------------------------------------

    def _pulse(self) -> None:
        watcher = self.process.watcher
        self.soon(dice.uniform(1_800, 2_800), "pulse", self._pulse)
        try:
            watcher._pulse(self.watch)
        except Exception:
            # The thread begins again, and knows nothing of the time between.
            watcher.observer.reset()
            raise

    def see(self) -> None:
        """Find that something has changed."""
        self.looks = False
        self.process.watcher._hear(Hint("changed"))

    # The writer's thread ----------------------------------------------------------------------------------------

    def _write(self, attempted: Attempted) -> None:
        self._put(attempted)
        self._write_soon()

    def _write_soon(self) -> None:
        """Let the writer's thread write, if there is anything for it: what comes while the loop leads is the loop's."""
        if self.intake.writer.waits and not self._writes:
            self._writes = True
            self.soon(dice.uniform(0.1, 40), "writes", self._drain)

    def _drain(self) -> None:
        self._writes = False
        database(USING).private_connection("writer")
        try:
            while self.intake.writer.waits:
                self.intake.writer.turn()
        finally:
            self._write_soon()

    # The end ----------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Take SIGTERM: the same steps as ``Process._stop``, spread over time."""
        process, leads, until = self.process, self.leader.lead.held, clock.ms + GRACE_MS
        self.stopping = True
        self.intake.refuse()
        self.soon(100, "stops", lambda: self._end_functions(until))
        process.watcher.accepting = False
        self.leader.hand_over_asked.set()
        workers.stop_accepting(USING, process.watcher.worker_id)
        self.intake.told(within=0.1 if leads else 1.1)
        self.leader.hear(Hint("lead"))

    def _end_functions(self, until: float) -> None:
        intake = self.intake
        if not intake.idle and clock.ms < until:
            self.soon(100, "stops", lambda: self._end_functions(until))
            intake.return_waiting()
            return
        self.soon(100, "stops", lambda: self._retire(3))
        intake.return_waiting(all_of_them=True)
        intake.submit(workers.assigned(USING, self.process.watcher.worker_id))
        intake.interrupt()
        intake.writer.detach()
        self._drain()

    def _retire(self, looks: int) -> None:
        if looks and self.leader.lead.held and drain.has_completions(USING):
            self.soon(100, "stops", lambda: self._retire(looks - 1))
            self.leader.hear(Hint("changed"))
            return
        self.soon(dice.uniform(1, 200), "stops", self._leave)
        self.process._leave()

    def _leave(self) -> None:
        process, led = self.process, self.leader.lead.held
        self.soon(1, "ends", self.die)
        process.end.set()
        self.leader.lead.hand_over()
        if led:
            workers.unregister(USING, process.watcher.worker_id)


def _tell_all(main: Main) -> None:
    """Whoever waits for a worker learns that one has come; its own loop begins with that."""
    Simulated.broadcast([Hint("lead")])
    main.leader.hear(Hint("lead"))
