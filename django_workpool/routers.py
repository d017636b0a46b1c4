"""A router for projects whose pools are in databases of their own: ``DATABASE_ROUTERS = ["django_workpool.routers.WorkpoolRouter"]``.

The package itself names the database in each statement. What asks a router: ``migrate``, the admin, and the project's own queries.
"""

from typing import Any

from django.db import router
from django.db.models import Model

from . import conf
from .exceptions import WorkpoolSettingsError

APP_LABEL = "workpool"


class WorkpoolRouter:
    """Puts the app's tables into the databases of the pools, and nowhere else. Says nothing of other apps."""

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        """Return where a row of the app belongs: where it is, if pools are there, else where its pool is; None if that is not said here."""
        if model._meta.app_label != APP_LABEL:
            return None
        row = hints.get("instance")
        try:
            if not isinstance(row, Model):
                named = [options.database for options in conf.pools().values()]
                # Pools that name none are where other routers, or Django's own rule, lead to.
                return None if None in named else named[0]
            if row._state.db in conf.database_aliases():
                return row._state.db
            return conf.database_alias(getattr(row, "pool", None))
        except WorkpoolSettingsError:
            # It is told by a check.
            return None

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        """Return where rows are written: a replica may be late."""
        return router.db_for_write(model, **hints) if model._meta.app_label == APP_LABEL else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Return whether the app's tables belong into a database."""
        if app_label != APP_LABEL:
            return None
        try:
            return db in conf.database_aliases()
        except WorkpoolSettingsError:
            return False
