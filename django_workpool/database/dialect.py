"""Pieces of SQL that databases say in different words, and how they hold a UUID."""

import uuid
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.dateparse import parse_datetime


class Dialect:
    """What most of them say: the part of the interface that needs no connection."""

    def whole(self, number: str) -> str:
        """Return SQL for a number as a whole one."""
        return f"CAST({number} AS bigint)"

    def real(self, text: str) -> str:
        """Return SQL for a text as the number that it holds."""
        return f"CAST({text} AS double precision)"

    def upsert(self, key: str, columns: Sequence[str]) -> str:
        """Return SQL behind an INSERT whose SELECT ends in a condition: a row that is there, found by ``key``, gets the new ``columns``."""
        return f"ON CONFLICT ({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in columns)}"

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

    def read_moment(self, value: Any, zone: tzinfo | None) -> datetime:
        """Return a time as Django's fields hold it, from a statement's result.

        Args:
            value: What the driver returned.
            zone: The connection's time zone.
        """
        read = parse_datetime(value) if isinstance(value, str) else value
        if read is None:
            raise ValueError(f"{value!r} is no time")
        moment: datetime = timezone.make_aware(read, zone) if settings.USE_TZ and timezone.is_naive(read) else read
        return moment
