"""``python -m tests.browser.screenshots FOLDER``: pictures of the pages, while a shop's mixed load runs on a database of its own."""

import os
import sys
from pathlib import Path

import django

from ..postgres import own_server

SETTINGS = "tests.browser.settings_screens"


def main(folder: Path) -> None:
    """Start a server of databases, and take all pictures."""
    with own_server() as server:
        os.environ["DATABASE_URL"], os.environ["DJANGO_SETTINGS_MODULE"] = server.url, SETTINGS
        django.setup()
        # It has models: it can be imported only now.
        from .pictures import take_all

        take_all(server.url, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
