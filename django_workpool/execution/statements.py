"""What a statement does to the session it is sent through, read from its text.

Only what outlives a function is looked for. A mistake in doubt is on the side of *changes the session*: it costs a new connection,
nothing else. Functions and procedures of the database are not looked into.
"""

import re
from enum import Flag
from functools import lru_cache
from typing import Any

from ..exceptions import WorkTimeout


class Effect(Flag):
    """What a statement does to the session."""

    NONE = 0
    #: Something stays in the session: a setting, a role, a lock, a prepared statement, a temporary table, a cursor.
    SESSION = 1
    #: The transaction ends, behind Django's back.
    TRANSACTION = 2


#: Statements kept with their effect, and the longest of them in characters: Django sends the same ones again and again.
REMEMBERED, REMEMBERED_LENGTH = 512, 2_000
#: Statements that begin so, and have none of the marks below, have no effect: so the long ones are cheap.
_PLAIN = ("insert ", "update ", "delete ", "select ")
_MARKS = (";", "set_config", "_lock", "setseed", "dblink_connect", " temp", "\ttemp", "\ntemp")

_BLANK = r"(?:\s|--[^\n]*\n|/\*.*?\*/|\()*+"

_SESSION_STATEMENT = re.compile(
    rf"""(?:\A|;){_BLANK}(?:
        set\b(?!\s+(?:local|transaction|constraints)\b)
      | (?:reset|discard|listen|unlisten|declare|load|do|call|use|attach|detach)\b
      | prepare\b(?!\s+transaction\b)
      | lock\s+tables\b
      | create\s+(?:or\s+replace\s+)?(?:(?:global|local)\s+)?temp(?:orary)?\b
      # Reading pragmas with an argument; all others with one change something.
      | pragma\s+(?:\w+\s*\.\s*)?+(?!\w*(?:_check|_info|_xinfo|_list|integrity_check|data_version)\b)\w++\s*[=(]
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_SESSION_CALL = re.compile(
    r"""
        # With "true" as its last argument it ends with the transaction.
        \bset_config\s*\((?![^()]*,\s*'?(?:t|true)'?\s*\))
      | \bpg_(?:try_)?advisory_lock(?:_shared)?\s*\(
      | \b(?:get_lock|setseed)\s*\(
      | \bdblink_connect
      | \bpg_temp\b
      | \binto\s+temp(?:orary)?\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Only at the very beginning: behind a semicolon it may be the body of a trigger or of a DO block.
_TRANSACTION_STATEMENT = re.compile(
    rf"""\A{_BLANK}(?:
        (?:commit|end|abort)\b(?!\s+prepared\b)
      | rollback\b(?!(?:\s+(?:work|transaction))?\s+to\b)(?!\s+prepared\b)
      | prepare\s+transaction\b
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

# What MariaDB and MySQL do otherwise. SET LOCAL is for the session there, and what SET TRANSACTION says waits for the next one, whosever it
# is; variables of the session are assigned in any statement, and comments may be none. SET STATEMENT ends with its statement.
_MYSQL_SESSION = re.compile(
    rf"""(?:\A|;){_BLANK}(?:
        set\b(?!\s+statement\b)
      | (?:handler|flush|change|install|xa|lock|unlock)\b
    ) | := | \binto\s+@ | /\*[!M] | \brelease_all_locks\s*\(""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# These commit what was open, without a word.
_MYSQL_TRANSACTION = re.compile(
    rf"""\A{_BLANK}(?:
        begin\b | start\s+transaction\b | set\s+(?:@@)?(?:session\W)?\s*autocommit\b | truncate\b | rename\b | grant\b | revoke\b
      | analyze\b | optimize\b | repair\b | lock\b | unlock\b | flush\b | xa\b
      | (?:create|drop)\s+(?:or\s+replace\s+)?(?!(?:or\s+replace\s+)?temporary\b) | alter\b
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_MYSQL_MARKS = (*_MARKS, ":=", "@", "/*")


def effect_of(sql: Any, cursor: Any, mysql: bool = False) -> Effect:
    """Return what ``sql`` does to the session.

    Args:
        sql: a statement as Django's cursors take it: text, or an object of the driver's that composes one.
        cursor: the driver's cursor, which such an object needs.
        mysql: whether it is for MariaDB or MySQL.
    """
    text = sql if isinstance(sql, str) else _composed(sql, cursor)
    if text is None:
        return Effect.SESSION
    read, remembered = (_read_mysql, _remembered_mysql) if mysql else (_read, _remembered)
    return remembered(text) if len(text) <= REMEMBERED_LENGTH else read(text)


def _read(text: str) -> Effect:
    lowered = text.lower()
    if lowered.startswith(_PLAIN) and not any(mark in lowered for mark in _MARKS):
        return Effect.NONE
    effect = Effect.NONE
    if _SESSION_STATEMENT.search(text) or _SESSION_CALL.search(text):
        effect |= Effect.SESSION
    if _TRANSACTION_STATEMENT.match(text):
        effect |= Effect.TRANSACTION
    return effect


def _read_mysql(text: str) -> Effect:
    lowered = text.lower()
    if lowered.startswith(_PLAIN) and not any(mark in lowered for mark in _MYSQL_MARKS):
        return Effect.NONE
    effect = _read(text)
    if text.startswith("SET STATEMENT "):
        effect = Effect.NONE
    if _MYSQL_SESSION.search(text):
        effect |= Effect.SESSION
    if _MYSQL_TRANSACTION.match(text):
        effect |= Effect.TRANSACTION
    return effect


_remembered, _remembered_mysql = lru_cache(REMEMBERED)(_read), lru_cache(REMEMBERED)(_read_mysql)


def _composed(sql: Any, cursor: Any) -> str | None:
    """Return the text of what is no str, or None."""
    try:
        if isinstance(sql, (bytes, bytearray)):
            return sql.decode("utf-8", "replace")
        return str(sql.as_string(cursor))
    except WorkTimeout:
        # The function's: it must not be lost here.
        raise
    except Exception:
        return None
