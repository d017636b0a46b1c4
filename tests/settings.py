"""The runnable project's settings, with the tests' functions allowed and no limit that a worker would set again."""

from importlib.util import find_spec

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS as PROJECT_APPS

#: The task framework that is installed: Django's own, or its backport; empty for none.
FRAMEWORK = next((name for name in ("django.tasks", "django_tasks") if find_spec(name)), "")

INSTALLED_APPS = [*PROJECT_APPS, "tests.works"]

WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}, "imports": {}}
# Passwords of users that live for one test: hashing them well takes longer than what is tested.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if FRAMEWORK:
    INSTALLED_APPS += ["tests.background", *(["django_tasks"] if FRAMEWORK == "django_tasks" else [])]
    TASKS = {
        "default": {"BACKEND": "django_workpool.backend.WorkpoolBackend"},
        "immediate": {"BACKEND": f"{FRAMEWORK}.backends.immediate.ImmediateBackend"},
    }
