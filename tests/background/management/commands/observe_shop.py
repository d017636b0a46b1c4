"""Use the shop's tasks, and print what it sees, as JSON."""

import json
from typing import Any

from django.core.management.base import BaseCommand

from tests.background.shop import observe


class Command(BaseCommand):
    """``manage.py observe_shop``."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Print one line."""
        self.stdout.write(f"seen {json.dumps(observe(), sort_keys=True)}")
