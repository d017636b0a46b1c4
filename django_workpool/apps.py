"""The app: its label, its checks, and the rows of its pools after a migration."""

import logging
from contextlib import suppress
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate


class WorkpoolConfig(AppConfig):
    """What INSTALLED_APPS loads for ``django_workpool``."""

    name = "django_workpool"
    label = "workpool"
    verbose_name = "Work pool"
    # Stated, so that a project's own default makes no migration.
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and the receiver that creates the rows of new pools.

        Raises:
            ImproperlyConfigured: a subclass has another label, under which neither the migrations nor the tables' names would fit.
        """
        if self.label != WorkpoolConfig.label:
            raise ImproperlyConfigured(f"The label of django_workpool must stay {WorkpoolConfig.label!r}, not {self.label!r}.")
        from .checks import register_checks

        enable_loggers()
        register_checks()
        meet_tasks()
        post_migrate.connect(create_rows, sender=self, dispatch_uid="django_workpool.create_rows")


def enable_loggers() -> None:
    """Undo what LOGGING does to loggers that are there already: those of a package that the settings import, for a RetryBehavior."""
    for name, known in list(logging.root.manager.loggerDict.items()):
        if isinstance(known, logging.Logger) and f"{name}.".startswith(f"{WorkpoolConfig.name}."):
            known.disabled = False


def meet_tasks() -> None:
    """Let tasks stand for their functions, if TASKS names a backend other than the framework's own: they may be enqueued through it.

    Raises:
        ImportError: it is ours, and there is no task framework.
    """
    from django.conf import settings

    named = [str(alias.get("BACKEND", "")) for alias in (getattr(settings, "TASKS", None) or {}).values()]
    if any(path.startswith("django_workpool.") for path in named):
        import_module("django_workpool.backend")
    elif not all(path.startswith(("django.", "django_tasks.")) for path in named):
        # It may be a subclass of ours.
        with suppress(ImportError):
            import_module("django_workpool.backend")


def create_rows(sender: WorkpoolConfig, using: str, **kwargs: Any) -> None:
    """Create the missing rows of the configured pools, if the tables are there: a migration back to zero sends the signal, too."""
    from django.db import router

    from . import configuration
    from .models import Globals

    migrated = kwargs.get("apps")
    if migrated is not None and ("workpool", "globals") not in [(m._meta.app_label, m._meta.model_name) for m in migrated.get_models()]:
        return
    if router.allow_migrate_model(using, Globals):
        configuration.create_rows(using)
