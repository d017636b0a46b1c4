"""Pieces of SQL that databases say in different words, and how they hold a UUID."""

import uuid
from typing import Any


class Dialect:
    """What most of them say: the part of the interface that needs no connection."""

    def whole(self, number: str) -> str:
        """Return SQL for a number as a whole one."""
        return f"CAST({number} AS bigint)"

    def by(self, index: str) -> str:
        """Return SQL behind a table in a FROM: its rows are found by this index, where the planner must be told."""
        return ""

    def after(self, prefix: str, position: tuple[int, int]) -> tuple[str, list[Any]]:
        """Return a condition that a row lies behind a (segment, id), and its parameters; ``prefix`` stands before the columns."""
        return f"({prefix}segment, {prefix}id) > (%s, %s)", [*position]

    def uuid_param(self, value: uuid.UUID) -> Any:
        """Return a UUID as a statement's parameter."""
        return value

    def read_uuid(self, value: Any) -> uuid.UUID:
        """Return a UUID as a statement's result holds it."""
        return value if isinstance(value, uuid.UUID) else uuid.UUID(value)

    def with_uuids(self, rows: list[tuple[Any, ...]], place: int) -> list[tuple[Any, ...]]:
        """Return rows with a UUID in a column that holds one."""
        return rows
