"""The one place that knows the vendor: clock, locks, hints, liveness and bulk statements behind one interface.

``database(alias)`` returns the :class:`~django_workpool.database.base.Database` of an alias.
"""

from functools import cache

from django.db import connections

from ..exceptions import WorkpoolSettingsError
from .base import Database
from .parts import Answers, Part
from .rows import Condition, Due, NewWork, Sent, Start
from .watch import DatabaseReplaced, Hint, Watch

__all__ = ["Answers", "Condition", "Database", "DatabaseReplaced", "Due", "Hint", "NewWork", "Part", "Sent", "Start", "Watch", "database"]


@cache
def database(using: str) -> Database:
    """Return the interface to the database ``using``.

    Raises:
        WorkpoolSettingsError: its vendor is not supported.
    """
    vendor = connections[using].vendor
    if vendor == "postgresql":
        from .postgresql import PostgreSQL

        return PostgreSQL(using)
    if vendor == "sqlite":
        from .sqlite import SQLite

        return SQLite(using)
    if vendor == "mysql":
        from .mysql import MySQL

        return MySQL(using)
    raise WorkpoolSettingsError(f"The pool's database {using!r} is {vendor}: PostgreSQL, MariaDB, MySQL and SQLite are supported.")
