"""The tests' settings on SQLite in memory, with what the simulation needs and nothing else."""

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_workpool", "tests.works"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}}
# A second pool shares the workers in some histories.
WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}, "imports": {"FUNCTIONS": ["tests"]}}
