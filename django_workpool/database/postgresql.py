"""PostgreSQL (psycopg 3): session locks, LISTEN / NOTIFY, one statement for an enqueue."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.conf import settings
from django.db import connections, transaction

from .. import conf
from ..segments import ceil_segment
from ..types import Attempted
from . import sessions
from .base import Database
from .rows import KEPT_COLUMNS, PROBE, WORK_COLUMNS, Condition, Due, NewWork, Start
from .watch import Hint, Watch

CHANNEL = "workpool"
#: PostgreSQL refuses a payload of 8,000 bytes or more.
PAYLOAD_MAX = 7_900

#: Between two JSON texts: no JSON text contains it (RFC 7464).
SEPARATOR = "\x1e"

# The works of a batch come as two texts, not as arrays: the driver would quote each item by itself.
_INSERT = (
    """
WITH added AS (INSERT INTO {Work} ("""
    + WORK_COLUMNS
    + """)
               SELECT w.id, %s, %s, %s, %s, w.arguments, %s, 0, 0, %s, %s, %s, false, %s, %s, %s, %s, (SELECT clock_timestamp())
               FROM unnest(%s::uuid[], string_to_array(%s, E'\\x1e')) AS w(id, arguments)
               RETURNING id, pool, priority, created)
INSERT INTO {PendingStart} (work_id, pool, lane, priority, segment)
SELECT id, pool, %s, priority, GREATEST(%s, floor(extract(epoch FROM created) * 10){delay})::bigint FROM added
RETURNING segment"""
)

# Without a join: the planner knows nothing of how many rows there are, and would compare each with each.
_BEGIN_RUNS = """
WITH due AS MATERIALIZED (
       SELECT a.*, nextval((SELECT pg_get_serial_sequence(%s, 'id'))::regclass) AS token
       FROM unnest(%s::bigint[], %s::uuid[], %s::bigint[], %s::bigint[]) AS a(id, work_id, segment, worker)),
     begun AS (INSERT INTO {RunningWork} (id, work_id, pool, lane, worker_id, due, started)
               SELECT token, work_id, %s, %s, worker, segment, %s FROM due),
     gone AS (DELETE FROM {PendingStart} WHERE id = ANY(%s::bigint[]))
SELECT id, token FROM due"""

_COLUMNS = ", ".join(KEPT_COLUMNS)
# Looked up row by row, in the order of the works' ids, the work before its running row; nothing is joined, for the reason above.
# Columns are named one by one: what a later version adds is none of what runs already.
_COMPLETE = (
    """
WITH mine AS MATERIALIZED (
       SELECT """
    + ", ".join(f"w.{name}" for name in (*KEPT_COLUMNS, "attempts"))
    + """, r.token, r.begun, m.value AS result, m.worker AS ran_on FROM (SELECT * FROM {table} ORDER BY id OFFSET 0) m,
       LATERAL (SELECT * FROM {Work} WHERE id = m.id FOR UPDATE) w,
       LATERAL (SELECT id AS token, started AS begun FROM {RunningWork} WHERE id = m.token AND work_id = w.id FOR UPDATE) r
       WHERE NOT EXISTS (SELECT 1 FROM {PendingCompletion} c WHERE c.work_id = m.id """
    + PROBE
    + """)),
     {kept}
     gone AS (DELETE FROM {Work} WHERE id = ANY(ARRAY(SELECT id FROM mine))),
     told AS (INSERT INTO {PendingCompletion} (work_id, pool, segment, kind, follow)
              SELECT id, pool, floor(extract(epoch FROM clock_timestamp()) * 10)::bigint, 'success', 'end' FROM mine)
