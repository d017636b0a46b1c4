"""The pool's users: they enqueue, cancel and configure, each time in a process of their own."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import transaction

from django_workpool import RetryBehavior, Workpool, call
from django_workpool.periodic import schedule, unschedule
from django_workpool.segments import ceil_segment, floor_segment

from . import functions
from .clock import clock, dice
from .crashes import Violation
from .ledger import Spec

if TYPE_CHECKING:
    from .world import World

PLANS = (["ok"], ["ok"], ["ok"], ["fail"], ["fail", "ok"], ["fail", "fail", "ok"], ["final"], ["fail", "final"])
KINDS: tuple[Any, ...] = (functions.act, functions.act, functions.mutate, functions.ask)
BACKOFF_MS = 400
#: The kind that passes at a commit point at which others do not: most works are of it as long as a crash is aimed there.
PASSING = {
    "complete.complete_many": functions.act,
    "execution.mutations._mutate": functions.mutate,
    "execution.run._query": functions.ask,
}


class ChangedMind(Exception):
    """The caller rolls its transaction back."""


class Callers:
    """What users do in one history."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.number = 0

    def do_something(self) -> None:
        """Do one random thing."""
        acts = [self.enqueue] * 6 + [self.cancel] * 2 + [self.cancel_all, self.configure]
        act = dice.choice(acts)
        self.world.act(self.world.caller, act.__name__, act)

    def enqueue(self) -> None:
        """Enqueue one to three works in a transaction, some of which takes long, or is rolled back."""
        options, func, specs = self._choose(3 if self.world.target in PASSING else dice.choice((1, 1, 1, 2, 3)))
        late = dice.choice((0.0, 0.0, 0.0, 0.0, dice.uniform(0, 3_000)))
        gives_up = dice.random() < 0.08
        pool = Workpool(specs[0].pool)
        for spec in specs:
            self.world.ledger.specs[f"w{spec.n}"] = spec
        try:
            with transaction.atomic():
                # What was inserted a while ago becomes visible with its commit, behind where the loop may have read by then.
                clock.ms -= late
                try:
                    for spec in specs:
                        spec.due = _due(options["delay"])
                        context: dict[str, Any] = {"on_complete_context": spec.n} if spec.callback else {}
                        pool.using(**options, **context, name=f"w{spec.n}").enqueue_many(func, [call(spec.n)])
                finally:
                    clock.ms += late
                if gives_up:
                    raise ChangedMind
        except ChangedMind:
            self.world.tell("caller", f"rolls back {' '.join(f'w{spec.n}' for spec in specs)}")

    def _choose(self, count: int) -> tuple[dict[str, Any], Any, list[Spec]]:
        passing = PASSING.get(self.world.target)
        func = passing if passing and dice.random() < 0.8 else dice.choice(KINDS)
        kind = func.__name__
        retry = RetryBehavior(max_attempts=3, initial_backoff=timedelta(milliseconds=BACKOFF_MS)) if dice.random() < 0.6 else None
        options: dict[str, Any] = {
            "priority": dice.choice((0, 0, 0, 1, -1)),
            "delay": dice.choice((None, None, None, timedelta(milliseconds=dice.randrange(50, 4_000)))),
            # What has one is completed by itself.
            "on_complete": None if passing is functions.act else dice.choice((None, functions.told)),
            "retry": retry if kind == "act" else None,
        }
        pool = dice.choice(self.world.pools)
        specs = []
        for _ in range(count):
            self.number += 1
            n = self.number
            spec = Spec(n, kind, pool, callback=options["on_complete"] is not None)
            if options["retry"]:
                spec.max_attempts, spec.backoff_ms = 3, BACKOFF_MS * 0.5
            functions.stage.plans[n] = dice.choice(PLANS)
            functions.stage.raising[n] = dice.choice((0, 0, 0, 0, 0, 1, 2, 99)) if spec.callback else 0
            specs.append(spec)
        return options, func, specs

    def cancel(self) -> None:
        """Cancel any work that was ever accepted."""
        ledger = self.world.ledger
        labels = [label for label in ledger.ids if label in ledger.specs]
        if labels:
            label = dice.choice(labels)
            live = ledger.is_live(label)
            said = Workpool(ledger.specs[label].pool).cancel(UUID(ledger.ids[label]))
            if said is not live:
                raise Violation(f"cancel of {label} said {said} in state {ledger.states[label]}", label)

    def cancel_all(self) -> None:
        """Cancel all works of a pool."""
        Workpool(dice.choice(self.world.pools)).cancel_all()

    def schedule(self) -> None:
        """Let a work be enqueued each second."""
        schedule("t", functions.tick, cron="* * * * * *", time_zone="UTC", missed="all")

    def unschedule(self) -> None:
        """End that."""
        unschedule("t")

    def configure(self) -> None:
        """Change a pool's limit; 0 pauses it."""
        Workpool(dice.choice(self.world.pools)).configure(max_parallelism=dice.choice((0, 1, 2, 3)))


def _due(delay: timedelta | None) -> int:
    return floor_segment(clock.ms) if delay is None else ceil_segment(clock.ms + delay / timedelta(milliseconds=1))
