"""Statements that worker processes send, counted by themselves: for servers that do not count them."""

import os
from collections.abc import Callable
from typing import Any

from django.db.backends.signals import connection_created

#: Names the file that grows by a byte with each statement.
VARIABLE = "BENCH_STATEMENTS"


def count_into(path: str) -> None:
    """Count from now on what goes through Django's cursors in this process (not BEGIN and COMMIT)."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def counted(execute: Callable[..., Any], *arguments: Any) -> Any:
        os.write(file, b".")
        return execute(*arguments)

    def install(connection: Any, **_: Any) -> None:
        if counted not in connection.execute_wrappers:
            connection.execute_wrappers.append(counted)

    connection_created.connect(install, weak=False, dispatch_uid="bench.statements")
