"""The project in its tests: with the double."""

from tests.settings import *  # noqa: F403

TASKS = {"default": {"BACKEND": "django_workpool.backend.WorkpoolImmediateBackend"}}
