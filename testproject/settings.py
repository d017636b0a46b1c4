"""Settings of the runnable project. Variables of the environment: DATABASE_URL, SECRET_KEY, DEBUG, ALLOWED_HOSTS, WORKPOOL_LOG_LEVEL."""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import environ  # type: ignore[import-untyped]

BASE_DIR = Path(__file__).resolve().parent

env = environ.Env()

SECRET_KEY = env.str("SECRET_KEY", default="django-insecure-only-for-this-project-on-your-own-machine")
DEBUG = env.bool("DEBUG", default=False)
# The site reads any folder that it is told to: it is for this machine only.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_workpool",
    "testproject.imports",
    "testproject.bench",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "testproject.urls"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

#: Readers and the writer do not shut each other out (WAL), a transaction takes the write lock when it begins
#: (IMMEDIATE), and writers that meet wait for each other (timeout, in seconds).
SQLITE_OPTIONS: dict[str, Any] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}


def _database() -> dict[str, Any]:
    database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(BASE_DIR / "db.sqlite3")}
    if env.str("DATABASE_URL", default=""):
        database = dict(env.db_url("DATABASE_URL"))
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["OPTIONS"] = {**SQLITE_OPTIONS, **database.get("OPTIONS", {})}
    if database["ENGINE"] == "django.db.backends.mysql" and find_spec("MySQLdb") is None:
        # In the place of mysqlclient, which is compiled where it is installed; Django then says itself what is missing.
        with suppress(ImportError):
            import pymysql  # type: ignore[import-untyped]

            pymysql.install_as_MySQLdb()
    return database


DATABASES = {"default": _database()}

WORKPOOLS = {
    "default": {"MAX_PARALLELISM": 10},
    "imports": {"MAX_PARALLELISM": 8},
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        # Which events there are, is decided by the pools' own level.
        "django_workpool": {"handlers": ["stderr"], "level": "DEBUG"},
    },
}
