"""SQLite: one host, one writer. Locks are flocks on files beside the database (``files.py``)."""

import json
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

from django.db import connections, transaction
from django.db.utils import load_backend

from ..segments import ceil_segment, floor_segment
from ..types import Attempted
from . import files
from .base import Database
from .forks import keep_from_children
from .rows import KEPT_COLUMNS, WORK_COLUMNS, Due, NewWork, Start
from .watch import Watch

#: How long the pool's own transactions wait for the writer's lock; a longer wait is tried again.
LOCK_TIMEOUT = 5.0

_INSERT_WORK = "INSERT INTO {Work} (" + WORK_COLUMNS + ") VALUES (" + ", ".join(["%s"] * 18) + ")"
_INSERT_START = "INSERT INTO {PendingStart} (work_id, pool, lane, priority, segment) VALUES (%s, %s, %s, %s, %s)"


class SQLite(Database):
    """A SQLite file. Its clock is the host's, which is the process's."""

    vendor = "sqlite"
    kicks = False
    leases = False
    # Writers that wait look at growing distances, up to 100 ms: they must have a fair chance to find it free.
    courtesy = 0.25

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._lead_file: int | None = None
        self._turn = threading.RLock()
        keep_from_children(self, lambda db: [] if db._lead_file is None else [db._lead_file])

    def among(self, column: str, values: Sequence[int] | Sequence[uuid.UUID]) -> tuple[str, Any]:
        return f"{column} IN (SELECT value FROM json_each(%s))", json.dumps([v.hex if isinstance(v, uuid.UUID) else v for v in values])

    def uuid_param(self, value: uuid.UUID) -> Any:
        return value.hex

    def with_uuids(self, rows: list[tuple[Any, ...]], place: int) -> list[tuple[Any, ...]]:
        return [(*row[:place], uuid.UUID(row[place]), *row[place + 1 :]) for row in rows]

    def insert_work(self, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], due: Due) -> int:
        now = self.clock_ms()
        segment = max(due.segment, floor_segment(now))
        if due.delay_ms is not None:
            segment = max(segment, ceil_segment(now + due.delay_ms))
        if due.moment_ms is not None and due.moment_ms > now:
            segment = max(segment, ceil_segment(due.moment_ms))
        created = self.moment_param(now)
        callback_of, batch_id = (one.hex if one else None for one in (new.callback_of, new.batch_id))
        common = (new.pool, new.fn_type, new.func_path, new.name)
        rest = (
            new.priority,
            0,
            0,
            new.on_complete,
            new.on_complete_context,
            new.retry,
            False,
            callback_of,
            new.timeout_ms,
            batch_id,
            new.trace,
            created,
        )
        with self.connection.cursor() as cursor:
            cursor.executemany(
                self.sql(_INSERT_WORK), [(work_id.hex, *common, text, *rest) for work_id, text in zip(ids, arguments, strict=True)]
            )
            cursor.executemany(self.sql(_INSERT_START), [(work_id.hex, new.pool, new.lane, new.priority, segment) for work_id in ids])
        return segment

    def numbers(self, first: int, last: int) -> str:
        return f"(SELECT column1 AS value FROM (VALUES {', '.join(f'({number})' for number in range(first, last + 1))}))"

    def table(self, **columns: tuple[str, Sequence[Any]]) -> tuple[str, list[Any]]:
        names = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(columns))
        rows = zip(*(values for _, values in columns.values()), strict=True)
        text = json.dumps([[one.hex if isinstance(one, uuid.UUID) else one for one in row] for row in rows])
        return f"(SELECT {names}, key AS place FROM json_each(%s)) AS m", [text]

    def complete_successes(self, successes: Sequence[Attempted], *, keep: bool) -> set[int]:
        table, params = self._table_of(successes)
        owned = (
            f"FROM {table} JOIN {{Work}} w ON w.id = m.id JOIN {{RunningWork}} r ON r.id = m.token AND r.work_id = m.id "
            "LEFT JOIN {PendingCompletion} c ON c.work_id = m.id WHERE c.id IS NULL"
        )
        now, kept = self.clock_ms(), ", ".join(KEPT_COLUMNS)
        if keep:
            self.execute(
                f"INSERT INTO {{Archive}} ({kept}, attempts, kind, value, error, worker, started, finished, callback, callback_error) "
                f"SELECT {', '.join(f'w.{name}' for name in KEPT_COLUMNS)}, "
                f"w.attempts + 1, 'success', m.value, '', m.worker, r.started, %s, '', '' {owned}",
                [self.moment_param(now), *params],
            )
        done = self.fetch(
            f"INSERT INTO {{PendingCompletion}} (work_id, pool, segment, kind, follow) SELECT w.id, w.pool, %s, 'success', 'end' {owned} "
            "RETURNING (SELECT r.id FROM {RunningWork} r WHERE r.work_id = {PendingCompletion}.work_id)",
            [floor_segment(now), *params],
        )
        tokens = {int(token) for (token,) in done}
        among, param = self.among("id", [one.run.work_id for one in successes if one.run.token in tokens])
        self.execute(f"DELETE FROM {{Work}} WHERE {among}", [param])
        return tokens

    def begin_runs(self, pool: str, lane: int, starts: Sequence[Start], started_ms: float) -> Callable[[], dict[int, int]]:
        ids, works, segments, workers = zip(*starts, strict=True)
        table, params = self.table(work_id=("uuid", works), segment=("bigint", segments), worker=("bigint", workers))
        begun = self.fetch(
            "INSERT INTO {RunningWork} (work_id, pool, lane, worker_id, due, started) "
            f"SELECT m.work_id, %s, %s, m.worker, m.segment, %s FROM {table} ORDER BY m.place RETURNING work_id, id",
            [pool, lane, self.moment_param(started_ms), *params],
        )
        among, param = self.among("id", ids)
        self.execute(f"DELETE FROM {{PendingStart}} WHERE {among}", [param])
        tokens = dict(begun)
        return lambda: {one.id: tokens[one.work_id.hex] for one in starts}

    def clock_ms(self) -> float:
        return time.time() * 1000 + self.ahead_ms

    @property
    def clock_ms_sql(self) -> str:
        # Its own functions tell whole milliseconds: less than what enqueue writes down.
        return repr(self.clock_ms())

    def private_connection(self, purpose: str) -> None:
        settings = deepcopy(connections[self.using].settings_dict)
        # The pool's own transactions write: asking for the lock at the start is the way that waits instead of failing.
        settings["OPTIONS"] = {**settings["OPTIONS"], "transaction_mode": "IMMEDIATE", "timeout": LOCK_TIMEOUT}
        settings["CONN_MAX_AGE"] = None
        if not str(settings["NAME"]).startswith("file:"):
            # Functions may change the working directory.
            settings["NAME"] = files.database_file(self) or settings["NAME"]
        old = connections[self.using]
        wrapper = connections[self.using] = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, self.using)
        wrapper.queries_log = deque(maxlen=0)
        old.close()

    @contextmanager
    def write(self) -> Iterator[None]:
        # SQLite lets writers that meet sleep, up to 100 ms each time. Those of one process take turns instead.
        taken = self._turn.acquire(timeout=LOCK_TIMEOUT)
        try:
            with super().write():
                yield
        finally:
            if taken:
                self._turn.release()

    def take_turn(self) -> None:
        self.execute("DELETE FROM {PendingStart} WHERE 1 = 0")

    @contextmanager
    def read_only(self) -> Iterator[None]:
        connection: Any = self.connection
        # Connecting sets the mode: what is changed and restored is the one of an open connection.
        connection.ensure_connection()
        mode = getattr(connection, "transaction_mode", None)
        connection.transaction_mode = "DEFERRED"
        try:
            connection.connection.execute("PRAGMA query_only = ON")
            with transaction.atomic(using=self.using):
                yield
        finally:
            connection.transaction_mode = mode
            if connection.connection is not None:
                connection.connection.execute("PRAGMA query_only = OFF")

    # Locks ------------------------------------------------------------------------------------------------------

    def take_lead_lock(self) -> bool:
        path = files.lock_path(self, "lead")
        if path is None or self._lead_file is not None:
            return True
        self._lead_file = files.flock(path)
        return self._lead_file is not None

    def release_lead_lock(self) -> None:
        if self._lead_file is not None:
            os.close(self._lead_file)
            self._lead_file = None

    def forget_worker(self, worker_id: int) -> None:
        path = files.lock_path(self, f"worker-{worker_id}")
        if path is not None:
            with suppress(OSError):
                os.unlink(path)

    def watch(self) -> Watch:
        return files.SQLiteWatch(self)
