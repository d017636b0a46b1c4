"""System checks of periodic works: those that nobody can enqueue, asked where Django lets checks ask the database."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Warned
from django.db.utils import Error as DatabaseFailed

from . import conf, functions
from .exceptions import WorkpoolError, WorkpoolSettingsError
from .models import Periodic
from .ticks import Cron, is_available

#: Rows that the check looks at.
ROWS_MAX = 1_000


def check_periodic(app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """workpool.E010: there are periodic works, but not the library. workpool.W010: one of them cannot be enqueued as it is."""
    try:
        alias = conf.database_alias()
        if alias not in (databases or ()):
            return []
        rows = list(Periodic.objects.using(alias).filter(enabled=True).order_by("id")[:ROWS_MAX])
    except (DatabaseFailed, WorkpoolSettingsError):
        # Before the first migration there is nothing to ask; a database that is away is told of by others.
        return []
    if rows and not is_available():
        text = f"{len(rows)} periodic works are enabled, but the library cronsim is not installed."
        return [Error(text, hint="pip install 'django_workpool[cron]', wherever workpool_main runs.", id="workpool.E010")]
    told = [(row.name, _problem(row)) for row in rows]
    hint = "Change it in the admin, call schedule() once more, or remove it with unschedule()."
    return [Warned(f"The periodic work {name!r}: {problem}", hint=hint, id="workpool.W010") for name, problem in told if problem]


def _problem(row: Periodic) -> str:
    if row.error:
        return f"the leader passes it over: {row.error}"
    try:
        conf.pool(row.pool)
        functions.registered(row.func_path, functions.WORK_KINDS)
        Cron(row.cron, row.time_zone)
    except WorkpoolError as error:
        return str(error)
    return ""
