"""The project as it was: with the backend that comes with the framework."""

from tests.settings import *  # noqa: F403
from tests.settings import FRAMEWORK

TASKS = {"default": {"BACKEND": f"{FRAMEWORK}.backends.immediate.ImmediateBackend"}}
