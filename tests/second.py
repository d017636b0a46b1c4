"""A second database beside the tests' own: made, filled with tables, known to this process as "second", and removed again."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import override_settings

from django_workpool.database import database
from testproject.settings import SQLITE_OPTIONS

SECOND = "second"


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Stand in for pytest-django's fixture, which lets a test use no databases but those of its settings."""
    assert "test" in str(connection.settings_dict["NAME"]), "only a test database may be emptied"
    with django_db_blocker.unblock():
        yield
        with override_settings(DATABASE_ROUTERS=[], WORKPOOLS={"default": {}, "imports": {}}):
            call_command("flush", interactive=False, verbosity=0)
        connection.close()


@contextmanager
def second_database(url: str, kind: str) -> Iterator[str]:
    """Make it, empty.

    Args:
        url: The DATABASE_URL of the tests' own.
        kind: "same" for the vendor of that, or "sqlite".

    Yields:
        Its URL.
    """
    with tempfile.TemporaryDirectory(prefix="workpool-second-") as folder:
        settings = {**connection.settings_dict, "TEST": dict(connection.settings_dict["TEST"])}
        name = f"{settings['NAME']}_second"
        on_server = kind == "same" and connection.vendor != "sqlite"
        if on_server:
            _on_server(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)}", f"CREATE DATABASE {connection.ops.quote_name(name)}")
            settings["NAME"] = name
            place, mark, rest = url.partition("?")
            second = f"{place.rpartition('/')[0]}/{quote(name)}{mark}{rest}"
        else:
            path = str(Path(folder, "test-second.sqlite3"))
            settings |= {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": dict(SQLITE_OPTIONS)}
            second = f"sqlite:///{quote(path)}"
        try:
            with _known(settings):
                yield second
        finally:
            if on_server:
                _on_server(f"DROP DATABASE {connection.ops.quote_name(name)}")


@contextmanager
def _known(settings: dict[str, Any]) -> Iterator[None]:
    connections.databases[SECOND] = settings
    try:
        yield
    finally:
        connections[SECOND].close()
        del connections[SECOND], connections.databases[SECOND]
        database.cache_clear()


def _on_server(*statements: str) -> None:
    with connection._nodb_cursor() as cursor:  # type: ignore[attr-defined]
        for statement in statements:
            cursor.execute(statement)
