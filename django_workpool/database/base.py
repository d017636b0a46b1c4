"""The interface to a database, and what all vendors share: statements over the package's tables."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar

from django.apps import apps
from django.conf import settings
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.utils import timezone

from ..segments import floor_segment
from ..types import Attempted
from .dialect import Dialect
from .parts import Part
from .rows import Condition, Due, NewWork, Sent, Start
from .watch import Hint, Watch


@lru_cache(maxsize=256)
def _fill(template: str, vendor: str) -> str:
    quote = connections[next(a for a in connections if connections[a].vendor == vendor)].ops.quote_name
    tables = {model.__name__: quote(model._meta.db_table) for model in apps.get_app_config("workpool").get_models()}
    # SQLite takes a conditional index only for the very condition that it was made with, and Django 6.1 writes TRUE as it writes a value.
    return template.format_map({**tables, "TRUE": "1" if vendor == "sqlite" else "TRUE"})


class Database(Dialect, ABC):
    """One database, as the rooms see it. Statements name tables as ``{Model}``."""

    vendor: ClassVar[str]
    #: Whether processes are woken by notifications: then RunStatus says which kicks are needed.
    kicks: ClassVar[bool]
    #: Whether ``insert_work`` is one statement: all or nothing by itself.
    inserts_at_once: ClassVar[bool] = False
    #: Whether subqueries can do with the row that they are asked for what they do with a constant: name it in their FROM, and find a range.
    correlates: ClassVar[bool] = True
    #: Whether the lead is a lease that must be renewed, or a lock that lasts as long as its process.
    leases: ClassVar[bool]
    #: Behind a SELECT: lock its rows, leaving out those that somebody else holds (where one writer shuts out all others, it has them).
    skip_locked: ClassVar[str] = ""
    #: Whether an insert that passes over a row that is there keeps a shared lock of it, as others may do at the same time.
    shares_conflicts: ClassVar[bool] = False
    #: The part of a long iteration's time for which the loop then leaves the database to others: where one writer shuts out all others.
    courtesy: ClassVar[float] = 0.0
    #: Milliseconds by which tests have moved the time on: see ``testing.clock``.
    ahead_ms: float = 0.0
    #: Whether the pool's transactions must be outermost ones; tests let them run inside their own: see ``testing.stage``.
    durable: bool = True

    def __init__(self, using: str) -> None:
        self.using = using

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.using]

    # Statements -------------------------------------------------------------------------------------------------

    def fetch(self, template: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(self.sql(template), params)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def send(self, template: str, params: Sequence[Any] = ()) -> Sent:
        """Execute a statement whose answer is read later: after the ``pipeline`` in which it is sent with others."""
        cursor = self.connection.cursor()
        cursor.execute(self.sql(template), params)
        return Sent(cursor)

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Send statements of the pool's own together, where the driver can: the end of the block waits for all, and raises what failed.

        What they answer is read after it, with ``send``.
        """
        yield

    def execute(self, template: str, params: Sequence[Any] = ()) -> int:
        """Execute a statement and return the number of rows it changed."""
        with self.connection.cursor() as cursor:
            cursor.execute(self.sql(template), params)
            return int(cursor.rowcount)

    def execute_many(self, template: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement once for each of ``rows``."""
        if len(rows) == 1:
            # The driver's way for many costs a pipeline.
            self.execute(template, rows[0])
        elif rows:
            with self.connection.cursor() as cursor:
                cursor.executemany(self.sql(template), rows)

    def sql(self, template: str) -> str:
        """Return the statement with the names of the tables filled in."""
        statement = _fill(template, self.vendor)
        return self.moved_on(statement) if self.ahead_ms else statement

    def moved_on(self, statement: str) -> str:
        """Return a statement that takes the time to be ``ahead_ms`` later, where it asks the server for it."""
        return statement

    def ask(self, part: Part) -> list[tuple[Any, ...]]:
        """Send a part by itself, and return its rows."""
        return self.fetch(part.template, part.params)

    @abstractmethod
    def among(self, column: str, values: Sequence[int] | Sequence[uuid.UUID]) -> tuple[str, Any]:
        """Return a condition "``column`` is one of ``values``", and its one parameter."""

    def for_update(self, *of: str, nowait: bool = False) -> str:
        """Return SQL for the end of a SELECT that locks its rows; nothing where a transaction locks all.

        Args:
            of: the tables whose rows are meant; all if none is named.
            nowait: fail if somebody else has locked one.
        """
        features: Any = self.connection.features
        if not features.has_select_for_update:
            return ""
        return str(self.connection.ops.for_update_sql(nowait=nowait, of=of if features.has_select_for_update_of else ()))

    def all_or_nothing(self, inserts: int) -> AbstractContextManager[None]:
        """Return a block in which so many calls of ``insert_work`` take effect together or not at all, in or outside a transaction."""
        connection = self.connection
        if inserts == 1 and self.inserts_at_once and (connection.in_atomic_block or connection.get_autocommit()):
            # Outside a transaction BEGIN and COMMIT would be two round trips for nothing.
            return transaction.mark_for_rollback_on_error(using=self.using)
        # Several get a savepoint: all or none, even if the caller catches the error.
        return transaction.atomic(using=self.using, savepoint=inserts > 1)

    @abstractmethod
    def insert_work(self, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], due: Due) -> int:
        """Insert works and their pending starts; return the segment at which they are due."""

    def each(self, table: str, name: str, condition: str) -> str:
        """Return SQL to stand behind a JOIN: the rows of ``table`` that fit each row before it, looked up by an index.

        Statements are planned once a session, perhaps while the tables were nearly empty: nothing must be left to the planner that
        costs more with each row. For the same reason an EXISTS ends in ``PROBE`` where it is asked for many rows.
        """
        return f"{table} {name} ON {condition}"

    @abstractmethod
    def numbers(self, first: int, last: int) -> str:
        """Return SQL for a table of whole numbers with a column ``value``, to stand in a FROM with a name after it."""

    @abstractmethod
    def table(self, **columns: tuple[str, Sequence[Any]]) -> tuple[str, list[Any]]:
        """Return SQL for a table ``m`` of values, to stand in a FROM, and its parameters.

        Args:
            columns: for each column its type ("uuid", "bigint" or "text") and its values.
        """

    def _table_of(self, successes: Sequence[Attempted]) -> tuple[str, list[Any]]:
        return self.table(
            id=("uuid", [one.run.work_id for one in successes]),
            token=("bigint", [one.run.token for one in successes]),
            value=("text", [one.outcome.value for one in successes]),
            worker=("text", [one.worker for one in successes]),
        )

    @abstractmethod
    def complete_successes(self, successes: Sequence[Attempted], *, keep: bool) -> set[int]:
        """End the works of runs that have succeeded, as far as they still own them, and insert their pending completions.

        A run owns its work as long as both rows are there and no completion waits. Both are locked, the work's first: whoever ends
        a run takes the same way, so that a statement that has waited for the first lock finds the second row gone.

        Args:
            successes: attempts of works without on_complete.
            keep: whether to copy the works into the archive.

        Returns:
            The tokens of the runs that did.
        """

    @abstractmethod
    def begin_runs(self, pool: str, lane: int, starts: Sequence[Start], started_ms: float) -> Callable[[], dict[int, int]]:
        """Turn pending starts of one pool and lane into running rows, in this order, at a time of the database.

        Returns:
            What returns the token of each pending start: after the ``pipeline`` in which this is sent with others.
        """

    # Time -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def clock_ms(self) -> float:
        """Return the database's time in milliseconds since 1970, ``ahead_ms`` included."""

    @property
    @abstractmethod
    def clock_ms_sql(self) -> str:
        """SQL for the same."""

    @property
    def clock_part(self) -> Part:
        """The same, asked for together with other things."""
        return Part("clock", f"SELECT {self.clock_ms_sql} AS ms")

    def moment_sql(self) -> tuple[str, list[Any]]:
        """Return SQL for the database's time as Django's fields hold it, and its parameters."""
        return "%s", [self.moment_param(self.clock_ms())]

    def segment(self) -> int:
        """Return the segment that is now."""
        return floor_segment(self.clock_ms())

    @staticmethod
    def moment(ms: float) -> datetime:
        """Return a time of the database as Django's fields hold it: aware, or naive in TIME_ZONE without USE_TZ."""
        aware = datetime.fromtimestamp(ms / 1000, UTC)
        return aware if settings.USE_TZ else timezone.make_naive(aware, timezone.get_default_timezone())

    def moment_param(self, ms: float) -> Any:
        """Return a time of the database as a statement's parameter."""
        return self.connection.ops.adapt_datetimefield_value(self.moment(ms))

    def cut(self, purpose: str) -> None:  # noqa: B027 - a file answers or fails
        """Cut the pool's own connections of a purpose: a thread that waits on one for an answer sees it lost."""

    @property
    def is_pooled(self) -> bool:
        """Whether this thread's connection, one of the pool's own, leads to a pooler that gives each transaction another session."""
        return False

    def pooler_warnings(self) -> list[str]:
        """Connect, and return what a pooler in the way of the pool's own sessions costs; nothing if there is none."""
        return []

    # Transactions -----------------------------------------------------------------------------------------------

    @abstractmethod
    def private_connection(self, purpose: str) -> None:
        """Replace this thread's connection by one of the pool's own: no Django pool, READ COMMITTED, short waits."""

    @contextmanager
    def write(self) -> Iterator[None]:
        """An outermost transaction of the pool's own that writes."""
        with transaction.atomic(using=self.using, durable=self.durable):
            yield

    def take_turn(self) -> None:  # noqa: B027 - most vendors have many writers
        """Wait, in a transaction that begins with reads, for the turn to write: where there is one writer, it would fail later on."""

    @contextmanager
    def fast_commit(self) -> Iterator[None]:
        """A transaction that a crash of the server may undo: for hints only, never for an iteration."""
        with self.write():
            yield

    @contextmanager
    @abstractmethod
    def read_only(self) -> Iterator[None]:
        """A transaction in which the database refuses to write."""
        yield

    def defer_constraints(self) -> None:  # noqa: B027 - nothing to do on most vendors
        """Let deferred constraints wait again for the end of the transaction."""

    def check_constraints(self) -> None:  # noqa: B027 - the COMMIT checks them where this cannot
        """Check the deferred constraints now, where the database can."""

    # Waking up and leading --------------------------------------------------------------------------------------

    def notify(self, hints: Sequence[Hint], unless: Condition | None = None) -> None:  # noqa: B027 - hints are optional
        """Send hints to all processes, in a transaction of its own; nothing if the query ``unless`` finds a row."""

    @abstractmethod
    def watch(self) -> Watch:
        """Return this thread's watch on a new connection."""

    def take_lead_lock(self) -> bool:
        """Take the lock that the lead is, where it is one; return whether it is held."""
        return True

    def release_lead_lock(self) -> None:  # noqa: B027 - most leads are leases
        """Give that lock up."""

    def forget_worker(self, worker_id: int) -> None:  # noqa: B027 - most vendors leave nothing
        """Remove what a worker that is gone left outside of the tables."""


def lock_rows(model: type[Model], using: str, *, nowait: bool = False, skip_locked: bool = False) -> Any:
    """Return a queryset that locks the rows it reads (SQLite: its transaction holds the only writer's lock already)."""
    return model._default_manager.using(using).select_for_update(nowait=nowait, skip_locked=skip_locked)
