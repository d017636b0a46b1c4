"""One database connection while a function runs: what the function did to it, as far as it can be known without asking the server.

Statements are seen by a wrapper around Django's cursors. What goes past them is seen only in its effect on the transaction: the
driver's own connection (``connection.connection``), ``cursor.callproc()``, ``cursor.copy()``, SQLite's ``executescript()``.
"""

import select
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, Self

from django.db.backends.base.base import BaseDatabaseWrapper

from ..database.mysql_sessions import is_mysql
from ..database_errors import aborts_transaction
from ..exceptions import WorkTimeout
from .statements import Effect, effect_of
from .timeouts import raise_if_over


class Session(Enum):
    """The state of a driver's connection, as the driver knows it."""

    #: Closed, or broken.
    CLOSED = "closed"
    #: No transaction.
    IDLE = "idle"
    #: In a transaction.
    OPEN = "open"
    #: In a transaction that an error has aborted.
    ABORTED = "aborted"
    #: A driver that does not say.
    UNKNOWN = "unknown"


#: libpq's PQtransactionStatus; anything above means that the connection is bad.
_LIBPQ_STATES = {0: Session.IDLE, 1: Session.OPEN, 2: Session.OPEN, 3: Session.ABORTED}


def session_state(raw: Any) -> Session:
    """Return the state of the driver's connection ``raw``; no round trip."""
    try:
        if raw is None or getattr(raw, "closed", False) or not getattr(raw, "open", True):
            return Session.CLOSED
        libpq = getattr(raw, "pgconn", None)
        if libpq is not None:
            return _LIBPQ_STATES.get(int(libpq.transaction_status), Session.CLOSED)
        if hasattr(raw, "in_transaction"):
            return Session.OPEN if raw.in_transaction else Session.IDLE
        # PyMySQL keeps what the server said last: SERVER_STATUS_IN_TRANS. mysqlclient does not.
        status = getattr(raw, "server_status", None)
        if isinstance(status, int):
            return Session.OPEN if status & 1 else Session.IDLE
    except WorkTimeout:
        # This is asked in the midst of a function, too, whose timeout may be over now: swallowed, nothing would interrupt it again.
        raise
    except Exception:
        # SQLite's says no more than this of a closed connection.
        return Session.CLOSED
    return Session.UNKNOWN


def has_news(raw: Any) -> bool:
    """Return whether the server has sent something nobody asked for: a farewell most of the time. No round trip."""
    # PyMySQL has a socket, the others have its number.
    fileno: Callable[[], int] | None = getattr(raw, "fileno", None) or getattr(getattr(raw, "_sock", None), "fileno", None)
    if fileno is None:
        return False
    try:
        poll = select.poll()
        poll.register(fileno(), select.POLLIN)
        return bool(poll.poll(0))
    except Exception:
        return True


def _is_in_memory(connection: Any) -> bool:
    with suppress(Exception):
        return bool(connection.is_in_memory_db())  # Only SQLite has it, and a function may have spoilt what it asks.
    return False


class _Mark(NamedTuple):
    """The transaction of a connection at one moment."""

    raw: Any = None
    session: Session = Session.CLOSED
    savepoints: tuple[Any, ...] = ()
    in_atomic: bool = False
    autocommit: bool = True
    needs_rollback: bool = False

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper) -> Self:
        raw = connection.connection
        return cls(
            raw,
            session_state(raw),
            tuple(connection.savepoint_ids),
            connection.in_atomic_block,
            connection.autocommit,
            connection.needs_rollback,
        )

    def damage(self, connection: BaseDatabaseWrapper) -> str | None:
        """Return what has become of the surrounding transaction, if it cannot go on."""
        if connection.closed_in_transaction or connection.connection is not self.raw:
            return "closed the connection inside the transaction"
        if not connection.in_atomic_block or len(connection.savepoint_ids) < len(self.savepoints):
            return "left an atomic block that it had not entered"
        if tuple(connection.savepoint_ids) != self.savepoints:
            return "left an atomic block open"
        if connection.autocommit != self.autocommit:
            return "changed autocommit inside the transaction"
        session = session_state(self.raw)
        if session is Session.CLOSED:
            return "lost the connection, and went on"
        if (connection.needs_rollback and not self.needs_rollback) or session is Session.ABORTED:
            return "went on after an error of the database that had aborted the transaction"
        if session is Session.IDLE and self.session is Session.OPEN:
            return "ended the transaction with a statement of its own"
        return None


