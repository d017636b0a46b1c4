"""What the works of a simulation call. How each call ends is planned beforehand, by the number of the work."""

from collections import Counter
from dataclasses import dataclass, field

from django.db import connection

from django_workpool import NonRetryableError, OnCompleteArgs, action, mutation, on_complete, query


@dataclass
class Stage:
    """What was planned for the works of one history, and what was played."""

    #: For each work how its calls end ("ok", "fail", "final"), the last one also for all that follow.
    plans: dict[int, list[str]] = field(default_factory=dict)
    #: How many calls of its on_complete raise.
    raising: dict[int, int] = field(default_factory=dict)
    calls: Counter[int] = field(default_factory=Counter)
    ends: Counter[tuple[int, str]] = field(default_factory=Counter)
    told: Counter[int] = field(default_factory=Counter)

    def play(self, n: int) -> int:
        """End a call of work ``n`` as planned."""
        plan = self.plans[n]
        end = plan[min(self.calls[n], len(plan) - 1)]
        self.calls[n] += 1
        self.ends[n, end] += 1
        if end == "fail":
            raise ValueError(f"w{n} fails")
        if end == "final":
            raise NonRetryableError(f"w{n} fails for good")
        return n


stage = Stage()


def reset() -> Stage:
    """Begin another history."""
    stage.__init__()  # type: ignore[misc]
    return stage


def record(name: str, n: int) -> None:
    """Leave an effect in the current transaction."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO works_event (name, key, text, at) VALUES (%s, %s, '', 0)", [name, str(n)])


@action
def act(n: int) -> int:
    """Leave an effect that stays whatever becomes of the run."""
    record("acted", n)
    return stage.play(n)


@mutation
def mutate(n: int) -> int:
    """Leave an effect that stands exactly if the work succeeds."""
    record("mutated", n)
    return stage.play(n)


@query
def ask(n: int) -> int:
    """Only read."""
    return stage.play(n)


@mutation
def tick() -> int:
    """Leave an effect for each tick of the periodic work that succeeds."""
    record("ticked", 0)
    stage.ends[0, "ok"] += 1
    return 0


@on_complete
def told(done: OnCompleteArgs) -> None:
    """Leave an effect, and raise as often as planned."""
    n = int(done.context)
    record(f"told {done.result.kind.value}", n)
    stage.told[n] += 1
    if stage.told[n] <= stage.raising[n]:
        raise ValueError(f"the on_complete of w{n} fails")
