"""The pytest plugin, loaded by its entry point wherever the package is installed: one fixture, which imports nothing before it is used."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import WorkpoolTester


@pytest.fixture
def workpool(request: pytest.FixtureRequest) -> Iterator["WorkpoolTester"]:
    """Run and look at what was enqueued, with what ``django_workpool.testing`` has; asks for ``db`` if the test has no database."""
    if not {"db", "transactional_db"} & set(request.fixturenames) and request.node.get_closest_marker("django_db") is None:
        request.getfixturevalue("db")
    from .testing import WorkpoolTester

    with WorkpoolTester() as tester:
        yield tester
