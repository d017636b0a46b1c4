"""The tests' settings without aware times, in the time zone that the environment names."""

import os

from tests.settings import *  # noqa: F403

USE_TZ = False
TIME_ZONE = os.environ["WORKPOOL_TEST_ZONE"]
