"""The pool's own sessions on PostgreSQL: what they set, and whether they are sessions at all or a pooler's."""

import os
import socket
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.backends.signals import connection_created
from django.db.utils import load_backend
from psycopg import IsolationLevel

from .. import conf
from .forks import keep_from_children

#: What each session of the pool itself sets, or each of its transactions where a pooler hands sessions around.
#: The planner's options: autovacuum's ANALYZE of a nearly empty queue table makes it prefer scans of the whole, bloated table.
#: The time-outs: nobody may hold the pool by stopping.
SESSION = {
    "lock_timeout": "1s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "3s",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    # A plan made anew each time costs as much as the statement; beside a million waiting works the planner would prefer that.
    "plan_cache_mode": "force_generic_plan",
    # A scan that is switched off counts as so dear that the statement would be compiled, at 100 ms each.
    "jit": "off",
}
#: What only a session can have: the server gives up a client that is gone within seconds, and never one that is idle.
SESSION_ONLY = {
    "idle_session_timeout": "0",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
#: The same for this side of the connection, unless DATABASES says otherwise (libpq's names).
CONNECT = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "isolation_level": IsolationLevel.READ_COMMITTED,
    # The loop's few statements come again and again: they are planned once a session, not each time.
    "server_side_binding": True,
    "prepare_threshold": 2,
}


@dataclass(slots=True)
class _Session:
    """A connection of the pool's own."""

    purpose: str
    #: Whether a pooler gives each transaction another session: it can keep no settings, no lock and no LISTEN.
    pooled: bool = False


#: A threshold that is not reached: what is to be prepared says so.
NEVER = 1_000_000_000

_sessions: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()
_private: "weakref.WeakKeyDictionary[BaseDatabaseWrapper, _Session]" = weakref.WeakKeyDictionary()


def _set_up_session(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Set the session's options each time a private connection connects (again)."""
    session = _private.get(connection)
    if session is None:
        return
    raw: Any = connection.connection
    values = {**SESSION, **SESSION_ONLY, "application_name": f"workpool {session.purpose}"}
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        session.pooled = cursor.fetchone()[0] != raw.info.backend_pid
        if session.pooled:
            # Another session may not have what was prepared in this one.
            raw.prepare_threshold = None
        else:
            set_options(cursor, values, local=False)


def set_options(cursor: Any, values: dict[str, str], *, local: bool) -> None:
    """Set options for the session, or for the transaction, in one statement; names that this server does not know are passed over."""
    cursor.execute(
        "SELECT set_config(s.name, o.value, %s) FROM unnest(%s::text[], %s::text[]) AS o(name, value) "
        "JOIN pg_settings s ON s.name = o.name",
        [local, list(values), list(values.values())],
    )


connection_created.connect(_set_up_session, dispatch_uid="workpool_session")


def private_wrapper(using: str, purpose: str) -> BaseDatabaseWrapper:
    """Return a connection of the pool's own, made without Django's connection pool from the settings of the alias, or of its DIRECT one."""
    configured = connections[conf.direct_alias(using) or using].settings_dict
    settings = deepcopy({key: value for key, value in configured.items() if key != "OPTIONS"})
    settings["OPTIONS"] = CONNECT | {key: value for key, value in configured["OPTIONS"].items() if key not in ("pool", "isolation_level")}
    settings["CONN_MAX_AGE"] = None
    settings["AUTOCOMMIT"] = True
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, using)
    _private[wrapper] = _Session(purpose)
    # DEBUG would keep thousands of statements of a process that runs for months.
    wrapper.queries_log = deque(maxlen=0)
    keep_from_children(wrapper, lambda owner: [owner.connection.fileno()])
    return wrapper


def is_pooled(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether a connection, one of the pool's own, was given to a pooler that hands sessions around."""
    session = _private.get(wrapper)
    return session is not None and session.pooled


def fetch_prepared(wrapper: BaseDatabaseWrapper, statement: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Execute a statement that comes again and again on any connection, a function's too: planned once a session, where that can be.

    Django's cursors send the values as part of the text, which is planned anew each time.
    """
    wrapper.ensure_connection()
    wrapper.validate_no_broken_transaction()
    raw: Any = wrapper.connection
    server_side: Any = ServerBindingCursor
    with wrapper.wrap_database_errors, server_side(raw) as cursor:
        if raw.prepare_threshold is None and _keeps_sessions(raw):
            # High enough that nothing else of this connection is ever prepared.
            raw.prepare_threshold = NEVER
        cursor.execute(statement, params, prepare=True)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _keeps_sessions(raw: Any) -> bool:
    """Return whether a driver's connection keeps its session from one transaction to the next."""
    keeps = _sessions.get(raw)
    if keeps is None:
        with raw.cursor() as cursor:
            keeps = cursor.execute("SELECT pg_backend_pid()").fetchone()[0] == raw.info.backend_pid
        _sessions[raw] = keeps
    return keeps


def cut(using: str, purpose: str) -> None:
    """Cut the connections of a purpose, from another thread."""
    for wrapper, session in list(_private.items()):
        raw: Any = wrapper.connection
        if session.purpose == purpose and wrapper.alias == using and raw is not None:
            with suppress(Exception), socket.socket(fileno=os.dup(raw.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
