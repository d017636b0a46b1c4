"""The kinds of works that drills enqueue, and what each may come to."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A function, and what its works may come to."""

    function: str
    #: How long one takes, in seconds, unless told otherwise: from, to.
    seconds: tuple[float, float] = (0.0, 0.0)
    #: How it ends when nothing but the pool has a hand in it.
    ends: str = "success"
    #: Whether a lost attempt is followed by another one. Else a loss is a failure of the work.
    retried: bool = True
    #: Mutations and queries: their transaction may be begun again within one attempt.
    transactional: bool = False
    #: Inserts a row "effect" with its end.
    has_effect: bool = False
    #: Attempts that it comes to, where that is known.
    attempts: int | None = None


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "plain": Kind(function="act"),
        "nap": Kind(function="act", seconds=(0.1, 2.0)),
        "once": Kind(function="act_once", seconds=(0.0, 0.5), retried=False),
        "coroutine": Kind(function="wait", seconds=(0.0, 3.0)),
        "row": Kind(function="read_row", seconds=(0.0, 0.3)),
        "late-row": Kind(function="late_row"),
        "fork": Kind(function="fork"),
        "fails-once": Kind(function="fail_once"),
        "fails": Kind(function="fail", ends="failed", attempts=3),
        "insert": Kind(function="insert", seconds=(0.0, 0.02), retried=False, transactional=True, has_effect=True),
        "insert-slowly": Kind(function="insert_slowly", seconds=(0.0, 1.0), retried=False, transactional=True, has_effect=True),
        "look": Kind(function="look", retried=False, transactional=True),
        "compute": Kind(function="compute", seconds=(0.05, 0.3)),
        "hold": Kind(function="hold_interpreter", seconds=(0.05, 0.5)),
        "poison": Kind(function="die", ends="failed", attempts=3),
    }
)

#: What a soak is made of: kind and weight.
MIX: Mapping[str, int] = MappingProxyType(
    {
        "plain": 40,
        "nap": 8,
        "once": 8,
        "coroutine": 8,
        "row": 8,
        "fails-once": 6,
        "fails": 4,
        "insert": 10,
        "look": 5,
        "compute": 1,
        "hold": 1,
    }
)


def kind_of(key: str) -> Kind:
    """Return the kind of the work that a key names: ``kind.anything``."""
    return KINDS[key.partition(".")[0]]