SELECT token FROM mine"""
)
_KEPT = (
    "kept AS (INSERT INTO {Archive} ("
    + _COLUMNS
    + ", attempts, kind, value, error, worker, started, finished, callback, callback_error) SELECT "
    + _COLUMNS
    + ", attempts + 1, 'success', result, '', ran_on, begun, clock_timestamp(), '', '' FROM mine),"
)


def _array(kind: str, values: Sequence[Any]) -> Any:
    """Return values as the parameter of an array: those that need no quoting as its text, which costs the driver nothing an item."""
    if kind == "text":
        return list(values)
    return "{" + ",".join([value.hex for value in values] if kind == "uuid" else map(str, values)) + "}"


class PostgreSQL(Database):
    """PostgreSQL 14 or newer through psycopg 3."""

    vendor = "postgresql"
    kicks = True
    leases = True
    inserts_at_once = True
    skip_locked = "FOR UPDATE SKIP LOCKED"
    clock_ms_sql = "extract(epoch FROM clock_timestamp()) * 1000"

    def moved_on(self, statement: str) -> str:
        return statement.replace("clock_timestamp()", f"(clock_timestamp() + interval '{self.ahead_ms:.3f} milliseconds')")

    def among(self, column: str, values: Sequence[int] | Sequence[uuid.UUID]) -> tuple[str, Any]:
        cast = "uuid" if values and isinstance(values[0], uuid.UUID) else "bigint"
        return f"{column} = ANY(%s::{cast}[])", _array(cast, values)

    def each(self, table: str, name: str, condition: str) -> str:
        return f"LATERAL (SELECT * FROM {table} {name} WHERE {condition} OFFSET 0) {name} ON true"

    def numbers(self, first: int, last: int) -> str:
        return f"(SELECT value FROM generate_series({first}, {last}) AS value)"

    def table(self, **columns: tuple[str, Sequence[Any]]) -> tuple[str, list[Any]]:
        # Most rows of a batch are alike in most columns: these are said once, which spares the driver and the server an array.
        same = {name for name, (_, values) in columns.items() if values.count(values[0]) == len(values)} - {next(iter(columns))}
        named = [f"%s::{kind} AS {name}" if name in same else name for name, (kind, _) in columns.items()]
        varied = {name: column for name, column in columns.items() if name not in same}
        arrays = ", ".join(f"%s::{kind}[]" for kind, _ in varied.values())
        params = [values[0] for name, (_, values) in columns.items() if name in same]
        params += [_array(kind, values) for kind, values in varied.values()]
        return f"(SELECT {', '.join(named)} FROM unnest({arrays}) AS a({', '.join(varied)})) AS m", params

    def insert_work(self, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], due: Due) -> int:
        delay = "" if due.delay_ms is None else ", ceil(extract(epoch FROM created) * 10 + %s)"
        params: list[Any] = [new.pool, new.fn_type, new.func_path, new.name, new.priority]
        params += [new.on_complete, new.on_complete_context, new.retry, new.callback_of, new.timeout_ms, new.batch_id, new.trace]
        params += ["{" + ",".join([work_id.hex for work_id in ids]) + "}", SEPARATOR.join(arguments), new.lane, due.segment]
        if due.delay_ms is not None:
            params.append(due.delay_ms / 100)
        if due.moment_ms is not None:
            delay += ", CASE WHEN %s > extract(epoch FROM created) * 1000 THEN %s END"
            params += [due.moment_ms, ceil_segment(due.moment_ms)]
        with self._cursor() as cursor:
            cursor.execute(self.sql(_INSERT.replace("{delay}", delay)), params)
            return int(cursor.fetchone()[0])

    def _cursor(self) -> Any:
        """Return a cursor of Django's for statements that are sent often.

        Where the project's OPTIONS let the driver prepare statements (``prepare_threshold``), it is one that can: Django's usual ones
        put the parameters into the text, so that each statement is a new one, to be parsed and planned. That costs more than its rows.
        """
        connection: Any = self.connection
        connection.ensure_connection()
        raw = connection.connection
        if raw.prepare_threshold is None:
            return connection.cursor()
        usual, raw.cursor_factory = raw.cursor_factory, psycopg.Cursor
        try:
            return connection.cursor()
        finally:
            raw.cursor_factory = usual

    def complete_successes(self, successes: Sequence[Attempted], *, keep: bool) -> set[int]:
        table, params = self._table_of(successes)
        statement = self.sql(_COMPLETE.replace("{table}", table).replace("{kept}", _KEPT if keep else ""))
        return {token for (token,) in sessions.fetch_prepared(self.connection, statement, params)}

    def begin_runs(self, pool: str, lane: int, starts: Sequence[Start], started_ms: float) -> Callable[[], dict[int, int]]:
        ids, *columns = zip(*starts, strict=True)
        arrays = [_array(kind, values) for kind, values in zip(("bigint", "uuid", "bigint", "bigint"), (ids, *columns), strict=True)]
        params = [self.sql("{RunningWork}"), *arrays, pool, lane, self.moment_param(started_ms), arrays[0]]
        sent = self.send(_BEGIN_RUNS, params)
        return lambda: dict(sent.rows())

    def clock_ms(self) -> float:
        return float(self.fetch(f"SELECT {self.clock_ms_sql}")[0][0])

    def moment_sql(self) -> tuple[str, list[Any]]:
        # A pooler's session may be set to any time zone.
        return ("clock_timestamp()", []) if settings.USE_TZ else ("(clock_timestamp() AT TIME ZONE %s)", [settings.TIME_ZONE])

    def private_connection(self, purpose: str) -> None:
        wrapper = sessions.private_wrapper(self.using, purpose)
        old = connections[self.using]
        connections[self.using] = wrapper
        old.close()

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        connection: Any = self.connection
        connection.ensure_connection()
        if self.is_pooled or not psycopg.Pipeline.is_supported():
            # Not every pooler knows how to.
            yield
        else:
            with connection.wrap_database_errors, connection.connection.pipeline():
                yield

    @contextmanager
    def write(self) -> Iterator[None]:
        with super().write():
            if self.is_pooled:
                with self.connection.cursor() as cursor:
                    sessions.set_options(cursor, sessions.SESSION, local=True)
            yield

    @property
    def is_pooled(self) -> bool:
        return sessions.is_pooled(self.connection)

    def cut(self, purpose: str) -> None:
        sessions.cut(self.using, purpose)

    def pooler_warnings(self) -> list[str]:
        wrapper = sessions.private_wrapper(self.using, "check")
        try:
            wrapper.ensure_connection()
            pooled, direct = sessions.is_pooled(wrapper), conf.direct_alias(self.using)
        finally:
            wrapper.close()
        texts = []
        if pooled:
            texts.append(
                f"Database {direct or self.using!r} is behind a pooler that gives each transaction another session: a dead worker is "
                "known by its beat alone, after 30 s, and processes look for work four times a second instead of being told. "
                'Name an alias that leads past the pooler as "DIRECT" in WORKPOOLS.'
            )
        if (pooled or direct) and connections.settings[self.using]["OPTIONS"].get("prepare_threshold") is not None:
            texts.append(
                f"Database {self.using!r} prepares statements behind a pooler: functions and views will meet statements that their session "
                'does not have, or has already. Remove "prepare_threshold" from its OPTIONS, unless the pooler keeps prepared statements.'
            )
        return texts

    @contextmanager
    def fast_commit(self) -> Iterator[None]:
        with self.write():
            self.execute("SET LOCAL synchronous_commit = off")
            yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        with transaction.atomic(using=self.using):
            self.execute("SET TRANSACTION READ ONLY")
            yield

    def check_constraints(self) -> None:
        self.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def defer_constraints(self) -> None:
        self.execute("SET CONSTRAINTS ALL DEFERRED")

    def notify(self, hints: Sequence[Hint], unless: Condition | None = None) -> None:
        payloads = list(dict.fromkeys(f"{hint.kind} {hint.name}"[:PAYLOAD_MAX] for hint in hints))
        if payloads:
            sends = ", ".join(["pg_notify(%s, %s)"] * len(payloads))
            where, params = ("", []) if unless is None else (f" WHERE NOT EXISTS ({unless[0]})", unless[1])
            with self._cursor() as cursor:
                cursor.execute(self.sql(f"SELECT {sends}{where}"), [text for payload in payloads for text in (CHANNEL, payload)] + params)

    def watch(self) -> Watch:
        from .listening import PostgreSQLWatch

        return PostgreSQLWatch(self)
