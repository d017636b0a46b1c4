"""Random sequences of everything that can happen to a pool, and what must hold after each step."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from django_workpool import Workpool, call
from django_workpool.complete import complete_many
from django_workpool.exceptions import StaleGeneration, StaleRun
from django_workpool.execution import workers
from django_workpool.loop.context import PAUSED_CALLBACKS, Iteration
from django_workpool.loop.fleet import Placement
from django_workpool.loop.memory import Depth
from django_workpool.models import Archive, Attempt, Globals, PendingStart, RunningWork, RunStatus, Tally, Work, Worker
from django_workpool.types import Attempted, Lane, Outcome, Run
from tests.tallied import counted
from tests.tallied import kept as rows_of
from tests.works.models import Event

from . import functions
from .driver import FAILED, FINAL, RETURNED, STOPPED, SUCCESS, Broken, Deposed, Loop, complete, complete_alone
from .rows import HOT, POOL, USING, left_over, name_of, observe, observe_many, pass_time, snapshot

FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(functions, name) for name in ("act", "act_retried", "act_async", "mutate", "ask")}
CALLBACKS = {"": None, "told": functions.told, "told_at_second": functions.told_at_second, "told_never": functions.told_never}
OUTCOMES = {"success": SUCCESS, "failed": FAILED, "failed for good": FINAL, "returned": RETURNED, "stopped": STOPPED}
MOST = 4
THREADS = 3

indices = st.integers(0, 50)
seconds = st.sampled_from([0, 0, 1, 5, 60])
batches = st.fixed_dictionaries(
    {
        "func": st.sampled_from(sorted(FUNCTIONS)),
        "callback": st.sampled_from(["", "", "told", "told", "told_at_second", "told_never"]),
        "priority": st.sampled_from([-5, 0, 0, 5]),
        "delay": st.sampled_from([None, None, None, timedelta(seconds=20)]),
        "count": st.sampled_from([1, 2, 3]),
    }
)


@dataclass
class Accepted:
    """A work that the pool has taken."""

    callback: str
    #: What it ended as, when that was first seen: (kind, value, error, attempts).
    end: tuple[Any, ...] | None = None


@dataclass
class Given:
    """A run that was handed to a worker."""

    run: Run
    worker_id: int
    #: Whether a completion of it was taken: every later one is refused.
    completed: bool = False


@dataclass
class Seen:
    """What happened, for the invariants."""

    works: dict[UUID, Accepted] = field(default_factory=dict)
    runs: list[Given] = field(default_factory=list)
    deposed: list[Deposed] = field(default_factory=list)


class PoolMachine(RuleBasedStateMachine):
    """The acts of the contract, in any order.

    There are few rules with many forms, as each rule is chosen about as often as any other. None has a precondition: what can
    be done depends on the time a little, and Hypothesis takes that for a fault.
    """

    @initialize(limit=st.integers(0, MOST), first=batches)
    def begin(self, limit: int, first: dict[str, Any]) -> None:
        for model in (*HOT, Attempt, Archive, Worker, Event, Tally):
            model._default_manager.all().delete()
        RunStatus.objects.update(state="idle", segment=0, saturated=False)
        functions.calls.clear()
        self.loop = Loop(limit=limit, threads=THREADS)
        self.alive = [self.loop.worker]
        self.seen = Seen()
        self.enqueue(first)

    # What users do ----------------------------------------------------------------------------------------------

    @rule(batch=batches)
    def enqueue(self, batch: dict[str, Any]) -> None:
        pool = Workpool().using(on_complete=CALLBACKS[batch["callback"]], priority=batch["priority"], delay=batch["delay"])
        for work_id in pool.enqueue_many(FUNCTIONS[batch["func"]], [call(7)] * batch["count"]):
            self.seen.works[work_id] = Accepted(batch["callback"])

    @rule(what=st.sampled_from(["cancel", "cancel", "cancel", "cancel_all", "configure"]), index=indices)
    def user(self, what: str, index: int) -> None:
        if what == "cancel_all":
            Workpool().cancel_all()
        elif what == "configure":
            Workpool().configure(max_parallelism=index % (MOST + 1))
        else:
            work_id = list(self.seen.works)[index % len(self.seen.works)]
            state = observe(work_id)
            live = state.attempts is not None and not state.canceled and not state.pending_cancelation and not state.covered
            assert Workpool().cancel(work_id) is live

    # What workers do --------------------------------------------------------------------------------------------

    @rule(index=indices, outcome=st.sampled_from(sorted(OUTCOMES)), where=st.sampled_from(["batch", "alone", "loop", "loop"]))
    def complete(self, index: int, outcome: str, where: str) -> None:
        """Any run that ever was, whether it still owns its work, has been completed, or its worker was seen dead."""
        if self.seen.runs:
            given = self.seen.runs[-1 - index % len(self.seen.runs)]
            if where == "loop" and given.run.fn_type != "callback" and not given.run.has_callback:
                self.settle_in_loop(given, OUTCOMES[outcome])
            else:
                self.bring_home(given, OUTCOMES[outcome], where == "alone")

    def settle_in_loop(self, given: Given, outcome: Outcome) -> None:
        """Let the next iteration settle a result, as that of a run in the leader's process; what it leaves, the writer refuses."""
        owned = given in self.owning()
        self.loop.results = left = [Attempted(given.run, outcome, "here")]
        try:
            it = self.step(Depth.EXACT)
        except StaleRun:
            self.loop.results = []
            assert not owned
        else:
            assert bool(it.succeeded or it.settled) is owned
            left = it.passed_over
        assert complete_many(USING, left) == []
        given.completed = True

    @rule(indices=st.lists(indices, min_size=1, max_size=4, unique=True), outcome=st.sampled_from(sorted(OUTCOMES)))
    def complete_some(self, indices: list[int], outcome: str) -> None:
        """Those that do own their work."""
        own = self.owning()
        for given in [own[index] for index in indices if index < len(own)]:
            self.bring_home(given, OUTCOMES[outcome], alone=False)

    def owning(self) -> list[Given]:
        """Return the runs that still own their work."""
        tokens = set(RunningWork.objects.values_list("id", flat=True))
        return [given for given in self.seen.runs if not given.completed and given.run.token in tokens]

    def bring_home(self, given: Given, outcome: Outcome, alone: bool) -> None:
        """Complete a run; callback work is really called."""
        owned = given in self.owning()
        before = None if owned else snapshot()
        if given.run.fn_type == "callback":
            self.loop.perform(given.run)
        else:
            assert ((complete_alone if alone else complete)(given.run, outcome) is not None) is owned
        assert owned or snapshot() == before
        given.completed = True

    # What the leader does ---------------------------------------------------------------------------------------

    @rule(depth=st.sampled_from([Depth.EXACT, Depth.BUFFER, Depth.BEHIND, Depth.BEHIND]), passed=seconds)
    def iterate(self, depth: Depth, passed: int) -> None:
        pass_time(passed * 10)
        self.step(depth)

    @rule(passed=seconds)
    def settle(self, passed: int) -> None:
        """Go on until the loop would sleep."""
        pass_time(passed * 10)
        for _ in range(200):
            if not self.step(Depth.BEHIND).again:
                return
        raise AssertionError("the loop does not come to rest")

    @rule(
        what=st.sampled_from(["failed iteration", "leader lost", "deposed leader", "worker lost", "worker lost", "worker comes", "burial"]),
        index=indices,
    )
    def trouble(self, what: str, index: int) -> None:
        if what == "failed iteration":
            self.fails(lambda: self.loop.iterate(fail=True), Broken)
        elif what == "leader lost":
            self.seen.deposed.append(self.loop.take_over())
        elif what == "deposed leader" and self.seen.deposed:
            self.fails(self.seen.deposed[index % len(self.seen.deposed)].iterate, StaleGeneration)
        elif what == "worker lost" and self.alive:
            # Seen dead; whether it really is, or goes on completing, is another matter.
            self.loop.kill(self.alive.pop(index % len(self.alive)))
        elif what == "worker comes" and len(self.alive) < 3:
            self.alive.append(self.loop.add_worker())
        elif what == "burial":
            # As the leader does with dead workers on which nothing runs.
            for worker_id in self.loop.fleet.dead - set(RunningWork.objects.values_list("worker_id", flat=True)):
                workers.unregister(USING, worker_id)

    def fails(self, act: Callable[[], object], error: type[Exception]) -> None:
        """An iteration that fails so, and has changed nothing."""
        before = snapshot()
        try:
            act()
        except error:
            assert snapshot() == before
        else:
            raise AssertionError(f"not {error.__name__}")

    def step(self, depth: Depth) -> Iteration:
        """Run one iteration, and hold its starts to the limit in force and to the workers' room."""
        limit = Globals.objects.values_list("max_parallelism", flat=True).get(pool=POOL)
        earlier = set(RunningWork.objects.values_list("id", flat=True))
        it = self.loop.iterate(depth)
        rows = list(RunningWork.objects.values_list("id", "lane", "worker_id"))
        for lane, most in ((Lane.WORK, limit), (Lane.CALLBACK, limit or PAUSED_CALLBACKS)):
            fresh = [token for token, of, _ in rows if of == lane and token not in earlier]
            assert not fresh or sum(of == lane for _, of, _ in rows) <= most
        assert {one.token for one in self.loop.memory.running.values()} == {token for token, *_ in rows}
        given = [(worker, run) for worker, runs in it.runs.items() for run in runs]
        assert {run.token for _, run in given} == {token for token, *_ in rows} - earlier
        assert {worker for worker, _ in given} <= {one.id for one in self.alive}
        self.seen.runs += [Given(run, worker) for worker, run in given]
        rooms = {(worker.id, room): most for worker in self.loop.fleet.workers.values() for room, most in worker.capacity.items()}
        assert all(0 <= count <= rooms.get(place, THREADS) for place, count in self.loop.fleet.load.items())
        if depth is Depth.BEHIND and not it.again:
            self.nothing_startable_waits(it)
        return it

    def nothing_startable_waits(self, it: Iteration) -> None:
        """Whatever is due and has not been started had no room, or is being canceled."""
        placement = Placement(self.loop.fleet, POOL)
        if not (due := list(PendingStart.objects.filter(segment__lte=it.now))):
            return
        states, works = observe_many(row.work_id for row in due), Work.objects.in_bulk([row.work_id for row in due])
        for row in due:
            state, lane = states[row.work_id], Lane(row.lane)
            spare = it.lane_limit(lane) - self.loop.memory.count(lane)
            if spare > 0 and not (lane is Lane.WORK and (state.covered or state.pending_cancelation)):
                assert placement.take((work := works[row.work_id]).func_path, work.fn_type) is None

    # What must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def rows_are_as_the_contract_says(self) -> None:
        """Each work is in a state of the table, its end is final, its attempts have no gaps, its callback had its effect once at most."""
        states = observe_many()
        for work_id, state in states.items():
            assert name_of(state) is not None, (work_id, state)
        assert set(self.seen.works) <= set(states)
        attempts = {work_id: state.attempts for work_id, state in states.items() if state.attempts is not None}
        kept = {row[0]: row[1:] for row in Archive.objects.values_list("id", "kind", "value", "error", "attempts")}
        for work_id, end in kept.items():
            accepted = self.seen.works.setdefault(work_id, Accepted(""))
            accepted.end = accepted.end or end
            assert accepted.end == end
            attempts[work_id] = end[-1] - (end[0] == "success")
        assert {work_id for work_id, accepted in self.seen.works.items() if accepted.end} == set(kept)
        numbers: defaultdict[UUID, list[int]] = defaultdict(list)
        for work_id, number in Attempt.objects.order_by("number").values_list("work_id", "number"):
            numbers[work_id].append(number)
        assert {work_id: numbers[work_id] for work_id in attempts} == {work_id: list(range(1, n + 1)) for work_id, n in attempts.items()}
        effects = list(Event.objects.values_list("key", flat=True))
        assert len(effects) == len(set(effects))
        assert set(effects) <= set(map(str, kept)), "called before the end"
        assert counted() == rows_of(USING)

    def teardown(self) -> None:
        """Let everything end: no work is lost, none ends twice, and every callback has been called."""
        if not hasattr(self, "seen"):
            return
        Workpool().configure(max_parallelism=1000)
        self.loop.threads = 1000
        self.alive.append(self.loop.add_worker())
        for _ in range(100):
            self.settle(passed=10_000)
            self.rows_are_as_the_contract_says()
            if not left_over():
                break
            for given in self.owning():
                self.bring_home(given, SUCCESS, alone=given.run.has_callback)
        assert left_over() == {}
        self.rows_are_as_the_contract_says()
        fates = {"": "", "told": "done", "told_at_second": "done", "told_never": "failed"}
        effects = set(Event.objects.values_list("key", flat=True))
        for kept in Archive.objects.all():
            fate = fates[self.seen.works[kept.id].callback]
            assert (kept.callback, str(kept.id) in effects) == (fate, fate == "done"), (kept.kind, kept.callback_error)
        exhausted = set(Archive.objects.filter(fn_type="callback", kind="failed").values_list("callback_of", flat=True))
        assert exhausted == {work_id for work_id, accepted in self.seen.works.items() if accepted.callback == "told_never"}
