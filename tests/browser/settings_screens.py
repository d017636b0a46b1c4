"""Settings of the site of which pictures are taken: a shop's pools."""

from datetime import timedelta

from tests.browser.settings import *  # noqa: F403

WORKPOOLS = {
    "default": {"MAX_PARALLELISM": 10, "FUNCTIONS": ["tests"]},
    "email": {"MAX_PARALLELISM": 20},
    "images": {"MAX_PARALLELISM": 4},
    "imports": {"MAX_PARALLELISM": 8},
    "reports": {"MAX_PARALLELISM": 2, "RETENTION": timedelta(days=7)},
    "stock": {"MAX_PARALLELISM": 3},
}
