"""What functions say of their progress: kept in memory by whoever says it, written once a second by a thread of its own.

All that is new in a process goes into one statement, on a connection that is open only while somebody says something. Nothing here
ever waits inside a function, or fails it: what cannot be written is left out, and tried again with what is newest a second later.
A child process hands what is said to its parent, so it needs no connection.
"""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

from django.db import connections, transaction

from .. import conf, current_work
from ..current_work import CurrentWork
from ..database import database
from ..database.rows import PROBE
from ..database_errors import may_pass
from ..failures import first_line

logger = logging.getLogger("django_workpool.worker")

#: Seconds between two statements, after the last thing said until the connection is closed, and between two looks thereafter.
EVERY, REST, LOOK = 1.0, 5.0, 60.0
#: Rows of one statement.
MOST = 1_000
#: Seconds between two lines of a database that does not take them.
TELL_EVERY = 60.0
#: Rows that one transaction looks at.
PRUNE_CHUNK = 500


class Said(NamedTuple):
    """What a run has said last."""

    work_id: uuid.UUID
    token: int
    done: float
    total: float


class Board:
    """The newest that each run of one database has said in this process.

    Args:
        using: The database.
        bring: Takes what is new, on the board's thread; what it raises puts that off.
    """

    def __init__(self, using: str, bring: Callable[[Sequence[Said]], None]) -> None:
        self.using, self._bring = using, bring
        self._newest: dict[int, Said] = {}
        # Not an Event: a timeout's exception may be raised in the function at any instruction, and must leave no lock behind.
        self._alarm: SimpleQueue[None] = SimpleQueue()
        self._asleep = self._closed = False
        self._told = float("-inf")
        #: Statements begun, and whether one is under way.
        self._rounds, self._bringing = 0, False

    @property
    def progress(self) -> object:
        """Something else each time, unless it waits for the answer to one statement."""
        return self._rounds if self._bringing else object()

    def say(self, said: Said) -> None:
        """Take what a run says; it is written soon. Never waits."""
        self._newest[said.token] = said
        if self._asleep:
            self._alarm.put(None)
            self._asleep = False

    def close(self) -> None:
        """Let the thread end: nobody says anything any more."""
        self._closed = True
        self._alarm.put(None)

    def run(self, stop: threading.Event) -> None:
        """Bring what is said, until ``stop`` or ``close``: the body of a thread."""
        _boards[self.using] = self
        try:
            while not self._is_over(stop):
                self._wait()
                if not self._is_over(stop):
                    self._take()
                    stop.wait(EVERY)
        finally:
            if _boards.get(self.using) is self:
                del _boards[self.using]
            self._rest()

    def _is_over(self, stop: threading.Event) -> bool:
        return self._closed or stop.is_set()

    def _wait(self) -> None:
        """Wait until something is said."""
        seconds = REST
        self._asleep = True
        # Whoever has said something before that has seen nobody asleep.
        while not self._newest and not self._closed:
            with suppress(Empty):
                self._alarm.get(timeout=seconds)
                break
            self._rest()
            # An alarm can be lost to a timeout's exception.
            seconds, self._asleep = LOOK, True
        self._asleep = False

    def _rest(self) -> None:
        """Let go of what is not needed while nothing is said."""

    def _take(self) -> None:
        """Bring what is new, the works in one order for all processes."""
        taken = sorted(self._newest.pop(token) for token in list(self._newest)[:MOST])
        if not taken:
            return
        self._rounds, self._bringing = self._rounds + 1, True
        try:
            self._bring(taken)
        except Exception as error:
            with suppress(Exception):
                self._rest()
            self._put_off(taken, error)
        finally:
            self._bringing = False

    def _put_off(self, taken: Sequence[Said], error: Exception) -> None:
        if may_pass(error):
            for said in taken[: max(0, MOST - len(self._newest))]:
                self._newest.setdefault(said.token, said)
        if time.monotonic() - self._told >= TELL_EVERY:
            self._told = time.monotonic()
            logger.info("the progress of %d works could not be written: %s", len(taken), first_line(error))


#: By database.
_boards: dict[str, Board] = {}
# A copy of this process has none of its threads, and is not the one that runs the works.
os.register_at_fork(after_in_child=_boards.clear)


def hear(work: CurrentWork, done: float, total: float) -> None:
    """Take what a function says of its progress; where no board is kept for the work's database, nobody is told."""
    put(work.pool, Said(work.work_id, work.token, done, total))


def put(pool: str, said: Said) -> None:
    """Take what a run of a pool says."""
    boards = list(_boards.values())
    # Mostly this process serves one database.
    board = _boards.get(conf.database_alias(pool)) if len(boards) > 1 else next(iter(boards), None)
    if board is not None:
        board.say(said)


current_work.on_progress = hear


class WrittenBoard(Board):
    """A board that is written into the database.

    Args:
        using: The database.
    """

    def __init__(self, using: str) -> None:
        super().__init__(using, lambda taken: write(using, taken))

    def run(self, stop: threading.Event) -> None:
        """Write what is said, until ``stop`` or ``close``: the body of a thread."""
        database(self.using).private_connection("progress")
        super().run(stop)

    def _rest(self) -> None:
        connections[self.using].close()


def write(using: str, taken: Sequence[Said]) -> None:
    """Write what running works have said, in one statement; what has ended meanwhile is left out."""
    db = database(using)
    table, params = db.table(
        id=("uuid", [one.work_id for one in taken]),
        token=("bigint", [one.token for one in taken]),
        done=("text", [repr(one.done) for one in taken]),
        total=("text", [repr(one.total) for one in taken]),
    )
    now, moment = db.moment_sql()
    running = db.each("{RunningWork}", "r", "r.id = m.token AND r.work_id = m.id")
    with db.fast_commit():
        db.execute(
            f"INSERT INTO {{Progress}} (work_id, token, done, total, said) "
            f"SELECT m.id, m.token, {db.real('m.done')}, {db.real('m.total')}, {now} FROM {table} JOIN {running} WHERE 1 = 1 "
            f"{db.upsert('work_id', ('token', 'done', 'total', 'said'))}",
            [*moment, *params],
        )


def prune(using: str) -> bool:
    """Delete a chunk of what was said by runs that are over; return whether there may be more. One short look where there is nothing."""
    db = database(using)
    runs = f"EXISTS (SELECT 1 FROM {{RunningWork}} r WHERE r.id = %s AND r.work_id = %s {PROBE})"
    over = f"NOT {runs % ('p.token', 'p.work_id')}"
    gone = [db.read_uuid(row[0]) for row in db.fetch(f"SELECT p.work_id FROM {{Progress}} p WHERE {over} LIMIT {PRUNE_CHUNK}")]
    if gone:
        among, param = db.among("work_id", gone)
        with transaction.atomic(using=using):
            # The work may run again by now, and may have said something.
            mine = runs % ("{Progress}.token", "{Progress}.work_id")
            db.execute(f"DELETE FROM {{Progress}} WHERE {among} AND NOT {mine}", [param])
    return len(gone) == PRUNE_CHUNK
