"""The runnable project's settings, with the test modules' functions allowed and no limit that a worker would set again."""

from testproject.settings import *  # noqa: F403

WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}, "imports": {}}
