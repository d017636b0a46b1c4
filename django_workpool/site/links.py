"""Links to the state of one work. Whoever has one may look at it, so each is signed, and ends."""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core import signing
from django.urls import reverse

from .. import conf
from ..exceptions import InvalidWork, UnknownPool
from ..ids import parse_work_id

SALT = "django_workpool.site"
#: How long a link leads somewhere, unless told otherwise.
WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Link:
    """What a link leads to."""

    work_id: uuid.UUID
    pool: str
    #: Whether the result is told, too: a value, or the text of an error.
    shows_result: bool


class DeadLink(Exception):
    """Not signed by this site, over, or of a pool that is gone: nobody is told which."""


def sign(work_id: object, pool: str, *, max_age: timedelta | None = WEEK, show_result: bool = False) -> str:
    """Return the part of a link that says what it leads to.

    Raises:
        InvalidWork: ``work_id`` is not the id of a work, or ``max_age`` not a timedelta above 0.
        UnknownPool: the settings do not name the pool.
    """
    conf.pool(pool)
    parsed = parse_work_id(work_id)
    if parsed is None:
        raise InvalidWork(f"{work_id!r} is not the id of a work.")
    if max_age is not None and not (isinstance(max_age, timedelta) and max_age > timedelta(0)):
        raise InvalidWork(f"max_age must be a timedelta above 0, or None, not {max_age!r}.")
    seconds = None if max_age is None else max_age.total_seconds()
    return signing.dumps([parsed.hex, pool, seconds, bool(show_result)], salt=SALT)


def read(text: str) -> Link:
    """Return what a link leads to.

    Raises:
        DeadLink: it leads nowhere.
    """
    try:
        stored: Any = signing.loads(text, salt=SALT)
        work_id, pool, seconds, shows_result = stored
        if seconds is not None:
            signing.loads(text, salt=SALT, max_age=seconds)
        conf.pool(pool)
        return Link(uuid.UUID(work_id), pool, shows_result)
    except (signing.BadSignature, UnknownPool, ValueError, TypeError):
        raise DeadLink from None


def status_url(work_id: object, pool: str = "default", *, max_age: timedelta | None = WEEK, show_result: bool = False) -> str:
    """Return the address at which whoever has it sees where a work is, as JSON. With ``events/`` behind it, it is a stream of events.

    Args:
        work_id: The id of the work.
        pool: Its pool.
        max_age: How long the address is good for; None for ever.
        show_result: Whether the result is told, too: what the function returned, or the text of its error. Else only how it ended.

    Raises:
        InvalidWork: ``work_id`` is not the id of a work, or ``max_age`` not a timedelta above 0.
        UnknownPool: the settings do not name the pool.
        NoReverseMatch: the project does not include ``django_workpool.site.urls``.
    """
    return reverse("workpool:status", args=[sign(work_id, pool, max_age=max_age, show_result=show_result)])
