"""The whole history of a drill, and what must hold for it: each check returns the sentences that say what does not."""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field

from .fleet import Disturbance, LogEvent
from .journal import Run
from .kinds import kind_of
from .sampler import Limits

#: What the pool itself makes an attempt fail with.
LOST = ("django_workpool.WorkerLost", "django_workpool.Interrupted")
#: What the database makes a mutation or query fail with while it is away or read-only.
DATABASE_ERRORS = ("django.db.", "psycopg.", "sqlite3.", "django_workpool.Conflict")
#: Seconds by which the clocks of a log line and of a take-over may differ in order.
LOG_SLACK = 1.0
#: More than this of one sort is told by number.
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Accepted:
    """A work whose enqueue has returned."""

    key: str
    id: str
    callback: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt that was kept."""

    number: int
    class_path: str
    pid: int


@dataclass(frozen=True, slots=True)
class End:
    """A work in the archive."""

    id: str
    key: str
    kind: str
    attempts: int
    callback: bool
    failures: tuple[Failure, ...] = ()


@dataclass
class History:
    """Everything that is known at the end."""

    accepted: list[Accepted] = field(default_factory=list)
    #: Keys whose transaction was committed, whether or not the call returned, and when it began (seconds since 1970).
    committed: dict[str, float] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    #: What on_complete has inserted: id of the work, kind of its result.
    calls: list[tuple[str, str]] = field(default_factory=list)
    #: What mutations have inserted: keys.
    effects: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    #: Whether the database was away or read-only at times.
    database_faults: bool = False
    #: Ids that were asked to be canceled, and when all were that were created before.
    canceled: set[str] = field(default_factory=set)
    canceled_all: list[float] = field(default_factory=list)
    samples: list[tuple[float, int]] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    events: list[LogEvent] = field(default_factory=list)
    #: main -> when it was woken after a SIGSTOP (seconds since 1970).
    woken: dict[int, list[float]] = field(default_factory=dict)
    #: Table -> rows that are left where nothing should be.
    left: dict[str, int] = field(default_factory=dict)


Check = Callable[[History], Iterator[str]]


def check(history: History, without: Container[Check] = ()) -> list[str]:
    """Return what does not hold, by all checks or without some."""
    found: list[str] = []
    for one in (ends, results, attempts, callbacks, effects, runs, limit, leads, leftovers):
        if one in without:
            continue
        problems = list(one(history))
        found += problems[:SHOWN]
        if len(problems) > SHOWN:
            found.append(f"and {len(problems) - SHOWN} more of {one.__name__}")
    return found


def figures(history: History) -> dict[str, object]:
    """Return the counts that a verdict tells."""
    known = {end.id for end in history.ends}
    terminal, calls = terminals(history), Counter(work_id for work_id, _ in history.calls)
    return {
        "accepted": len(history.accepted),
        "ended": len(history.ends),
        "lost": sum(one.id not in known for one in history.accepted),
        "double_terminal": sum(number > 1 for number in terminal.values()),
        "callbacks": sum(calls.values()),
        "double_callbacks": sum(number > 1 for number in calls.values()),
        "lost_attempts": sum(failure.class_path in LOST for end in history.ends for failure in end.failures),
        "over_limit": len(list(limit(history))),
        "most_running": max((number for _, number in history.samples), default=0),
        "take_overs": sum(event.event == "lead_taken" for event in history.events),
    }


def ends(history: History) -> Iterator[str]:
    """Each work that was accepted, or whose transaction was committed, ends, and once; no other does."""
    known, keys = {end.id for end in history.ends}, Counter(end.key for end in history.ends)
    yield from (f"{one.key} ({one.id}) is lost" for one in history.accepted if one.id not in known)
    accepted = {one.key for one in history.accepted}
    yield from (f"{key} was committed and is lost" for key in history.committed.keys() - accepted if not keys[key])
    yield from (f"{key} ended {number} times" for key, number in keys.items() if number > 1)
    yield from (f"{key} ended, but its transaction was never committed" for key in keys.keys() - history.committed.keys())
    yield from (f"work {one} was told to have ended {number} times" for one, number in terminals(history).items() if number > 1)


def terminals(history: History) -> Counter[str]:
    """Count how often each work was told to have ended by the logs."""
    return Counter(
        event.fields["work_id"]
        for event in history.events
        if event.event == "completed" and event.fields.get("status") in ("success", "failed", "canceled")
    )


def results(history: History) -> Iterator[str]:
    """Each result is one that the kind of work may come to."""
    for end in history.ends:
        kind = kind_of(end.key)
        if end.kind == kind.ends:
            continue
        last = end.failures[-1].class_path if end.failures else ""
        if end.kind == "canceled":
            allowed = end.id in history.canceled or any(history.committed.get(end.key, 0.0) <= at for at in history.canceled_all)
        elif kind.transactional and history.database_faults and last.startswith(DATABASE_ERRORS):
            allowed = True
        else:
            allowed = not kind.retried and last in LOST
        if not allowed:
            yield f"{end.key} ended as {end.kind} ({last})"


def attempts(history: History) -> Iterator[str]:
    """Attempts are numbered without gaps; a lost one was lost with a process that was disturbed."""
    disturbed = {pid for one in history.disturbances for pid in (one.pid, one.main)}
    for end in history.ends:
        numbers = [failure.number for failure in end.failures]
        expected = end.attempts - (end.kind == "success")
        if numbers != list(range(1, expected + 1)):
            yield f"{end.key} ended as {end.kind} after {end.attempts} attempts, of which {numbers} are kept"
        wanted = kind_of(end.key).attempts
        if wanted is not None and end.kind != "canceled" and end.attempts != wanted:
            yield f"{end.key} ended after {end.attempts} attempts instead of {wanted}"
        for failure in end.failures:
            if failure.class_path in LOST and failure.pid not in disturbed:
                yield f"{end.key}: attempt {failure.number} was lost on process {failure.pid}, which was never disturbed"


def callbacks(history: History) -> Iterator[str]:
    """The effect of on_complete is there once for each work that has one, with the result that the work has."""
    called: defaultdict[str, list[str]] = defaultdict(list)
    for work_id, kind in history.calls:
        called[work_id].append(kind)
    for end in history.ends:
        wanted = [end.kind] if end.callback else []
        if called[end.id] != wanted:
            yield f"{end.key} ended as {end.kind}, and its on_complete has run for {called[end.id]}"


def effects(history: History) -> Iterator[str]:
    """The effect of a mutation is there once if it succeeded, and never if not."""
    found = Counter(history.effects)
    for end in history.ends:
        if kind_of(end.key).has_effect and found[end.key] != (end.kind == "success"):
            yield f"mutation {end.key} ended as {end.kind}, and its effect is there {found[end.key]} times"
    ended = {end.key for end in history.ends}
    yield from (f"the effect of {key} is there, and the work is not" for key in found.keys() - ended)


def runs(history: History) -> Iterator[str]:
    """No function is called again while the process that runs it was left alone, unless it has failed; none without a commit."""
    disturbed, by_key = Disturbed(history.disturbances), defaultdict[str, list[Run]](list)
    for run in history.runs:
        by_key[run.key].append(run)
    yield from (f"{key} ran, but its transaction was never committed" for key in by_key.keys() - history.committed.keys())
    for key, calls in by_key.items():
        if kind_of(key).transactional:
            continue
        for first, second in zip(calls, calls[1:], strict=False):
            failed = first.how == "failed" and first.ended is not None and first.ended <= second.begun
            if not failed and not disturbed(first, second.begun):
                yield (
                    f"{key} began on process {first.pid} ({first.how or 'and never ended'}) and again on {second.pid} "
                    f"{second.begun - first.begun:.1f} s later, and nothing had happened to the first"
                )
    for end in history.ends:
        calls = by_key[end.key]
        quiet = not any(map(disturbed, calls))
        lost = any(failure.class_path in LOST for failure in end.failures)
        if end.kind != "canceled" and quiet and not lost and not kind_of(end.key).transactional and len(calls) != end.attempts:
            yield f"{end.key} ended after {end.attempts} attempts, and was called {len(calls)} times"


class Disturbed:
    """Tells quickly whether anything was done to the process of a run."""

    def __init__(self, disturbances: Iterable[Disturbance]) -> None:
        self._by_pid: defaultdict[int, list[Disturbance]] = defaultdict(list)
        for one in disturbances:
            self._by_pid[one.pid].append(one)

    def __call__(self, run: Run, until: float = float("inf")) -> bool:
        """Return whether anything was done to it from its beginning until a time. What ends a process lasts for ever."""
        return any(one.at <= until and one.until >= run.begun for pid in (run.pid, run.parent) for one in self._by_pid[pid])


def limit(history: History) -> Iterator[str]:
    """No more ran than the limit of the moment allows: a lowered limit applies to starts, so the number must not rise above it."""
    before = 0
    for at, number in history.samples:
        most = history.limits.most(at)
        if most is not None and number > most and number > before:
            yield f"{number} ran where {most} may"
        before = number


def leads(history: History) -> Iterator[str]:
    """Each term has one holder, and a process starts nothing after another one has taken the lead."""
    taken = [event for event in history.events if event.event == "lead_taken"]
    holders = Counter(event.fields["term"] for event in taken)
    yield from (f"term {term} was taken {number} times" for term, number in holders.items() if number > 1)
    terms: dict[int, int] = {}
    newest, since = 0, 0.0
    for event in history.events:
        if event.event == "lead_taken":
            terms[event.main] = int(event.fields["term"])
            if terms[event.main] > newest:
                newest, since = terms[event.main], event.at
        elif event.event == "started" and terms.get(event.main, 0) < newest and event.at > since + LOG_SLACK:
            # What was committed before a pause may be told right after it.
            told_late = any(0 <= event.at - woken < LOG_SLACK for woken in history.woken.get(event.main, ()))
            if not told_late:
                yield f"main {event.main} of term {terms.get(event.main)} started {event.fields['work_id']} after term {newest} began"


def leftovers(history: History) -> Iterator[str]:
    """The hot tables are empty."""
    yield from (f"{number} rows are left in {table}" for table, number in history.left.items())
