"""Who may do what with the pools: permissions of the tables' own, asked here so that all pages ask alike.

``migrate`` makes them. Seeing a page takes the table's ``view`` permission, as everywhere in Django; none of these includes it.
"""

from typing import Protocol

from django.contrib.auth import get_permission_codename
from django.db.models import Model

from .models import Globals, Work

CANCEL, RETRY, CONFIGURE = "cancel_work", "retry_work", "configure_pool"


class HasPermissions(Protocol):
    """A user, as far as it is asked here: also an anonymous one, who may do nothing."""

    def has_perm(self, perm: str, /) -> bool:
        """Return whether the user is active and has a permission."""
        ...


def may_view(user: HasPermissions, model: type[Model]) -> bool:
    """Return whether a user may see a table's rows, with the arguments, results and tracebacks in them."""
    return _has(user, model, get_permission_codename("view", model._meta))


def may_cancel(user: HasPermissions) -> bool:
    """Return whether a user may cancel works, one or all of a pool."""
    return _has(user, Work, CANCEL)


def may_retry(user: HasPermissions) -> bool:
    """Return whether a user may let finished works run again."""
    return _has(user, Work, RETRY)


def may_configure(user: HasPermissions) -> bool:
    """Return whether a user may change a pool: its limit, a pause, its level of events."""
    return _has(user, Globals, CONFIGURE)


def _has(user: HasPermissions, model: type[Model], codename: str) -> bool:
    # Not a literal label: a project may have given the app another one.
    return user.has_perm(f"{model._meta.app_label}.{codename}")
