"""What the rows say after each commit, and what must hold there."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from django_workpool.database import database
from django_workpool.loop.context import PAUSED_CALLBACKS
from django_workpool.settle import MAX_RETURNS
from django_workpool.types import Lane
from tests.states.rows import CompositeState, name_of

from .clock import clock
from .crashes import Violation

COVERED = "EXISTS (SELECT 1 FROM {PendingCancelation} c WHERE c.pool = w.pool AND c.created_up_to >= w.created)"
QUERIES = {
    "works": f"SELECT w.id, w.name, w.attempts, w.returns, w.canceled, w.callback_of, w.pool, {COVERED} FROM {{Work}} w",
    "kept": f"SELECT w.id, w.name, w.attempts, w.kind, w.value, w.callback_of, {COVERED} FROM {{Archive}} w",
    "starts": "SELECT work_id, segment, id FROM {PendingStart}",
    "runs": "SELECT work_id, id, lane, due, pool FROM {RunningWork}",
    "follows": "SELECT work_id, follow FROM {PendingCompletion}",
    "limits": "SELECT pool, max_parallelism FROM {Globals}",
}
#: Callback work is retried so often.
CALLBACK_ATTEMPTS = 5


def tick_ms(label: str) -> float:
    """Return the tick for which a periodic work was enqueued."""
    return datetime.fromisoformat(label.partition(" @ ")[2]).timestamp() * 1000


_names: dict[CompositeState, str | None] = {}


@dataclass
class Spec:
    """A work as its caller wants it."""

    n: int
    kind: str
    pool: str = "default"
    max_attempts: int = 1
    #: Least wait before the first retry, jitter included, in milliseconds.
    backoff_ms: float = 0.0
    #: The first segment in which it may start; set when it is enqueued.
    due: int = 0
    callback: bool = False


@dataclass
class Ledger:
    """One history, as the rows tell it."""

    specs: dict[str, Spec] = field(default_factory=dict)
    #: Works by their hexadecimal id, as they are called in traces.
    labels: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    states: dict[str, CompositeState] = field(default_factory=dict)
    #: Works whose cancelation has been asked for, while they were there.
    asked: set[str] = field(default_factory=set)
    tokens: dict[int, str] = field(default_factory=dict)
    started: Counter[str] = field(default_factory=Counter)
    ends: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _starts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    #: The tokens of the running rows.
    live: set[int] = field(default_factory=set)
    #: Completed attempts of each work when it was last started.
    _before: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        db = database("default")
        self._sql = {name: db.sql(text) for name, text in QUERIES.items()}
        self._singles = db.sql("SELECT work_id FROM {PendingCancelation} WHERE work_id IS NOT NULL")

    @property
    def quiet(self) -> bool:
        """Whether the hot tables hold nothing of any work (a cancelation of nothing is left to the caller)."""
        return all(one.archived and not one.running and not one.pending_cancelation for one in self.states.values())

    def look(self, who: str, point: str) -> None:
        """Read the rows after a commit and hold them to the contract."""
        raw = connection.connection
        rows: dict[str, dict[Any, Any]] = {name: {row[0]: row[1:] for row in raw.execute(sql)} for name, sql in self._sql.items()}
        singles = Counter(work for (work,) in raw.execute(self._singles))
        self._name_all(rows)
        before, self.states = self.states, self._read_states(rows, singles)
        self._check_states(before)
        self._check_counts(rows)
        self._check_starts(rows)
        self._check_runs(rows)
        live = {self.labels[work] for work in rows["works"]}
        # Callback work is not canceled by anybody.
        self.asked |= {one for one in live if not one.endswith("'") and (self.states[one].pending_cancelation or self.states[one].covered)}
        changes = " ".join(f"{one}={_named(state)}" for one, state in sorted(self.states.items()) if before.get(one) != state)
        self.lines.append(f"{clock.ms - 1.8e12:8.1f} {who:10} {point:40} {changes}")

    def _name_all(self, rows: dict[str, dict[Any, Any]]) -> None:
        for table, at in (("works", 4), ("kept", 4)):
            for work, row in rows[table].items():
                if work not in self.labels:
                    label = row[0] if row[at] is None else self.labels[row[at]] + "'"
                    if row[at] is None and " @ " in label and label not in self.specs:
                        self.specs[label] = Spec(0, "tick", due=int(tick_ms(label) // 100))
                    if row[at] is None and label not in self.specs:
                        raise Violation(f"work {label} was never enqueued", label)
                    if label in self.ids:
                        raise Violation(f"{label} is there twice", label)
                    self.labels[work], self.ids[label] = label, work

    def _read_states(self, rows: dict[str, dict[Any, Any]], singles: Counter[str]) -> dict[str, CompositeState]:
        works, kept, found = rows["works"], rows["kept"], {}
        for work, label in self.labels.items():
            live, ended = work in works, work in kept
            found[label] = CompositeState(
                attempts=works[work][1] if live else None,
                canceled=bool(live and works[work][3]),
                pending_start=work in rows["starts"],
                running=work in rows["runs"],
                follow=rows["follows"].get(work, [""])[0],
                pending_cancelation=singles[work],
                covered=bool(works[work][6] if live else ended and kept[work][5]),
                archived=kept[work][2] if ended else "",
            )
        return found

    def _check_states(self, before: dict[str, CompositeState]) -> None:
        for label, state in self.states.items():
            if before.get(label) == state:
                continue
            if state not in _names:
                _names[state] = name_of(state)
            if _names[state] is None:
                raise Violation(f"{label} is in no state of the contract: {state}", label)

    def _check_counts(self, rows: dict[str, dict[Any, Any]]) -> None:
        for work, (name, attempts, kind, value, *_) in rows["kept"].items():
            label, end = self.labels[work], (name, attempts, kind, value)
            if self.ends.setdefault(label, end) != end:
                raise Violation(f"{label} has ended twice: {self.ends[label]}, {end}", label)
        for work, (_, attempts, returns, *_) in rows["works"].items():
            label = self.labels[work]
            earlier = self.counted.get(label, (0, 0))
            most = self.specs[label].max_attempts if label in self.specs else CALLBACK_ATTEMPTS
            if attempts < earlier[0] or returns < earlier[1] or attempts > earlier[0] + 1 or attempts >= most or returns > MAX_RETURNS:
                raise Violation(f"{label} has {attempts} attempts of {most} and {returns} returns, after {earlier}", label)
            self.counted[label] = attempts, returns

    def _check_starts(self, rows: dict[str, dict[Any, Any]]) -> None:
        """Hold new pending starts to when they may be due at the earliest."""
        now = int(clock.ms // 100)
        for work, (segment, row) in rows["starts"].items():
            label = self.labels.get(work)
            spec = self.specs.get(label or "")
            if label is None or spec is None or self._starts.get(work, (0, 0))[1] == row:
                continue
            attempts = rows["works"][work][1] if work in rows["works"] else 0
            if not self.started[label] and segment < spec.due:
                raise Violation(f"{label} is due at {segment}, before {spec.due}", label)
            if self.started[label] and attempts > self._before[label] and segment < now + spec.backoff_ms * 2 ** (attempts - 1) / 100 - 1:
                raise Violation(f"{label} is due at {segment}, {segment - now} after its failed attempt {attempts}", label)
        self._starts = rows["starts"]

    def _check_runs(self, rows: dict[str, dict[Any, Any]]) -> None:
        now, limits = int(clock.ms // 100), rows["limits"]
        used = Counter((row[3], row[1]) for row in rows["runs"].values())
        for work, (token, lane, due, pool) in rows["runs"].items():
            label = self.labels.get(work, work)
            if token in self.live:
                continue
            if token in self.tokens:
                raise Violation(f"token {token} of {label} was {self.tokens[token]}'s", label)
            self.tokens[token] = label
            self.started[label] += 1
            self._before[label] = rows["works"][work][1] if work in rows["works"] else 0
            most = limits[pool][0] if lane == Lane.WORK else limits[pool][0] or PAUSED_CALLBACKS
            if used[pool, lane] > most:
                raise Violation(f"{label} was started as number {used[pool, lane]} of {most} in {pool}", label)
            if due > now:
                raise Violation(f"{label} was started {due - now} segments early", label)
            if label in self.asked:
                raise Violation(f"{label} was started though its cancelation had been asked for", label)
        self.live = {row[0] for row in rows["runs"].values()}

    def is_live(self, label: str) -> bool:
        """Return whether a cancelation of a work has anything to cancel."""
        state = self.states[label]
        return state.attempts is not None and not state.canceled and not state.pending_cancelation and not state.covered


def _named(state: CompositeState) -> str:
    name = _names.get(state) or "?"
    details = [str(state.attempts or ""), state.follow if name in ("S5", "S6", "S9") else "", state.archived]
    return f"{name}({','.join(one for one in details if one)})"
