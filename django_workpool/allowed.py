"""Which modules may be imported for a path that somebody has stored: those of installed apps, and those that FUNCTIONS names."""

from functools import lru_cache
from typing import Any

from django.apps import apps
from django.core.signals import setting_changed

from . import conf
from .exceptions import UnregisteredFunction


# Bounded: modules come from paths that anybody may have stored.
@lru_cache(maxsize=1024)
def is_allowed(module: str) -> bool:
    """Return whether a module lies in an installed app, or below what a pool's FUNCTIONS names."""
    allowed = [app.name for app in apps.get_app_configs()]
    allowed.extend(conf.function_prefixes())
    return any(module == prefix or module.startswith(prefix + ".") for prefix in allowed)


def check_allowed(path: str, module: str) -> None:
    """Refuse a function whose module is not allowed.

    Raises:
        UnregisteredFunction: the text says what to do.
    """
    if not is_allowed(module):
        raise UnregisteredFunction(
            f"{path} is outside the installed apps: add its app to INSTALLED_APPS, or its module to FUNCTIONS of a pool in WORKPOOLS."
        )


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in ("INSTALLED_APPS", "WORKPOOLS"):
        is_allowed.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_workpool.functions")
