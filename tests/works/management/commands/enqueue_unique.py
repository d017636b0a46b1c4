"""``manage.py enqueue_unique NAME FOLDER ROUNDS``: enqueue works with the same unique keys as another process, at the same moments."""

import random
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from django_workpool import WorkExists, Workpool
from tests.works.tasks import PATIENCE, note

IF_TAKEN = ("keep", "replace", "raise")


class Undone(Exception):
    """Rolls a round back."""


class Command(BaseCommand):
    """Takes one key in each round, when all others have come to it; prints the round and the work that has the key."""

    help = "Enqueues works with unique keys."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare who it is, where it meets the others, and how often."""
        parser.add_argument("name")
        parser.add_argument("folder")
        parser.add_argument("rounds", type=int)
        parser.add_argument("--parties", type=int, default=2)

    def handle(self, *args: Any, name: str, folder: str, rounds: int, parties: int, **options: Any) -> None:
        """Take the keys."""
        for number in range(rounds):
            Path(folder, f"{number}-{name}").touch()
            deadline = time.monotonic() + PATIENCE
            while len(list(Path(folder).glob(f"{number}-*"))) < parties and time.monotonic() < deadline:
                time.sleep(0.0005)
            # Every fourth round is one transaction that takes its time; the first process rolls some of these back.
            slow, undone = number % 4 == 3, number % 8 == 7 and name == "a"
            try:
                if slow:
                    with transaction.atomic():
                        taken = self.take(number, name)
                        time.sleep(random.uniform(0, 0.01))
                        if undone:
                            raise Undone
                else:
                    taken = self.take(number, name)
                print(number, taken, flush=True)
            except Undone:
                print(number, "undone", flush=True)

    def take(self, number: int, name: str) -> str:
        """Take a key, in another way each round."""
        try:
            return str(Workpool().using(unique=f"race {number}", if_taken=IF_TAKEN[number % 3]).enqueue(note, f"{number} {name}"))
        except WorkExists as error:
            return str(error.work_id)
