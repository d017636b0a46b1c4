"""The runnable project's settings, with the tests' functions allowed and no limit that a worker would set again."""

from testproject.settings import *  # noqa: F403
from testproject.settings import INSTALLED_APPS as PROJECT_APPS

INSTALLED_APPS = [*PROJECT_APPS, "tests.works"]

WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}, "imports": {}}
