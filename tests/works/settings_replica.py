"""The tests' settings with a router that sends reads to another database than writes, as a project with a replica has it."""

import os

from tests.works.settings_databases import *  # noqa: F403

DATABASE_ROUTERS = ["tests.works.databases.ReadsFromSecond"]
WORKPOOLS = {"default": {"FUNCTIONS": ["tests"], **({"DATABASE": "default"} if os.environ["NAMES_DATABASE"] else {})}, "imports": {}}
