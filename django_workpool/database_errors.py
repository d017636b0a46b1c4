"""What an error of the database means for whoever got it: a conflict, a lost connection, something that passes."""

from collections.abc import Iterator
from typing import Any

from django.db.utils import Error

from .failures import get_cause, guarded, text_of

#: Errors that a database error is looked for behind: Django's, and the driver's below it.
CAUSES = 5

#: PostgreSQL: serialization_failure, deadlock_detected, lock_not_available; and invalid_sql_statement_name: a function has deallocated
#: what the driver had prepared in its session, which prepares it anew after the rollback.
_CONFLICT_STATES = frozenset({"40001", "40P01", "55P03", "26000"})
#: SQLite: SQLITE_BUSY, SQLITE_LOCKED; the upper bits of a code only say more about it.
_CONFLICT_CODES = frozenset({5, 6})
_CONFLICT_TEXTS = ("database is locked", "database table is locked", "database schema is locked")

#: MariaDB and MySQL: lock wait timeout (MariaDB also for NOWAIT), deadlock, NOWAIT, a row that has changed since the snapshot.
_CONFLICT_NUMBERS = frozenset({1205, 1213, 3572, 1020})
#: The server shuts down, has closed or killed the session, or could not be reached, has too many sessions; 0: PyMySQL's closed connection.
_LOSS_NUMBERS = frozenset({0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1203, 1927, 2002, 2003, 2006, 2012, 2013, 2014, 2055, 3169, 4031})
#: The server is read-only: by its options, or as a whole.
_READ_ONLY_NUMBERS = frozenset({1290, 1836})
#: Disk full, engine's errors, out of memory, too many transactions, told to stop, took too long, a cluster that is not ready.
_PASSING_NUMBERS = frozenset({1021, 1030, 1037, 1038, 1041, 1047, 1114, 1135, 1180, 1206, 1226, 1317, 1412, 1615, 1637, 1969, 3024, 3100})
_MISSING_NUMBERS = frozenset({1054, 1146})

#: PostgreSQL: admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout,
#: idle_in_transaction_session_timeout, transaction_timeout. Class 08 is *connection exception* as a whole.
_LOSS_STATES = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"})
#: read_only_sql_transaction.
_READ_ONLY_STATE = "25006"
#: Where the server refuses a prepared statement whose columns are of other types by now: its state says only "not supported".
_REPLANS = "RevalidateCachedQuery"
#: Without a state the server has said nothing: then the driver's or libpq's own words are all there is.
_LOSS_TEXTS = (
    "connection is closed",
    "connection is lost",
    "connection already closed",
    "connection not open",
    "connection has been closed",
    "closed the connection",
    "no connection to the server",
    "consuming input failed",
    "sending query failed",
    "could not receive data from server",
    "could not send data to server",
    "terminating connection",
    "ssl syscall error",
    "ssl error",
    "connection failed",
    "connection refused",
    "connection reset",
    "connection timed out",
    "connection timeout",
    "timeout expired",
    "broken pipe",
    "eof detected",
    "could not connect to server",
    # Of Django's connection pool (psycopg_pool): PoolTimeout, and a pool that has been closed.
    "couldn't get a connection",
    "pool initialization incomplete",
    "failed to resolve host",
)


#: Classes of SQLSTATE: connections, transaction states (a read-only standby among them), conflicts, resources, objects in use,
#: an operator's intervention or a time-out, the system, and the database's own errors.
_PASSING_CLASSES = frozenset({"08", "25", "40", "53", "55", "57", "58", "XX"})


def is_conflict(exc: BaseException) -> bool:
    """Return whether the database refused ``exc``'s statement only because of others at work: again at once, it may succeed.

    PostgreSQL: serialization failures, deadlocks, locks not available, prepared statements that are gone; MariaDB and MySQL: deadlocks,
    locks not available; SQLite: locked by another connection.
    """
    return guarded(_says_conflict, False, exc)


def _says_conflict(exc: BaseException) -> bool:
    for error in _database_errors(exc):
        state, code, number = getattr(error, "sqlstate", None), getattr(error, "sqlite_errorcode", None), _number(error)
        if number is not None:
            return number in _CONFLICT_NUMBERS
        if state is not None:
            return state in _CONFLICT_STATES
        if isinstance(code, int):
            return code & 0xFF in _CONFLICT_CODES
        if type(error).__name__ == "OperationalError" and text_of(error).startswith(_CONFLICT_TEXTS):
            return True
    return False


