"""``manage.py workpool_cancel``: cancel works by their ids, or many of a pool."""

from typing import Any

from django.core.management.base import CommandParser

from ...models import Work
from ...pools import Workpool
from ..operations import CODES, PARTLY, Operation, add_bulk_arguments, by_pool, chunks, filtered, only_one_of, several
from ..progress import Progress


class Command(Operation):
    """Asks for the cancelation of works."""

    help = f"Cancels works: what waits never starts, what runs is told. {CODES}"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("ids", nargs="*", metavar="ID", help="Ids of works.")
        parser.add_argument("--all", action="store_true", help="All works of --pool that have not ended.")
        add_bulk_arguments(parser)

    def operate(self, options: dict[str, Any]) -> None:
        """Cancel."""
        if bool(options["ids"]) == options["all"]:
            raise self.refusal(only_one_of(["ids of works", "--all with --pool"]))
        if options["all"]:
            if not options["pool"]:
                raise self.refusal("--all needs --pool.")
            self._cancel_all(options)
        else:
            self._cancel_ids(options)

    def _cancel_ids(self, options: dict[str, Any]) -> None:
        ids = self.ids()
        found = by_pool(Work, ids, options["pool"])
        if options["dry_run"]:
            asked = sum(len(few) for few in found.values())
        else:
            asked = sum(Workpool(pool).cancel_many(few) for pool, few in found.items())
        self._told(asked, len(ids))

    def _cancel_all(self, options: dict[str, Any]) -> None:
        pool, rows = Workpool(options["pool"]), filtered(Work, options, callback_of=None)
        number = rows.count()
        if options["dry_run"] or not number:
            self._told(number, number or 1)
            return
        if not self.confirmed(f"Cancel {several(number)} of the pool {pool.name}?"):
            raise self.refusal("Nothing was canceled.", PARTLY)
        if options["name"] is None and options["function"] is None:
            # One row, which covers what is enqueued up to now, too.
            pool.cancel_all()
            self._told(number, number)
            return
        asked = 0
        with Progress(self.stderr, "canceled", number) as progress, self.stoppable():
            for ids in chunks(rows):
                asked += pool.cancel_many(ids)
                progress.add(len(ids))
                self.so_far = asked
                if self.stops():
                    break
        self._told(asked, asked or 1)

    def _told(self, asked: int, wanted: int) -> None:
        dry = self.options["dry_run"]
        if self.options["json"]:
            self.tell_json({"dry_run": dry, "canceled": asked})
        else:
            self.tell(f"{several(asked)} would be canceled." if dry else f"The cancelation of {several(asked)} is asked for.")
        self.end_if_stopped()
        if asked < wanted:
            text = "There is nothing to cancel." if not asked else f"{several(wanted - asked)} had ended, or been canceled, or are unknown."
            raise self.refusal(text, PARTLY)
