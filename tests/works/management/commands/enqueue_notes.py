"""``manage.py enqueue_notes NUMBER KEY``: enqueue works from a process of its own, each with a callback that inserts a row."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from django_workpool import Workpool, call
from tests.works.tasks import ended, slow_note

#: Seconds: enough for another process to be wanted, too.
TAKES = 0.005


class Command(BaseCommand):
    """Enqueues half of the works one by one, the rest in batches inside transactions."""

    help = "Enqueues works."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare how many, and what their keys begin with."""
        parser.add_argument("number", type=int)
        parser.add_argument("key")

    def handle(self, *args: Any, number: int, key: str, **options: Any) -> None:
        """Enqueue them."""
        pool = Workpool().using(on_complete=ended, on_complete_context=key)
        for index in range(number // 2):
            pool.enqueue(slow_note, f"{key}-{index}", TAKES)
        for start in range(number // 2, number, 25):
            with transaction.atomic():
                pool.enqueue_many(slow_note, [call(f"{key}-{index}", TAKES) for index in range(start, min(start + 25, number))])
