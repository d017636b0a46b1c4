"""Settings of the site that the browser visits: the tests' own, under a strict Content-Security-Policy, with a pool of a hostile name."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as TESTS_APPS
from tests.settings import MIDDLEWARE as TESTS_MIDDLEWARE
from tests.settings import WORKPOOLS as TESTS_WORKPOOLS

from .payloads import POOL

INSTALLED_APPS = [*TESTS_APPS, "tests.browser"]
MIDDLEWARE = ["tests.browser.csp.strict", *TESTS_MIDDLEWARE]
ROOT_URLCONF = "tests.browser.urls"
WORKPOOLS = {**TESTS_WORKPOOLS, POOL: {}}
