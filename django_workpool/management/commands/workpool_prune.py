"""``manage.py workpool_prune``: delete what is kept of finished works and ended batches, until nothing is left."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from ... import archive, batches, conf
from ...database import database
from ..operations import PARTLY, Operation, duration, several
from ..progress import Progress


class Command(Operation):
    """Prunes by hand what ``workpool_main`` prunes by itself."""

    help = (
        "Deletes finished works and ended batches that are older than their pool's RETENTION, or than you say, in small transactions. "
        "Exit code 0: nothing is left of them; 1: it was not confirmed, or was interrupted; "
        "2: the command cannot be taken, or the database not be asked."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--pool", action="append", metavar="NAME", help="This pool only; may be repeated (default: all).")
        parser.add_argument("--older-than", metavar="DURATION", help="In the place of RETENTION: 90s, 15m, 1h30m, 2d; 0 for all.")
        parser.add_argument("--callbacks", action="store_true", help="Callbacks that have failed for good, too; else these stay.")
        parser.add_argument("--dry-run", action="store_true", help="Only tell how many works and batches it would be.")
        parser.add_argument("--yes", action="store_true", help="Do not ask on a terminal.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def operate(self, options: dict[str, Any]) -> None:
        """Prune."""
        keep_for = None if options["older_than"] is None else duration(options["older_than"])
        pools = list(dict.fromkeys(options["pool"] or conf.pools()))
        for pool in pools:
            conf.pool(pool)
        found = {pool: self._count(pool, keep_for) for pool in pools}
        number = sum(sum(counts.values()) for counts in found.values())
        if number and not options["dry_run"]:
            if not self.confirmed(f"Delete what is kept of {number} finished works and ended batches?"):
                raise self.refusal("Nothing was pruned.", PARTLY)
            with Progress(self.stderr, "pruned", number) as progress, self.stoppable():
                found = {pool: self._prune(pool, keep_for, progress) for pool in pools}
        self._told(found)
        self.end_if_stopped()

    def _count(self, pool: str, keep_for: timedelta | None) -> dict[str, int]:
        db = database(conf.database_alias(pool))
        works = archive.old(db, pool, keep_for, exhausted=self.options["callbacks"])
        ended = batches.old(db, pool, keep_for)
        return {"works": 0 if works is None else works.count(), "batches": 0 if ended is None else ended.count()}

    def _prune(self, pool: str, keep_for: timedelta | None, progress: Progress) -> dict[str, int]:
        """Delete in portions until nothing is left, or Ctrl-C has come."""
        using, counts = conf.database_alias(pool), {"works": 0, "batches": 0}
        while not self.stops() and (number := archive.prune(using, pool, keep_for, exhausted=self.options["callbacks"])):
            counts["works"] += number
            self.so_far += number
            progress.add(number)
        counts["batches"] = self._count(pool, keep_for)["batches"]
        while not self.stops() and batches.prune(using, pool, keep_for):
            pass
        if self.stopped:
            counts["batches"] -= self._count(pool, keep_for)["batches"]
        progress.add(counts["batches"])
        return counts

    def _told(self, found: dict[str, dict[str, int]]) -> None:
        dry = self.options["dry_run"]
        if self.options["json"]:
            self.tell_json({"dry_run": dry, "pools": found})
        else:
            would = "would be deleted" if dry else "deleted"
            for pool, counts in found.items():
                self.tell(f"{pool}: {several(counts['works'])} and {counts['batches']} ended batches {would}")
