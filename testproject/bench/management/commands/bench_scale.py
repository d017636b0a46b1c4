"""``manage.py bench_scale``: what bounds the pool beyond one machine, computed and simulated with measured constants."""

from argparse import ArgumentTypeError
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from testproject.bench import place
from testproject.bench.scale import table
from testproject.bench.scale.constants import Constants, share_of_one, sources
from testproject.bench.scale.measuring import measure
from testproject.bench.scale.meter import NotHere
from testproject.bench.scale.model import Fleet

HOSTS = [1, 10, 100, 1_000]
DEMANDS = [1_000, 10_000, 100_000]
SHARDS = [1, 2, 4, 8, 16]


class Command(BaseCommand):
    """Compute, simulate, tell."""

    help = (
        "Tells what many hosts would carry, by formulas and by a simulation of works that do little but wait: each host has one "
        "process, each shard a database on a server of its own with a leader of its own. Without --measure no database is asked."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        for name, default, text in (("hosts", HOSTS, "Hosts."), ("demand", DEMANDS, "Works a second."), ("shards", SHARDS, "Databases.")):
            parser.add_argument(f"--{name}", type=_positive, nargs="+", default=default, metavar="N", help=f"{text} (default: %(default)s)")
        parser.add_argument(
            "--enqueue-batch", type=_positive, default=1, metavar="N", help="Works enqueued in each transaction (default: %(default)s)."
        )
        parser.add_argument(
            "--duration", type=float, default=0.01, metavar="S", help="Seconds that each function waits (default: %(default)s)."
        )
        parser.add_argument("--archive", action="store_true", help="Keep finished works.")
        parser.add_argument("--channels", action="store_true", help="As if hints woke only those whom they are for (not built).")
        parser.add_argument("--chunk", type=_positive, default=1, metavar="N", help="As if a process got N works in a row (not built).")
        parser.add_argument(
            "--one-server",
            action="store_true",
            help="The databases are of one server: each gets its share of its cores, log and autovacuum.",
        )
        parser.add_argument("--set", type=_setting, nargs="+", default=[], metavar="NAME=VALUE", help="Change constants.")
        parser.add_argument("--constants", action="store_true", help="List the constants, and where they come from, before the table.")
        parser.add_argument("--measure", action="store_true", help="Measure what can be measured on the PostgreSQL of DATABASE_URL.")
        parser.add_argument("--works", type=_positive, default=10_000, metavar="N", help="Works of each simulation (default: %(default)s).")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="Of the simulations (default: %(default)s).")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the table.

        Raises:
            CommandError: there is nothing to measure on, or no constant of a name.
        """
        constants, told = Constants(), sources()
        if options["measure"]:
            constants = replace(constants, **self._measured())
        try:
            constants = replace(constants, **dict(options["set"]))
        except TypeError as error:
            raise CommandError(f"--set: {error}") from error
        if options["measure"] or options["constants"]:
            for name, value in asdict(constants).items():
                self.stdout.write(f"{name:<28}{value:>14,.1f}  {told[name] if value == getattr(Constants(), name) else 'now'}")
            self.stdout.write("")
        self.stdout.write(table.heading())
        for hosts, demand, shards in product(options["hosts"], options["demand"], options["shards"]):
            fleet = Fleet(
                hosts=hosts,
                shards=shards,
                demand=demand,
                enqueue_batch=options["enqueue_batch"],
                duration=options["duration"],
                archive=options["archive"],
                channels=options["channels"],
                chunk=options["chunk"],
            )
            given = share_of_one(constants, shards) if options["one_server"] else constants
            self.stdout.write(str(table.line(given, fleet, seed=options["seed"], works=options["works"])))
            self.stdout.flush()

    def _measured(self) -> dict[str, float]:
        if not place.is_postgresql():
            raise CommandError("--measure needs a DATABASE_URL that leads to PostgreSQL: it measures in a database of its own beside it.")
        try:
            return measure()
        except (place.NoPlace, NotHere) as error:
            raise CommandError(str(error)) from error


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ArgumentTypeError("must be 1 or more")
    return value


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)
