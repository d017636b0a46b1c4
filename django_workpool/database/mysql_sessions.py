"""The pool's own sessions on MariaDB and MySQL, and what differs between the two servers and between their drivers."""

import os
import socket
import weakref
from collections import deque
from contextlib import suppress
from copy import deepcopy
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.utils import load_backend

from .. import conf
from .forks import keep_from_children

#: What each session of the pool itself sets. Nobody may hold the pool by stopping, or by a lock.
SESSION = {
    "lock_wait_timeout": 1,
    "innodb_lock_wait_timeout": 1,
    # It makes UPDATE and DELETE find rows by a key: a short table would else be read as a whole, and every row of it that somebody
    # else has locked, or has not committed yet, be waited for.
    "sql_safe_updates": 1,
}
#: The same on one of the two: seconds there, milliseconds (and SELECT alone) here.
SESSION_MARIADB = {"max_statement_time": 30, "idle_transaction_timeout": 3}
SESSION_MYSQL = {"max_execution_time": 30_000}
#: Seconds after which the server gives up a client that is silent: the watch asks every second. A host that is gone says nothing.
SILENCE, SILENCE_WATCH = 28_800, 120
CONNECT = {"connect_timeout": 5}

_private: "weakref.WeakKeyDictionary[BaseDatabaseWrapper, str]" = weakref.WeakKeyDictionary()


def _set_up_session(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Set the session's options each time a private connection connects (again)."""
    purpose = _private.get(connection)
    if purpose is None:
        return
    values = SESSION | (SESSION_MARIADB if is_mariadb(connection) else SESSION_MYSQL)
    values["wait_timeout"] = SILENCE_WATCH if purpose == "watch" else SILENCE
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in values.items()))


connection_created.connect(_set_up_session, dispatch_uid="workpool_mysql_session")


def private_wrapper(using: str, purpose: str) -> BaseDatabaseWrapper:
    """Return a connection of the pool's own, made from the settings of the alias, or of its DIRECT one."""
    settings = deepcopy(connections[conf.direct_alias(using) or using].settings_dict)
    settings["OPTIONS"] = CONNECT | settings["OPTIONS"] | {"isolation_level": "read committed"}
    settings["CONN_MAX_AGE"] = None
    settings["AUTOCOMMIT"] = True
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, using)
    _private[wrapper] = purpose
    # DEBUG would keep thousands of statements of a process that runs for months.
    wrapper.queries_log = deque(maxlen=0)
    keep_from_children(wrapper, lambda owner: [descriptor(owner.connection)])
    return wrapper


def is_private(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is one of the pool's own."""
    return wrapper in _private


def is_mysql(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a connection is one to MariaDB or MySQL."""
    return wrapper.vendor == "mysql"


def is_mariadb(wrapper: Any) -> bool:
    """Return whether the server is MariaDB."""
    return bool(wrapper.mysql_is_mariadb)


def collation(wrapper: Any) -> str:
    """Return the collation that compares texts as they are, blanks at their ends included."""
    return "utf8mb4_nopad_bin" if is_mariadb(wrapper) else "utf8mb4_0900_bin"


def found_by_key(wrapper: Any, statement: str) -> str:
    """Return an UPDATE or DELETE that finds its rows by a key, however short the table is."""
    if is_mariadb(wrapper):
        return f"SET STATEMENT sql_safe_updates = 1 FOR {statement}"
    verb, rest = statement.split(" ", 1)
    return f"{verb} /*+ SET_VAR(sql_safe_updates = 1) */ {rest}"


def without_waiting(wrapper: Any, statement: str) -> str:
    """Return a statement that fails where it had to wait for a row, if the server can: MySQL's waits for a second at least."""
    return f"SET STATEMENT innodb_lock_wait_timeout = 0 FOR {statement}" if is_mariadb(wrapper) else statement


def descriptor(raw: Any) -> int:
    """Return the number of the socket of a driver's connection: mysqlclient says it, PyMySQL has the socket."""
    fileno = getattr(raw, "fileno", None)
    return int(fileno() if fileno is not None else raw._sock.fileno())


def cut(using: str, purpose: str) -> None:
    """Cut the connections of a purpose, from another thread."""
    for wrapper, its in list(_private.items()):
        if its == purpose and wrapper.alias == using and wrapper.connection is not None:
            with suppress(Exception), socket.socket(fileno=os.dup(descriptor(wrapper.connection))) as twin:
                twin.shutdown(socket.SHUT_RDWR)