class SessionWatch:
    """A connection of this thread, watched from ``begin`` to ``end``, and more closely since ``mark``."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection, self._mysql = connection, is_mysql(connection)
        #: Whether the connection is inside the transaction of whoever called ``begin``: then it is not ours to reset.
        self.borrowed = False
        #: Whether the session was changed.
        self.tainted = False
        self._watching = self._paused = False
        self._others: list[Any] | None = None
        self._cursors: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begun = self._mark = _Mark()
        self._used = self._opened = False
        self._ended_transaction = False

    def begin(self, *, opened: bool = False) -> None:
        """Start watching. ``opened``: the connection was opened this moment, while a function runs."""
        connection = self.connection
        self.borrowed = connection.in_atomic_block and not opened
        if self.borrowed:
            self._begun = _Mark.of(connection)
        # Of a connection opened this moment it is unknown who else still enters a wrapper because it was opened.
        self._others = None if opened else list(connection.execute_wrappers)
        self.tainted = False
        self._watching = True
        self._cursors.clear()
        self._mark = _Mark()
        connection.execute_wrappers.append(self)

    def end(self) -> str | None:
        """Stop watching, and return what the function did and should not have, as a verb and its object, or None.

        The connection keeps what was left behind, but for its ``execute_wrappers``.
        """
        self._watching = False
        wrappers = self.connection.execute_wrappers
        if self not in wrappers:
            # Whatever was sent since then, nobody has seen it.
            self.tainted = True
        complaint = None
        if self._others is None:
            with suppress(ValueError):
                wrappers.remove(self)
        else:
            if [other for other in wrappers if other is not self] != self._others:
                complaint = "left other execute_wrappers than it found"
            wrappers[:] = self._others
        if self._cursors:
            self.tainted |= any(not cursor.closed for cursor in self._cursors)
            self._cursors.clear()
        if self.borrowed:
            return self._begun.damage(self.connection) or complaint
        left = self._open_transaction()
        return f"left {left}" if left else complaint

    def pause(self, paused: bool) -> None:
        """Let statements pass unseen, or see them again."""
        self._paused = paused

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        """See a statement on its way: what Django calls an execute wrapper."""
        if not self._watching or self._paused:
            return execute(sql, params, many, context)
        raise_if_over()
        self._see(sql, context["cursor"].cursor)
        done = self._execute_on_mysql(execute, sql, params, many, context) if self._mysql else execute(sql, params, many, context)
        raise_if_over()
        return done

    def _execute_on_mysql(self, execute: Callable[..., Any], *args: Any) -> Any:
        """Execute, and see what the text does not tell: a deadlock undoes all, and the next statement begins another transaction."""
        try:
            return execute(*args)
        except BaseException as error:
            self._ended_transaction = self._ended_transaction or aborts_transaction(error)
            raise
        finally:
            self._opened = self._opened or session_state(self.connection.connection) is Session.OPEN

    def _see(self, sql: Any, cursor: Any) -> None:
        self._used = True
        if getattr(cursor, "name", None):
            # On the server, where it stays open until it is closed.
            self._cursors.add(cursor)
        effect = effect_of(sql, cursor, mysql=self._mysql)
        if effect:
            self.tainted = self.tainted or Effect.SESSION in effect
            self._ended_transaction = self._ended_transaction or Effect.TRANSACTION in effect

    def doubt(self) -> None:
        """Have the connection checked at its next use: the server may end a session that is idle while a function takes its time."""
        connection: Any = self.connection
        if not connection.in_atomic_block:
            connection.health_check_enabled, connection.health_check_done = True, False

    def is_dead(self, *, in_use: bool = False) -> bool:
        """Return whether an open connection cannot be used any more. A round trip only where there is reason to doubt.

        Args:
            in_use: Other functions use it: then its age is no matter.
        """
        connection, raw = self.connection, self.connection.connection
        if raw is None or connection.in_atomic_block:
            return False
        if session_state(raw) is Session.CLOSED:
            return True
        if connection.errors_occurred or has_news(raw):
            if not connection.is_usable():
                return True
            connection.errors_occurred = False
        # CONN_MAX_AGE 0, Django's default, is meant for requests: an executor's thread would connect for each function.
        if in_use or not connection.settings_dict["CONN_MAX_AGE"] or connection.close_at is None:
            return False
        return time.monotonic() >= connection.close_at

    def mark(self) -> None:
        """Remember the transaction as it is now, for ``leftovers``."""
        self._used = self._opened = self._ended_transaction = False
        self._mark = _Mark.of(self.connection)

    def leftovers(self) -> str | None:
        """Return how the function damaged the transaction since ``mark``, as a verb and its object, or None. Changes nothing."""
        if not self._mark.in_atomic:
            left = self._open_transaction()
            return f"left {left}" if left else None
        damage = self._mark.damage(self.connection)
        # A transaction that was not yet sent to the server is idle until the first statement; MariaDB's until the first that needs one.
        used = self._opened if self._mysql else self._used
        if damage is None and (self._ended_transaction or used and session_state(self._mark.raw) is Session.IDLE):
            damage = "ended the transaction with a statement of its own"
        return damage

    def _open_transaction(self) -> str | None:
        """Return what is left of a transaction on a connection that should have none."""
        connection = self.connection
        if connection.in_atomic_block or connection.atomic_blocks or connection.savepoint_ids or connection.closed_in_transaction:
            return "an atomic block open"
        if connection.connection is None:
            return None
        if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
            return "autocommit changed"
        if connection.run_on_commit or connection.needs_rollback:
            return "a transaction half ended"
        if session_state(connection.connection) in (Session.OPEN, Session.ABORTED):
            return "a transaction open"
        return None

    def reset(self) -> None:
        """Close the connection, and with it the transaction and all of the session; the next use makes a new one."""
        connection, keep = self.connection, _is_in_memory(self.connection)
        with suppress(Exception):
            if keep:
                # The database would go with the connection.
                connection.connection.rollback()
            elif connection.connection is not None:
                # Before Django's own close(), which would hand a pool a session that the next one gets as it is.
                connection.connection.close()
        with suppress(Exception):
            connection.close()
        if not keep:
            connection.connection = None
        connection.in_atomic_block = connection.needs_rollback = connection.closed_in_transaction = False
        connection.commit_on_exit = True
        connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
        vars(connection)["rollback_exc"] = None
        connection.run_commit_hooks_on_set_autocommit_on = connection.errors_occurred = False
        connection.queries_log.clear()
        if keep:
            with suppress(Exception):
                connection.set_autocommit(connection.settings_dict["AUTOCOMMIT"])
