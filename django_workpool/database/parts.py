"""What a process tells and asks its database again and again: parts, which the vendor joins into one statement where it can.

A room that owns a table writes the part about it; whoever sends them adds nothing of its own.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import OperationalError

from ..database_errors import is_conflict
from ..failures import first_line

if TYPE_CHECKING:
    from .base import Database

logger = logging.getLogger("django_workpool.watch")


@dataclass(frozen=True, slots=True)
class Part:
    """A question, or a change that returns something of each row that it has changed."""

    #: What its answer is found by.
    name: str
    #: A statement; its columns have names of their own.
    template: str
    params: Sequence[Any] = ()
    changes: bool = False


#: The rows of each part, by its name. What somebody who has locked a row or a table kept from being answered is missing.
Answers = dict[str, list[tuple[Any, ...]]]


def together(db: "Database", parts: Sequence[Part]) -> Answers:
    """Send all parts as one statement: they see the same snapshot, and not each other's changes."""
    named = ", ".join(f"{part.name} AS ({part.template})" for part in parts)
    # As text: one row comes back, however many each part has.
    columns = ", ".join(f"(SELECT json_agg(one)::text FROM {part.name} AS one)" for part in parts)
    (texts,) = db.fetch(f"WITH {named} SELECT {columns}", [param for part in parts for param in part.params])
    return {part.name: [tuple(row.values()) for row in json.loads(text)] if text else [] for part, text in zip(parts, texts, strict=True)}


def one_by_one(db: "Database", parts: Iterable[Part]) -> Answers:
    """Send each part as a statement of its own, questions first. Nobody waits twice for the same lock: a question ends the others."""
    answers: Answers = {}
    waited = False
    for part in sorted(parts, key=lambda part: part.changes):
        if part.changes or not waited:
            try:
                answers[part.name] = db.ask(part)
            except OperationalError as error:
                tell_wait(error)
                waited = True
    return answers


def tell_wait(error: OperationalError) -> None:
    """Tell that something is locked for long: it is asked again with the next look. Any other error is raised."""
    if not is_conflict(error):
        raise error
    logger.warning("the watch had to wait: %s", first_line(error))
