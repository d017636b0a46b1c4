"""The drills' settings behind a pooler: what OPTIONS and DIRECT alias the mains have is told by variables of the environment."""

import json
import os

import environ

from tests.faults.settings import *  # noqa: F403
from tests.faults.settings import DATABASES as PLAIN
from tests.faults.settings import WORKPOOLS as POOLS

DIRECT = os.environ.get("WORKPOOL_DRILL_DIRECT", "")
DEFAULT = {**PLAIN["default"], "OPTIONS": json.loads(os.environ.get("WORKPOOL_DRILL_OPTIONS", "{}")), "DISABLE_SERVER_SIDE_CURSORS": True}
DATABASES = {"default": DEFAULT, **({"direct": dict(environ.Env.db_url_config(DIRECT))} if DIRECT else {})}
WORKPOOLS = {**POOLS, "default": {**POOLS["default"], "DIRECT": "direct" if DIRECT else None}}