def is_connection_loss(exc: BaseException) -> bool:
    """Return whether ``exc`` says that the connection to the database is gone, or could not be made.

    After a loss at COMMIT nobody knows whether the transaction took effect.
    """
    return guarded(_says_loss, False, exc)


def _says_loss(exc: BaseException) -> bool:
    for error in _database_errors(exc):
        state, number = getattr(error, "sqlstate", None), _number(error)
        if number is not None:
            return number in _LOSS_NUMBERS
        if isinstance(state, str):
            return state in _LOSS_STATES or state.startswith("08")
        if type(error).__name__ in ("OperationalError", "InterfaceError", "PoolTimeout") and get_cause(error) is None:
            text = text_of(error).lower()
            return any(words in text for words in _LOSS_TEXTS)
    return False


def is_away(exc: BaseException) -> bool:
    """Return whether the pool's own statements failed because there is no database to write to: connecting again is what may help.

    The connection is gone, or it leads to a server that has become a read-only standby: its successor is found by connecting. Or it has
    prepared a statement whose columns have another type since a migration: outside a transaction nothing but a new session forgets it.
    """
    return is_connection_loss(exc) or guarded(_says_that_the_session_is_over, False, exc)


def _says_that_the_session_is_over(exc: BaseException) -> bool:
    for error in _database_errors(exc):
        source = getattr(getattr(error, "diag", None), "source_function", None)
        if _number(error) in _READ_ONLY_NUMBERS or getattr(error, "sqlstate", None) == _READ_ONLY_STATE or source == _REPLANS:
            return True
    return False


def lacks_table(exc: BaseException) -> bool:
    """Return whether a table, or a column of it, is not there: something was not migrated."""
    return guarded(_says_that_it_lacks, False, exc)


def _says_that_it_lacks(exc: BaseException) -> bool:
    # PostgreSQL: undefined_table, undefined_column.
    return any(
        _number(error) in _MISSING_NUMBERS
        or getattr(error, "sqlstate", None) in ("42P01", "42703")
        or text_of(error).startswith(("no such table", "no such column"))
        for error in _database_errors(exc)
    )


def may_pass(exc: BaseException) -> bool:
    """Return whether the same statements may succeed later: the database is away, full, read-only, busy, or was told to stop.

    Errors of the data and of the statement, and what is no database's error, stay as they are.
    """
    return guarded(_says_it_may_pass, False, exc)


def _says_it_may_pass(exc: BaseException) -> bool:
    for error in _database_errors(exc):
        state, number = getattr(error, "sqlstate", None), _number(error)
        if number is not None:
            return number in _CONFLICT_NUMBERS | _LOSS_NUMBERS | _READ_ONLY_NUMBERS | _PASSING_NUMBERS
        if isinstance(state, str):
            return state[:2] in _PASSING_CLASSES
        if type(error).__name__ not in ("OperationalError", "InterfaceError", "InternalError"):
            # Django's wrapper has the class of the driver's error.
            return type(error).__name__ == "PoolTimeout"
    return next(_database_errors(exc), None) is not None


def aborts_transaction(exc: BaseException) -> bool:
    """Return whether the server has rolled the whole transaction back and then begins another: a deadlock on MariaDB or MySQL."""
    return guarded(lambda error: any(_number(one) == 1213 for one in _database_errors(error)), False, exc)


def _number(error: BaseException) -> int | None:
    """Return the number of an error of MariaDB or MySQL: their drivers' errors have (number, text) for arguments."""
    args = error.args
    return args[0] if len(args) == 2 and type(args[0]) is int and isinstance(args[1], str) else None


def _database_errors(exc: BaseException) -> Iterator[BaseException]:
    """Yield ``exc`` and what it was raised from, as long as these are errors of Django's database layer or of a driver."""
    error: Any = exc
    for _ in range(CAUSES):
        # Drivers have no class in common; each of them names its base "Error", as PEP 249 wants.
        if error is None or not any(base is Error or base.__name__ == "Error" for base in type(error).__mro__):
            return
        yield error
        error = get_cause(error)
