"""``manage.py workpool_configure``: change a pool for all processes."""

from typing import Any

from django.core.management.base import CommandParser

from ... import conf, events
from ...models import Globals
from ...pools import Workpool
from ..operations import CODES, PARTLY, Operation


class Command(Operation):
    """Shows and changes a pool's live configuration."""

    help = f"Changes a pool for all processes, at once; without an option, shows what it is. {CODES}"

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("pool", metavar="POOL", help="The pool.")
        parser.add_argument("--max-parallelism", type=int, metavar="N", help="Works that may run at once; 0 pauses.")
        parser.add_argument("--log-level", metavar="LEVEL", help=f"Least level of its events: {', '.join(events.LEVELS)}.")
        act = parser.add_mutually_exclusive_group()
        act.add_argument("--pause", action="store_true", help="Let nothing more start; the limit is kept.")
        act.add_argument("--resume", action="store_true", help="Give a paused pool its limit back.")
        act.add_argument("--wake", action="store_true", help="Let the main loop look at the pool at once.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def operate(self, options: dict[str, Any]) -> None:
        """Change what is named, then show."""
        pool, limit = Workpool(options["pool"]), options["max_parallelism"]
        if limit is not None and (options["pause"] or options["resume"]):
            raise self.refusal("--max-parallelism says itself whether the pool is paused: leave out --pause or --resume.")
        if limit is not None or options["log_level"] is not None:
            pool.configure(max_parallelism=limit, log_level=options["log_level"])
        refused = ""
        if options["pause"] and not pool.pause():
            refused = f"The pool {pool.name} was paused already."
        if options["resume"] and not pool.resume():
            refused = f"The pool {pool.name} is not paused."
        if options["wake"]:
            pool.wake()
        self._show(pool.name)
        if refused:
            raise self.refusal(refused, PARTLY)

    def _show(self, pool: str) -> None:
        rows = Globals.objects.using(conf.database_alias(pool)).filter(pool=pool)
        row = rows.values("pool", "max_parallelism", "paused_limit", "log_level").first()
        if row is None:
            raise self.refusal(f"The pool {pool} has no rows yet: run migrate.")
        if self.options["json"]:
            self.tell_json(row)
            return
        kept = f", paused; it goes on with {row['paused_limit']}" if row["paused_limit"] else ", paused"
        level = f", log level {row['log_level']}" if row["log_level"] else ""
        self.tell(f"{pool}: max_parallelism {row['max_parallelism']}{kept if not row['max_parallelism'] else ''}{level}")
