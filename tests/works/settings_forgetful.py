"""The tests' settings with a pool that keeps nothing of finished work."""

from datetime import timedelta

from tests.settings import *  # noqa: F403

WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], "RETENTION": timedelta(0)}, "imports": {}}
