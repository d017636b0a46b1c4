"""The tests' settings with a short hold of unknown functions, and a package that a test writes."""

from datetime import timedelta

from tests.settings import *  # noqa: F403

WORKPOOLS = {"default": {"FUNCTIONS": ["tests", "gone_works"], "HOLD": timedelta(seconds=4)}, "imports": {}}
