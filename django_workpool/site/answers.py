"""What is told of a work: its state and progress, how it has ended, and no more unless whoever signed the link said so."""

from typing import Any

from .. import client
from ..types import Status
from .links import Link


def answer(link: Link) -> dict[str, Any]:
    """Ask the database, and return what is told of a link's work."""
    return told(client.status_many(link.pool, [link.work_id])[link.work_id], shows_result=link.shows_result)


def told(status: Status, *, shows_result: bool = False) -> dict[str, Any]:
    """Return what is told of a status, as JSON can carry it."""
    result, progress = status.result, status.progress
    said = progress and {
        "done": progress.done,
        "total": progress.total,
        "fraction": progress.fraction,
        "said": progress.said.isoformat(),
    }
    found: dict[str, Any] = {"state": status.state.value, "kind": result and result.kind.value, "progress": said}
    if shows_result:
        found |= {"value": result and result.value, "error": result.error if result else ""}
    return found
