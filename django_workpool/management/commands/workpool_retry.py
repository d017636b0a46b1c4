"""``manage.py workpool_retry``: let finished works run again."""

import uuid
from collections import Counter
from typing import Any

from django.core.management.base import CommandParser

from ... import conf, requeue
from ...database import database
from ...models import Archive
from ...pools import Workpool
from ...requeue import Refusal
from ...types import FnType, ResultKind
from ..operations import CODES, PARTLY, Operation, add_bulk_arguments, by_pool, chunks, duration, filtered, only_one_of, several
from ..progress import Progress


class Command(Operation):
    """Lets finished works run again, under their ids."""

    help = f"Lets finished works that have failed or were canceled run again. {CODES}"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("ids", nargs="*", metavar="ID", help="Ids of finished works.")
        parser.add_argument("--failed", action="store_true", help="All works of --pool that have failed.")
        parser.add_argument("--since", metavar="DURATION", help="With --failed: that have failed within this time (90s, 15m, 1h30m, 2d).")
        parser.add_argument(
            "--callbacks",
            action="store_true",
            help="Call on_complete functions again that have failed for good: of works or batches with these ids, or all.",
        )
        add_bulk_arguments(parser)

    def operate(self, options: dict[str, Any]) -> None:
        """Retry."""
        self.taken: list[uuid.UUID] = []
        self.refused: dict[uuid.UUID, str] = {}
        if bool(options["ids"]) == options["failed"]:
            raise self.refusal(only_one_of(["ids of works", "--failed with --pool"]))
        if options["failed"]:
            if not options["pool"]:
                raise self.refusal("--failed needs --pool.")
            self._retry_failed(options)
        elif options["since"]:
            raise self.refusal("--since goes with --failed.")
        elif options["callbacks"]:
            self._retry_callbacks(options)
        else:
            self._retry_ids(options)

    def _retry_ids(self, options: dict[str, Any]) -> None:
        ids = self.ids()
        found = by_pool(Archive, ids, options["pool"])
        known = {work_id for few in found.values() for work_id in few}
        self.refused = {work_id: Refusal.GONE.value for work_id in ids if work_id not in known}
        for pool, few in found.items():
            self._take(pool, few)
        self._told()

    def _retry_callbacks(self, options: dict[str, Any]) -> None:
        pools = list(conf.pools()) if options["pool"] is None else [options["pool"]]
        for work_id in self.ids():
            if any(self._retry_callback(pool, work_id) for pool in pools):
                self.taken.append(work_id)
            else:
                self.refused[work_id] = "none of its callbacks has failed for good"
        self._told()

    def _retry_callback(self, pool: str, work_id: uuid.UUID) -> bool:
        if self.options["dry_run"]:
            return requeue.exhausted_callback(pool, work_id) is not None
        return Workpool(pool).retry_callback(work_id)

    def _retry_failed(self, options: dict[str, Any]) -> None:
        pool = options["pool"]
        conf.pool(pool)
        db = database(conf.database_alias(pool))
        # What fails again meanwhile is not taken twice.
        now_ms = db.clock_ms()
        rows = filtered(Archive, options, kind=ResultKind.FAILED.value, finished__lte=db.moment(now_ms))
        rows = rows.filter(fn_type=FnType.CALLBACK) if options["callbacks"] else rows.exclude(fn_type=FnType.CALLBACK)
        if options["since"]:
            rows = rows.filter(finished__gte=db.moment(now_ms - duration(options["since"]).total_seconds() * 1000))
        number = rows.count()
        if options["dry_run"]:
            self.taken = list(rows.order_by("id").values_list("id", flat=True))
        elif number:
            if not self.confirmed(f"Let {several(number)} of the pool {pool} run again?"):
                raise self.refusal("Nothing was retried.", PARTLY)
            with Progress(self.stderr, "retried", number) as progress, self.stoppable():
                for ids in chunks(rows):
                    self._take(pool, ids)
                    progress.add(len(ids))
                    self.so_far = len(self.taken)
                    if self.stops():
                        break
        self._told()

    def _take(self, pool: str, ids: list[uuid.UUID]) -> None:
        done = (requeue.look if self.options["dry_run"] else requeue.requeue)(pool, ids)
        self.taken += done.taken
        self.refused |= {work_id: refusal.value for work_id, refusal in done.refused.items()}

    def _told(self) -> None:
        if self.options["json"]:
            self.tell_json(
                {"dry_run": self.options["dry_run"], "retried": self.taken, "refused": {str(k): v for k, v in self.refused.items()}}
            )
        else:
            would = "would run" if self.options["dry_run"] else "will run"
            self.tell(f"{several(len(self.taken))} {would} again.")
        self.end_if_stopped()
        if self.refused or not self.taken:
            counts = Counter(self.refused.values())
            few = [f"{work_id}: {reason}" for work_id, reason in self.refused.items()]
            lines = few if len(few) <= 10 else [f"{several(number)}: {reason}" for reason, number in counts.items()]
            raise self.refusal("; ".join(lines) or "There is nothing to retry.", PARTLY)
