"""The tests' settings with the drills' functions; what has ended is kept for ever, so that at the end all of it can be checked."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as TESTS_APPS

INSTALLED_APPS = [*TESTS_APPS, "tests.faults"]

WORKPOOLS = {"default": {"RETENTION": None, "FUNCTIONS": ["tests"]}, "imports": {}}
