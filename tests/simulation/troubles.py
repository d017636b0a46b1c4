"""What goes wrong with processes: they die, are stopped, cut off and told to end."""

from typing import TYPE_CHECKING

from django_workpool.models import InternalState
from django_workpool.types import FnType, Run

from . import ending
from .clock import dice
from .crashes import Violation
from .mains import Main
from .network import Simulated

if TYPE_CHECKING:
    from .world import World


class Troubles:
    """The troubles of one history, those at commits left out."""

    def __init__(self, world: "World") -> None:
        self.world = world
        #: Whether a process is to be cut off while it runs something.
        self.cuts = False
        #: Old leaders that were refused.
        self.refused = 0

    def strike(self, what: str = "", pause_ms: float = 0.0, *, of_leader: bool = False) -> None:
        """Let one thing go wrong."""
        living = [main for main in self.world.mains if not main.dead]
        what = what or dice.choice(("die", "die", "pause", "pause", "terminate"))
        if not living:
            self.world.spawn()
            return
        leading = [main for main in living if main.leader.lead.held]
        main = dice.choice(leading or living) if of_leader or dice.random() < 0.6 else dice.choice(living)
        if what == "die":
            main.die()
        elif what == "pause":
            cut_off = not pause_ms and dice.random() < 0.6
            self.stop(main, pause_ms or dice.choice((1_000, 4_000, 9_000)), cut_off)
        elif what == "terminate" and not main.stopping:
            main.do("terminates", main.terminate)

    def stop(self, main: Main, ms: float, cut_off: bool) -> None:
        """Stop a process for a while.

        Where the lead is a lease its session may not outlive that (``cut_off``): then the others take it for dead, and it comes
        back with runs that it has lost.
        """
        if not main.paused and not main.dead:
            main.paused, main.cut_off = True, cut_off and Simulated.leases
            self.world.tell(main.name, "is stopped and cut off" if main.cut_off else "is stopped")
            if main.cut_off:
                Simulated.locks.release(main)
            self.world.later(ms, lambda: self.resume(main))

    def begun(self, main: Main, run: Run) -> None:
        """Take note of a function that has begun: its process may be cut off just now."""
        goes_back = run.retryable or run.fn_type in (FnType.MUTATION, FnType.QUERY)
        if self.cuts and goes_back and not self.world.calm:
            self.cuts = False
            self.stop(main, 13_000, cut_off=True)

    def resume(self, main: Main) -> None:
        """Let a stopped process go on in the middle of what it was about to do."""
        if main.dead or not main.paused:
            return
        self.world.tell(main.name, "goes on")
        main.paused = False
        main.process.watcher.observer.reset()
        before, led = ending.tables(), main.leader.lead.held
        generations = dict(InternalState.objects.values_list("pool", "generation"))
        stale = led and all(generations[pool] != memory.generation for pool, memory in main.leader._memories.items())
        self.world.act(main, "goes on leading", main.go_on_leading)
        if stale:
            self.refused += 1
            if main.leader.lead.held or ending.tables() != before:
                raise Violation(f"{main.name} led on with an old generation")
        deferred, main.deferred = main.deferred, []
        for what, body in deferred:
            main.do(what, body)
