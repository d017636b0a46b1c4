"""The project as it is: with the pool."""

from tests.settings import *  # noqa: F403

TASKS = {"default": {"BACKEND": "django_workpool.backend.WorkpoolBackend"}}
