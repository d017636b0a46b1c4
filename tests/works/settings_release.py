"""The tests' settings with one more package of functions, of which there are two versions."""

from tests.settings import *  # noqa: F403

WORKPOOLS = {"default": {"FUNCTIONS": ["tests", "release"]}, "imports": {}}
