"""MariaDB and MySQL (mysqlclient, or PyMySQL in its place): a lease as on PostgreSQL, named locks, and looks instead of hints.

Written with what both have: JSON_TABLE brings rows into a statement, SKIP LOCKED and NOWAIT pass over what others hold. What only
MariaDB has (INSERT ... RETURNING) is used where it saves a statement.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any

from django.conf import settings
from django.db import OperationalError, connections, transaction

from ..segments import ceil_segment
from ..types import Attempted
from . import mysql_sessions as sessions
from .base import Database
from .parts import Part
from .rows import KEPT_COLUMNS, WORK_COLUMNS, Due, NewWork, Start
from .watch import Watch

#: Bytes of arguments that one statement brings: quoted twice they must fit into ``max_allowed_packet``, 16 MB unless said otherwise.
STATEMENT_MAX = 2_000_000
#: Milliseconds since 1970 when the statement began. Not from the session's time zone: that has an hour twice when summer ends.
_CLOCK_MS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000e0"
_COLUMNS = ", ".join(KEPT_COLUMNS)
_WRITES = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "TRUNCATE", "CREATE", "ALTER", "DROP", "LOAD", "CALL"})


class MySQL(Database):
    """MariaDB 10.6 or newer, MySQL 8.0.11 or newer. READ COMMITTED, which is what Django sets, is assumed of all sessions."""

    vendor = "mysql"
    kicks = False
    leases = True
    correlates = False
    shares_conflicts = True
    clock_ms_sql = _CLOCK_MS

    # Statements -------------------------------------------------------------------------------------------------

    @property
    def _features(self) -> Any:
        return self.connection.features

    def fetch(self, template: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        # The drivers return a tuple.
        return list(super().fetch(template, params))

    def execute(self, template: str, params: Sequence[Any] = ()) -> int:
        if template.startswith("DELETE") and not sessions.is_private(self.connection):
            # As in the pool's own sessions: without it a short table is read as a whole, and rows that others hold are waited for.
            template = sessions.found_by_key(self.connection, template)
        return super().execute(template, params)

    def ask(self, part: Part) -> list[tuple[Any, ...]]:
        if not part.changes:
            return super().ask(part)
        # An UPDATE returns no rows here: that it has changed one is what is asked for.
        statement = part.template.rpartition(" RETURNING ")[0]
        if not sessions.is_mariadb(self.connection):
            # Its UPDATE waits for a second at least for a row that somebody holds, and can pass over none: so that is asked first.
            change, _, condition = statement.rpartition(" WHERE ")
            params = part.params[len(part.params) - condition.count("%s") :]
            self.fetch(f"SELECT 1 FROM {change.split()[1]} WHERE {condition} FOR UPDATE NOWAIT", params)
        return [(1,)] * self.execute(sessions.without_waiting(self.connection, statement), part.params)

    def moved_on(self, statement: str) -> str:
        return statement.replace("UTC_TIMESTAMP(6)", f"(UTC_TIMESTAMP(6) + INTERVAL {round(self.ahead_ms * 1000)} MICROSECOND)")

    def whole(self, number: str) -> str:
        return f"CAST({number} AS SIGNED)"

    def real(self, text: str) -> str:
        return f"({text} + 0e0)"

    def upsert(self, key: str, columns: Sequence[str]) -> str:
        return f"ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in columns)}"

    def among(self, column: str, values: Sequence[int] | Sequence[uuid.UUID]) -> tuple[str, Any]:
        # The driver writes a tuple as a list in parentheses.
        return f"{column} IN %s", tuple(value.hex if isinstance(value, uuid.UUID) else value for value in values)

    def by(self, index: str) -> str:
        return f"FORCE INDEX ({index})"

    def after(self, prefix: str, position: tuple[int, int]) -> tuple[str, list[Any]]:
        # A pair that is compared finds nothing by an index here: it would walk all that was worked off, as long as a snapshot keeps it.
        segment, row_id = position
        return f"{prefix}segment >= %s AND ({prefix}segment > %s OR {prefix}id > %s)", [segment, segment, row_id]

    def uuid_param(self, value: uuid.UUID) -> Any:
        return value.hex

    def with_uuids(self, rows: list[tuple[Any, ...]], place: int) -> list[tuple[Any, ...]]:
        return [(*row[:place], self.read_uuid(row[place]), *row[place + 1 :]) for row in rows]

    def numbers(self, first: int, last: int) -> str:
        return f"JSON_TABLE('{list(range(first, last + 1))}', '$[*]' COLUMNS (value INT PATH '$'))"

    def table(self, **columns: tuple[str, Sequence[Any]]) -> tuple[str, list[Any]]:
        text = f"LONGTEXT CHARACTER SET utf8mb4 COLLATE {sessions.collation(self.connection)}"
        kinds = {"bigint": "BIGINT", "text": text, "uuid": text.replace("LONGTEXT", "CHAR(32)")}
        typed = ", ".join(f"{name} {kinds[kind]} PATH '$[{place}]'" for place, (name, (kind, _)) in enumerate(columns.items()))
        # A UUID is a type of its own on MariaDB 10.7, and 32 characters elsewhere.
        native = self._features.has_native_uuid_field
        names = ", ".join(f"CAST(j.{name} AS UUID) AS {name}" if native and kind == "uuid" else name for name, (kind, _) in columns.items())
        rows = zip(*(values for _, values in columns.values()), strict=True)
        param = json.dumps([[one.hex if isinstance(one, uuid.UUID) else one for one in row] for row in rows], ensure_ascii=False)
        return f"(SELECT {names}, place FROM JSON_TABLE(%s, '$[*]' COLUMNS ({typed}, place FOR ORDINALITY)) j) AS m", [param]

    def insert_work(self, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], due: Due) -> int:
        created, moment = self.moment_sql()
        callback_of, batch_id = (one.hex if one else None for one in (new.callback_of, new.batch_id))
        before = [new.pool, new.fn_type, new.func_path, new.name]
        after = [
            new.priority,
            new.on_complete,
            new.on_complete_context,
            new.retry,
            callback_of,
            new.timeout_ms,
            batch_id,
            new.trace,
            *moment,
        ]
        segment, delay = f"FLOOR({_CLOCK_MS} / 100)", []
        if due.delay_ms is not None:
            segment, delay = f"{segment}, CEIL(({_CLOCK_MS} + %s) / 100)", [due.delay_ms]
        if due.moment_ms is not None:
            # GREATEST of a NULL would be NULL here.
            segment = f"{segment}, CASE WHEN %s > {_CLOCK_MS} THEN %s ELSE 0 END"
            delay += [due.moment_ms, ceil_segment(due.moment_ms)]
        for first, last in _portions(arguments):
            table, rows = self.table(id=("uuid", ids[first:last]), arguments=("text", arguments[first:last]))
            self.execute(
                f"INSERT INTO {{Work}} ({WORK_COLUMNS}) SELECT m.id, %s, %s, %s, %s, m.arguments, %s, 0, 0, %s, %s, %s, false, "
                f"%s, %s, %s, %s, {created} FROM {table}",
                [*before, *after, *rows],
            )
        table, rows = self.table(id=("uuid", ids))
        self.execute(
            "INSERT INTO {PendingStart} (work_id, pool, lane, priority, segment) "
            f"SELECT m.id, %s, %s, %s, GREATEST(%s, {segment}) FROM {table} ORDER BY m.place",
            [new.pool, new.lane, new.priority, due.segment, *delay, *rows],
        )
        # Only kicks want to know it, and there are none.
        return due.segment

    def complete_successes(self, successes: Sequence[Attempted], *, keep: bool) -> set[int]:
        works, param = self.among("id", [one.run.work_id for one in successes])
        locked = {self.read_uuid(row[0]) for row in self.fetch(f"SELECT id FROM {{Work}} WHERE {works} ORDER BY id FOR UPDATE", [param])}
        mine = [one for one in successes if one.run.work_id in locked]
        if not mine:
            return set()
        # Read by a statement that began when the works were locked; locking, it sees what is, whatever the session's snapshot.
        runs, param = self.among("r.id", [one.run.token for one in mine])
        owned = dict(
            self.fetch(
                "SELECT STRAIGHT_JOIN r.id, r.work_id FROM {RunningWork} r LEFT JOIN {PendingCompletion} c ON c.work_id = r.work_id "
                f"WHERE {runs} AND c.id IS NULL ORDER BY r.id FOR UPDATE",
                [param],
            )
        )
        mine = [one for one in mine if one.run.token in owned and self.read_uuid(owned[one.run.token]) == one.run.work_id]
        if not mine:
            return set()
        table, params = self._table_of(mine)
        if keep:
            now, moment = self.moment_sql()
            self.execute(
                f"INSERT INTO {{Archive}} ({_COLUMNS}, attempts, kind, value, error, worker, started, finished, callback, callback_error) "
                f"SELECT {', '.join(f'w.{name}' for name in KEPT_COLUMNS)}, w.attempts + 1, 'success', m.value, '', m.worker, r.started, "
                f"{now}, '', '' FROM {table} JOIN {{Work}} w ON w.id = m.id JOIN {{RunningWork}} r ON r.id = m.token",
                [*moment, *params],
            )
        self.execute(
            "INSERT INTO {PendingCompletion} (work_id, pool, segment, kind, follow) "
            f"SELECT w.id, w.pool, FLOOR({_CLOCK_MS} / 100), 'success', 'end' FROM {table} JOIN {{Work}} w ON w.id = m.id",
            params,
        )
        works, param = self.among("id", [one.run.work_id for one in mine])
        self.execute(f"DELETE FROM {{Work}} WHERE {works}", [param])
        return {one.run.token for one in mine}

    def begin_runs(self, pool: str, lane: int, starts: Sequence[Start], started_ms: float) -> Callable[[], dict[int, int]]:
        ids, works, segments, workers = zip(*starts, strict=True)
        table, params = self.table(work_id=("uuid", works), segment=("bigint", segments), worker=("bigint", workers))
        insert = (
            "INSERT INTO {RunningWork} (work_id, pool, lane, worker_id, due, started) "
            f"SELECT m.work_id, %s, %s, m.worker, m.segment, %s FROM {table} ORDER BY m.place"
        )
        values = [pool, lane, self.moment_param(started_ms), *params]
        if self._features.can_return_rows_from_bulk_insert:
            begun = self.fetch(f"{insert} RETURNING work_id, id", values)
        else:
            self.execute(insert, values)
            among, param = self.among("work_id", works)
            begun = self.fetch(f"SELECT work_id, id FROM {{RunningWork}} WHERE {among}", [param])
        among, param = self.among("id", ids)
        self.execute(f"DELETE FROM {{PendingStart}} WHERE {among}", [param])
        tokens = {self.read_uuid(work_id): int(token) for work_id, token in begun}
        return lambda: {one.id: tokens[one.work_id] for one in starts}

    # Time -------------------------------------------------------------------------------------------------------

    def clock_ms(self) -> float:
        return float(self.fetch(f"SELECT {_CLOCK_MS}")[0][0])

    def moment_sql(self) -> tuple[str, list[Any]]:
        # Django keeps local times here, in UTC unless the settings say otherwise.
        return ("UTC_TIMESTAMP(6)", []) if settings.USE_TZ and self.connection.timezone is UTC else super().moment_sql()

    # Transactions -----------------------------------------------------------------------------------------------

    def private_connection(self, purpose: str) -> None:
        wrapper = sessions.private_wrapper(self.using, purpose)
        old = connections[self.using]
        connections[self.using] = wrapper
        old.close()

    def cut(self, purpose: str) -> None:
        sessions.cut(self.using, purpose)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        begins = not self.connection.in_atomic_block
        with transaction.atomic(using=self.using):
            if begins:
                self.execute("START TRANSACTION READ ONLY")
                yield
            else:
                # Inside another transaction, a test's, it would commit that one.
                with self.connection.execute_wrapper(_refuse_writes):
                    yield

    def watch(self) -> Watch:
        from .looking import MySQLWatch

        return MySQLWatch(self)


def _refuse_writes(execute: Any, sql: Any, *args: Any) -> Any:
    if isinstance(sql, str) and sql.lstrip().partition(" ")[0].upper() in _WRITES:
        raise OperationalError(1792, "Cannot execute statement in a READ ONLY transaction.")
    return execute(sql, *args)


def _portions(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the (first, last) of slices that fit into a statement each."""
    first, size = 0, 0
    for place, text in enumerate(texts):
        if size and size + len(text) > STATEMENT_MAX:
            yield first, place
            first, size = place, 0
        size += len(text)
    yield first, len(texts)
