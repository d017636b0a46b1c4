"""The one hook behind which every commit of everybody lies: whoever commits may die right before it, or right after it."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any

from django.db import OperationalError

from django_workpool.models import Archive, Attempt, Globals, PendingCancelation, PendingCompletion, PendingStart, RunningWork, Work

#: What the package takes for a lost connection.
LOST = "server closed the connection unexpectedly (simulated)"
FUNCTIONS = "tests.simulation.functions"
#: The tables after whose changes the rows are looked at.
WATCHED = [
    f'"{model._meta.db_table}"'
    for model in (Work, PendingStart, PendingCompletion, PendingCancelation, RunningWork, Archive, Attempt, Globals)
]


class Died(BaseException):
    """Whoever was at work is dead: no statement of it reaches the database any more, whatever catches this."""


class Violation(AssertionError):
    """Something that is promised does not hold. ``works`` says which works it is about."""

    def __init__(self, text: str, *works: str) -> None:
        super().__init__(text)
        self.works = works


class Fate(Enum):
    """What happens at a commit."""

    LIVE = "live"
    DIE_BEFORE = "die before"
    DIE_AFTER = "die after"
    LOSE_BEFORE = "lose before"
    LOSE_AFTER = "lose after"


#: All commit points that every range of seeds must crash at, before and after. Others exist that are seldom reached.
POINTS = (
    *("caller enqueue", "client.cancel_many", "client.cancel_all", "configuration.configure"),
    *("runner.lead.take", "runner.watcher._pulse", "runner.lead.hand_over", "loop.iteration.run_iteration", "loop.status.settle"),
    *("complete._complete_alone", "complete.complete_many", "execution.mutations._mutate", "execution.run._query", "function record"),
    *("execution.workers.register", "execution.workers.stop_accepting", "execution.workers.leave"),
    *("execution.workers.unregister", "archive.prune"),
)
BEFORE, AFTER = (Fate.DIE_BEFORE, Fate.LOSE_BEFORE), (Fate.DIE_AFTER, Fate.LOSE_AFTER)
DEATHS = (Fate.DIE_BEFORE, Fate.DIE_AFTER)


@lru_cache(maxsize=10_000)
def _writes(statement: str) -> tuple[bool, bool]:
    """Return whether a statement writes, and whether into a table that is watched."""
    writes = statement.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE")
    return writes, writes and any(table in statement for table in WATCHED)


class Crashes:
    """Stands between a connection's wrapper and its commits.

    Args:
        connection: The wrapper.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        #: Decides what happens at the commit point of this name.
        self.decide: Callable[[str], Fate] = lambda name: Fate.LIVE
        #: Told each commit that has happened, and whether it changed a watched table.
        self.committed: Callable[[str, bool], None] = lambda name, watched: None
        #: Who is at work, and at what: the name of commits that no room of the package makes; empty: the simulation itself.
        self.what = ""
        self.counts: defaultdict[str, Counter[Fate]] = defaultdict(Counter)
        self.violation: Violation | None = None
        self._dead = self._watched = False
        connection.ensure_connection()
        self._commit = connection._commit
        connection._commit = self.commit
        connection.execute_wrappers.append(self._execute)

    def commit(self) -> None:
        """Take the place of the wrapper's COMMIT."""
        self._pass(self._commit, self.connection.connection.rollback)

    def _execute(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if self._dead:
            raise Died
        writes, watched = _writes(sql)
        self._watched |= watched
        if not writes or self.connection.in_atomic_block:
            return execute(sql, params, many, context)
        # Outside of a transaction each statement commits by itself.
        return self._pass(lambda: execute(sql, params, many, context), lambda: None)

    def _pass(self, commit: Callable[[], Any], undo: Callable[[], None]) -> Any:
        if self._dead:
            raise Died
        if not self.what:
            # Nobody's act: a history is being set up.
            return commit()
        name = self._name()
        fate = self.decide(name)
        self.counts[name][fate] += 1
        if fate in BEFORE:
            undo()
            self._end(fate)
        done = commit()
        watched, self._watched = self._watched, False
        try:
            self.committed(name, watched)
        except Violation as violation:
            self.fail(violation)
        if fate in AFTER:
            self._end(fate)
        return done

    def fail(self, violation: Violation) -> None:
        """Stop whoever is at work: what does not hold must not be caught by the package."""
        self.violation = self.violation or violation
        self._dead = True
        raise Died

    def _end(self, fate: Fate) -> None:
        # Neither a dead process nor one without its connection runs the hooks of the commit.
        self.connection.run_on_commit = []
        self._watched = False
        if fate in DEATHS:
            self._dead = True
            raise Died
        raise OperationalError(LOST)

    def _name(self) -> str:
        """Return who commits: the first room of the package up the stack that is not only a way to the database."""
        frame = sys._getframe(2)
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if module == FUNCTIONS:
                return f"function {frame.f_code.co_name}"
            is_room = module.startswith("django_workpool.") and not module.startswith("django_workpool.database")
            if is_room and frame.f_code.co_name != "committing":
                return f"{module.removeprefix('django_workpool.')}.{frame.f_code.co_name}"
            frame = frame.f_back  # type: ignore[assignment]
        return self.what

    def table(self) -> dict[str, tuple[int, int, int]]:
        """Return for each commit point how often there was a commit, a crash before it, and a crash after it."""
        rows = {}
        for name, fates in self.counts.items():
            before, after = sum(fates[one] for one in BEFORE), sum(fates[one] for one in AFTER)
            rows[name] = fates.total() - before, before, after
        return rows

    def revive(self) -> None:
        """Clean up behind whoever was at work: the next one has a connection of its own."""
        self._dead = self._watched = False
        connection = self.connection
        if connection.in_atomic_block or connection.connection.in_transaction:
            connection.connection.rollback()
        connection.in_atomic_block = connection.needs_rollback = connection.closed_in_transaction = False
        connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
        connection.run_commit_hooks_on_set_autocommit_on = False
        if not connection.autocommit:
            connection.set_autocommit(True)
