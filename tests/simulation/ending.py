"""What must hold when a history has come to rest."""

from collections import Counter, defaultdict
from typing import Any

from django.db import connection

from django_workpool.database import database
from django_workpool.types import CallbackState
from tests.states.rows import HOT

from .crashes import Violation
from .functions import Stage
from .ledger import Ledger, Spec, tick_ms

#: What an iteration of an old leader must leave as it is.
UNTOUCHED = (
    *(model.__name__ for model in HOT),
    *("Attempt", "Archive", "RunStatus", "InternalState", "Lead", "Globals"),
)


def _fetch(sql: str) -> list[tuple[Any, ...]]:
    # Not through Django's wrapper: what the simulation reads for itself is nobody's act.
    return list(connection.connection.execute(database("default").sql(sql)))


def tables() -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the tables that decide."""
    return {name: _fetch(f"SELECT * FROM {{{name}}} ORDER BY 1") for name in UNTOUCHED}


def left_over() -> dict[str, int]:
    """Return how many rows are in the hot tables, those that are empty left out."""
    counts = {model.__name__: _fetch(f"SELECT COUNT(*) FROM {{{model.__name__}}}")[0][0] for model in HOT}
    return {name: count for name, count in counts.items() if count}


def check(ledger: Ledger, stage: Stage) -> None:
    """Hold the end of a history to what was promised.

    Raises:
        Violation: something does not hold.
    """
    left = left_over()
    if left:
        open_works = [label for label, state in ledger.states.items() if not state.archived or state.running]
        raise Violation(f"it does not come to rest: {left} are left", *open_works)
    kept = {row[0]: row[1:] for row in _fetch("SELECT id, kind, attempts, value, callback, callback_of FROM {Archive}")}
    effects: Counter[tuple[str, str]] = Counter(_fetch('SELECT name, key FROM "works_event"'))
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for work, number in _fetch("SELECT work_id, number FROM {Attempt} ORDER BY number"):
        numbers[work].append(number)
    for label, spec in ledger.specs.items():
        if label not in ledger.ids:
            _check_rejected(label, spec, stage)
            continue
        work = ledger.ids[label]
        if work not in kept:
            raise Violation(f"{label} was accepted and is not archived", label)
        kind, attempts, value, callback, _ = kept[work]
        _check_result(ledger, stage, label, spec, (kind, attempts, value))
        _check_attempts(label, spec.max_attempts, attempts - (kind == "success"), numbers[work])
        _check_effects(label, spec, stage, (kind, callback, ledger.started[label]), effects)
    _check_ticks(ledger, [kept[work][0] for label, work in ledger.ids.items() if " @ " in label], effects["ticked", "0"])
    for label, work in ledger.ids.items():
        if label.endswith("'"):
            _check_attempts(label, 5, kept[work][1] - (kept[work][0] == "success"), numbers[work])


def _check_ticks(ledger: Ledger, kinds: list[str], effects: int) -> None:
    """Each second from the first one to the last; that none comes twice is seen as soon as it does."""
    ticks = sorted(tick_ms(label) for label in ledger.ids if " @ " in label)
    if ticks != [ticks[0] + 1_000 * number for number in range(len(ticks))]:
        raise Violation(f"ticks are missing among {ticks}")
    if effects != kinds.count("success"):
        raise Violation(f"{effects} effects of {kinds.count('success')} ticks")


def _check_rejected(label: str, spec: Spec, stage: Stage) -> None:
    if stage.calls[spec.n] or stage.told[spec.n]:
        raise Violation(f"{label} was rolled back, and called", label)


def _check_result(ledger: Ledger, stage: Stage, label: str, spec: Spec, result: tuple[str, int, str]) -> None:
    kind, attempts, value = result
    if spec.kind == "act" and stage.calls[spec.n] > ledger.started[label]:
        raise Violation(f"{label} was called {stage.calls[spec.n]} times for {ledger.started[label]} starts", label)
    if kind == "success" and (not stage.ends[spec.n, "ok"] or value != str(spec.n)):
        raise Violation(f"{label} is a success with {value}, and has never returned it", label)
    if kind == "canceled" and label not in ledger.asked:
        raise Violation(f"{label} is canceled, and nobody asked for it", label)
    if kind == "failed" and attempts < spec.max_attempts and not stage.ends[spec.n, "final"]:
        raise Violation(f"{label} has failed after {attempts} of {spec.max_attempts} attempts", label)


def _check_attempts(label: str, most: int, failed: int, numbers: list[int]) -> None:
    if numbers != list(range(1, failed + 1)) or failed > most:
        raise Violation(f"{label} has failed attempts {numbers}, counted as {failed}", label)


def _check_effects(label: str, spec: Spec, stage: Stage, end: tuple[str, str, int], effects: Counter[tuple[str, str]]) -> None:
    kind, callback, started = end
    key = str(spec.n)
    if spec.kind == "mutate" and effects["mutated", key] != (kind == "success"):
        raise Violation(f"{label} ended as {kind} with {effects['mutated', key]} effects", label)
    if spec.kind == "act" and effects["acted", key] > started:
        raise Violation(f"{label} was started {started} times and had {effects['acted', key]} effects", label)
    told = {name: count for (name, of), count in effects.items() if of == key and name.startswith("told")}
    wanted, fate = ({f"told {kind}": 1}, CallbackState.DONE) if spec.callback else ({}, CallbackState.NONE)
    if spec.callback and stage.raising[spec.n] > 5:
        wanted, fate = {}, CallbackState.FAILED
    if told != wanted or callback != fate.value:
        raise Violation(f"the on_complete of {label} ({kind}) had the effects {told}, not {wanted}; it is said to be {callback}", label)
