"""``manage.py workpool_status``: is it well, and if not: why, and what to do."""

import argparse
import json
import time
import uuid
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error

from ... import conf, health
from ...exceptions import WorkpoolError
from ...ids import parse_work_ids
from ...runner.probe import FRESH_FOR, age_of
from ..operations import Telling

WELL, UNWELL, UNKNOWN = 0, 1, 2
#: Seconds between two looks of --watch.
WATCH_EVERY = 2.0
#: Moves a terminal's cursor to its beginning, and clears it.
CLEAR = "\x1b[H\x1b[2J"


class Command(Telling):
    """Shows pools, leader and workers; the exit code says whether all is well."""

    help = "Shows the pools, who leads and who works. Exit code 0: well; 1: not well, and why; 2: the database could not be asked."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument("--pool", action="append", metavar="NAME", help="Show this pool only; may be repeated (default: all).")
        parser.add_argument(
            "--watch",
            nargs="?",
            type=_seconds,
            const=WATCH_EVERY,
            metavar="SECONDS",
            help="Look again and again, so often (default: %(const)s); Ctrl-C, or nobody who reads it, ends it, as the last look did.",
        )
        parser.add_argument(
            "--why",
            action="append",
            metavar="ID",
            help="Only say why the work of this id does not run; may be repeated.",
        )
        parser.add_argument(
            "--health-file",
            metavar="PATH",
            help=f"Only look whether workpool_main has written this file within the last {FRESH_FOR:.0f} seconds; asks no database.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Look and tell.

        Raises:
            CommandError: something is wrong; its return code says whether it is the pool (1) or the look at it (2).
        """
        if options["health_file"]:
            self._look_at_file(options["health_file"])
            return
        look = self._why if options["why"] else self._look
        if options["watch"] is None:
            look(options)
            return
        end: CommandError | None = None
        try:
            # Where nobody reads any more, nobody is there to interrupt it either.
            while not self.unread:
                end = self._look_once(look, options)
                if not self.unread:
                    time.sleep(options["watch"])
        except KeyboardInterrupt:
            pass
        if end is not None:
            raise end

    def _look_once(self, look: Any, options: dict[str, Any]) -> CommandError | None:
        if self.stdout.isatty():
            self.stdout.write(CLEAR, ending="")
        try:
            look(options)
        except CommandError as error:
            # The table has told the problems; what could not be asked has told nothing yet.
            if error.returncode == UNKNOWN:
                self.stderr.write(str(error))
            return error
        return None

    def _look(self, options: dict[str, Any]) -> None:
        try:
            found, unasked = health.examine_all(_databases(options["pool"]), options["pool"])
        except (WorkpoolError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=UNKNOWN) from error
        missing = set(options["pool"] or ()) - {one.pool for whole in found.values() for one in whole.pools}
        if missing and not unasked:
            raise CommandError(f"There is no pool {', '.join(map(ascii, sorted(missing)))}.", returncode=UNKNOWN)
        if found:
            self.tell(_json(found, unasked) if options["json"] else _text(found, unasked))
        if unasked:
            raise CommandError(self.shown("; ".join(unasked.values())), returncode=UNKNOWN)
        if any(one.problems for one in found.values()):
            raise CommandError(self.shown("; ".join(line for one in found.values() for line in one.summary)), returncode=UNWELL)

    def _why(self, options: dict[str, Any]) -> None:
        try:
            ids = parse_work_ids(options["why"])
            told = _why_of(_databases(options["pool"]), ids)
        except (WorkpoolError, ImproperlyConfigured) as error:
            raise CommandError(self.shown(str(error)), returncode=UNKNOWN) from error
        except (Error, OSError) as error:
            text = " ".join(str(error).split())
            raise CommandError(self.shown(f"The database cannot be asked: {text}"), returncode=UNKNOWN) from error
        if options["json"]:
            self.tell_json([asdict(one) for one in told])
        else:
            self.tell("\n".join(f"{one.work_id}: {one.code}: {one.text}" for one in told))
        unknown = [str(one.work_id) for one in told if one.code is health.WhyCode.UNKNOWN]
        if unknown:
            raise CommandError(f"unknown, or no longer kept: {', '.join(unknown)}", returncode=UNWELL)

    def _look_at_file(self, path: str) -> None:
        try:
            age = age_of(path)
        except OSError as error:
            raise CommandError(f"The health file cannot be looked at: {error}", returncode=UNWELL) from error
        if age is None:
            raise CommandError(f"There is no health file {path}: its process has not begun, is not well, or has ended.", returncode=UNWELL)
        if age >= FRESH_FOR:
            raise CommandError(f"The health file {path} is {age:.0f} s old: its process is not well, or is gone.", returncode=UNWELL)
        self.tell(f"{path} is fresh: written {age:.1f} s ago.")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError("must be from 0.1 to 86400")
    return value


def _why_of(databases: tuple[str, ...], ids: list[uuid.UUID]) -> list[health.Why]:
    """Return what the database says that knows a work."""
    found: dict[uuid.UUID, health.Why] = {}
    for using in databases:
        left = [work_id for work_id in ids if work_id not in found or found[work_id].code is health.WhyCode.UNKNOWN]
        found |= health.why(using, left)
    return [found[work_id] for work_id in ids]


def _databases(pools: list[str] | None) -> tuple[str, ...]:
    """Return the databases of pools; all of them where one is asked for that only a row may know."""
    return conf.database_aliases(pools if pools and set(pools) <= set(conf.pools()) else None)


def _json(found: dict[str, health.Health], unasked: dict[str, str]) -> str:
    shown: dict[str, Any] = {using: one.to_json() for using, one in found.items()}
    if len(found) + len(unasked) == 1:
        (whole,) = shown.values()
    else:
        # One object for each database, and above them what concerns all.
        problems = [f"{using}: {line}" for using, one in found.items() for line in one.problems]
        problems += [f"{using}: {text}" for using, text in unasked.items()]
        whole = {"well": not problems, "problems": problems, "databases": shown}
    return json.dumps(whole, cls=DjangoJSONEncoder, indent=2)


def _text(found: dict[str, health.Health], unasked: dict[str, str]) -> str:
    several = len(found) + len(unasked) > 1
    parts = [[f"database {using}", "", *_lines(one)] if several else _lines(one) for using, one in found.items()]
    # Last, and once: a database that is well must not hide another one that is not.
    problems = [f"database {using}: {line}" if several else line for using, one in found.items() for line in one.problems]
    parts.append([*problems, *unasked.values()] or ["all is well"])
    return "\n\n".join("\n".join(lines) for lines in parts)


def _lines(found: health.Health) -> list[str]:
    pools = [
        [one.pool, one.reason, one.waiting, one.due, one.running, one.max_parallelism, one.completing, one.canceling, _span(one.lag_s)]
        for one in found.pools
    ]
    workers = [
        [
            one.id,
            f"{one.host}:{one.pid}",
            "all" if one.pools is None else ", ".join(one.pools),
            one.running,
            one.capacity,
            _state(one),
            _span(one.beat_age_s),
            {True: "held", False: "free", None: "unknown"}[one.lock_held],
        ]
        for one in found.workers
    ]
    lines = _table(["pool", "state", "waiting", "due", "running", "limit", "completing", "canceling", "lag"], pools)
    lines += ["", *_table(["worker", "process", "pools", "running", "capacity", "state", "beat", "lock"], workers)]
    lines += ["", f"leader: {_leader(found.leader)}"]
    for one in found.pools:
        if one.held:
            since, until = (at.isoformat(" ", "seconds") for at in (one.held.since, one.held.until))
            lines.append(f"pool {one.pool}: {one.held.works} held since {since}, the first until {until}: {', '.join(one.held.paths)}")
            lines.append("  no live worker knows these functions: start a workpool_main with their code")
    return [line.rstrip() for line in lines]


def _state(one: health.WorkerHealth) -> str:
    if one.left:
        return "has left"
    return ("accepts" if one.accepting else "stops") if one.alive else "seems dead"


def _leader(one: health.LeaderHealth) -> str:
    who = f"worker {one.worker} ({one.host}:{one.pid})" if one.worker is not None else "a process without a worker's row"
    if one.present:
        lease = "" if one.lease_expires_in_s is None else f", lease ends in {one.lease_expires_in_s:.1f} s"
        return f"{who}, term {one.term}{lease}"
    since = "" if one.absent_s is None else f" for {_span(one.absent_s)}"
    last = f"; the last one was {who}" if one.worker is not None else ""
    return f"nobody{since}, term {one.term}{last}"


def _span(seconds: float) -> str:
    """Return a time for people."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def _table(heading: list[str], rows: list[list[Any]]) -> list[str]:
    cells = [heading, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells] + ([] if rows else ["(none)"])
