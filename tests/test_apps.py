"""The app: its label, and the rows that a migration leaves behind."""

import os
import subprocess
import sys

import pytest
from django.apps import apps
from django.apps.registry import Apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.sql import emit_post_migrate_signal
from django.db.models.signals import post_migrate

from django_workpool import configuration
from django_workpool.apps import WorkpoolConfig, create_rows


@pytest.fixture
def created(monkeypatch):
    """Keep the databases in which rows would have been created."""
    databases = []
    monkeypatch.setattr(configuration, "create_rows", databases.append)
    return databases


def send(**kwargs):
    # Only this receiver: those of other apps would ask the database.
    create_rows(sender=apps.get_app_config("workpool"), using="default", signal=post_migrate, **kwargs)


def test_the_label_and_the_type_of_keys_do_not_depend_on_the_project():
    config = apps.get_app_config("workpool")
    assert (config.name, config.label, config.default_auto_field) == ("django_workpool", "workpool", "django.db.models.BigAutoField")


def test_another_label_is_refused_in_a_sentence():
    class Relabeled(WorkpoolConfig):
        label = "wp"

    with pytest.raises(ImproperlyConfigured, match="must stay 'workpool', not 'wp'"):
        Relabeled("django_workpool", sys.modules["django_workpool"]).ready()


def test_a_migration_creates_the_rows_once(created):
    send(apps=apps)
    assert created == ["default"]


def test_the_signal_after_a_flush_creates_them_once(created, db):
    emit_post_migrate_signal(verbosity=0, interactive=False, db="default")
    assert created == ["default"]


def test_a_migration_back_to_zero_creates_nothing(created):
    send(apps=Apps())
    assert created == []


def test_a_database_that_the_router_keeps_free_gets_none(created, settings):
    class Elsewhere:
        def allow_migrate(self, db, app_label, **hints):
            return app_label != "workpool"

    settings.DATABASE_ROUTERS = [Elsewhere()]
    send(apps=apps)
    assert created == []


SETTINGS = """
from django_workpool import RetryBehavior

SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_workpool"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
WORKPOOLS = {"default": {"RETRY": RetryBehavior(max_attempts=2)}}
LOGGING = {"version": 1, "handlers": {"out": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["out"], "level": "WARNING"}}
"""
TELL = """
import logging
import django

django.setup()
from django_workpool import eventlog

eventlog.log("wedged", "ERROR", "default", error="x", since_s=1)
for name in ("conf", "functions", "loop"):
    logging.getLogger("django_workpool." + name).warning("heard %s", name)
logging.getLogger("django_workpool_of_others").warning("not ours")
"""


def test_settings_may_import_the_package_and_configure_logging(tmp_path):
    """Python disables loggers that are there before the configuration, unless told not to: no event would ever be seen."""
    (tmp_path / "logged_settings.py").write_text(SETTINGS)
    early = "import logging; logging.getLogger('django_workpool_of_others')\n"
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "logged_settings", "PYTHONPATH": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", early + TELL], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert told.stderr.splitlines() == ["event=wedged pool=default error=x since_s=1", "heard conf", "heard functions", "heard loop"]
