"""Tasks of the task framework, and what is installed of it, for the tests of the backend."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

#: Django's own, or its backport.
FRAMEWORK = "django.tasks" if find_spec("django.tasks") else "django_tasks"


def framework(module: str = "") -> Any:
    """Return a module of the framework: "exceptions" or "backends.immediate", say."""
    return import_module(f"{FRAMEWORK}.{module}" if module else FRAMEWORK)
