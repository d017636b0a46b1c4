"""``manage.py enqueue_times``: enqueue works for a moment from now, said in different ways, and print their ids."""

from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand

from django_workpool import RetryBehavior, Workpool
from tests.works.tasks import fail_once, note


class Command(BaseCommand):
    """Enqueues works for half a second from now."""

    help = "Enqueues works for a moment from now."

    def handle(self, *args: Any, **options: Any) -> None:
        """Enqueue them."""
        moment = timedelta(seconds=0.5)
        retry = RetryBehavior(max_attempts=2, initial_backoff=timedelta(seconds=0.4))
        ids = [
            Workpool().enqueue(note, "now"),
            Workpool().using(delay=moment).enqueue(note, "delay"),
            Workpool().using(run_after=datetime.now() + moment).enqueue(note, "run_after"),
            Workpool().using(retry=retry).enqueue(fail_once, "retry"),
        ]
        self.stdout.write(" ".join(map(str, ids)))
