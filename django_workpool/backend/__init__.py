"""The backend for Django's task framework, ``django.tasks``, or for its backport ``django_tasks``.

``TASKS = {"default": {"BACKEND": "django_workpool.backend.WorkpoolBackend"}}``. Importing it needs one of the two, and settings,
but no loaded apps.
"""

from .doubles import WorkpoolDummyBackend, WorkpoolImmediateBackend
from .pool import WorkpoolBackend
from .task import WorkpoolTask, with_options

__all__ = ["WorkpoolBackend", "WorkpoolDummyBackend", "WorkpoolImmediateBackend", "WorkpoolTask", "with_options"]
