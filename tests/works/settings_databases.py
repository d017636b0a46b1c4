"""The tests' settings with a second database that has a pool of its own."""

from testproject.settings import DATABASES as PROJECT_DATABASES
from testproject.settings import SQLITE_OPTIONS, env
from tests.settings import *  # noqa: F403


def second_database() -> dict[str, object]:
    """Return what the environment names."""
    database = dict(env.db_url("SECOND_DATABASE_URL"))
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["OPTIONS"] = SQLITE_OPTIONS
    return database


DATABASES = {**PROJECT_DATABASES, "second": second_database()}
DATABASE_ROUTERS = ["django_workpool.routers.WorkpoolRouter"]
WORKPOOLS = {"default": {"FUNCTIONS": ["tests"]}, "far": {"DATABASE": "second"}}
