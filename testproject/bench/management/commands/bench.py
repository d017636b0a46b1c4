"""``manage.py bench CASE``: measure the pool on this machine, in a database of its own."""

import json
import shlex
import statistics
import tempfile
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from testproject.bench import best, cases, costs, growth, pace, place  # noqa: F401 - each enters its cases
from testproject.bench.course import CASES, Case, Course, Stalled
from testproject.bench.measure import Figures
from testproject.bench.worker import Setup, WorkerFailed
from testproject.ending import ended_by_signals

#: Why some cases are not measured on SQLite.
LEFT_OUT = "SQLite does not tell"


class Command(BaseCommand):
    """Measure, verify, tell."""

    help = "\n".join(
        [
            "Measures the pool in a database of its own, beside the one of DATABASE_URL (else SQLite), with real worker processes.",
            "",
            "cases:",
            *(f"  {case.name:<15} {case.help} N: {case.n:,} {case.unit}." for case in CASES.values()),
        ]
    )

    def create_parser(self, *args: Any, **options: Any) -> CommandParser:
        """Keep the lines of the list of cases."""
        parser = super().create_parser(*args, **options)
        parser.formatter_class = RawDescriptionHelpFormatter
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("cases", nargs="+", choices=CASES, metavar="CASE", help="What to measure, one after another.")
        parser.add_argument("--n", type=_positive, help="Size of the case (default: see above).")
        parser.add_argument(
            "--pool-limit", type=_positive, default=best.LIMIT, metavar="L", help="Works at once over all processes (default: %(default)s)."
        )
        parser.add_argument("--processes", type=_positive, default=1, metavar="P", help="Worker processes (default: %(default)s).")
        parser.add_argument(
            "--threads", type=_positive, default=best.THREADS, metavar="T", help="Threads of each worker process (default: %(default)s)."
        )
        parser.add_argument("--reps", type=_positive, default=1, metavar="R", help="Repetitions; a median follows (default: %(default)s).")
        parser.add_argument(
            "--retention-day", action="store_true", help="Keep finished work for a day, as by default, instead of not at all."
        )
        parser.add_argument(
            "--worker-options", type=shlex.split, default=list(best.OPTIONS), metavar="TEXT", help="Further options of workpool_main."
        )
        parser.add_argument("--json", action="store_true", help="Print a JSON line for each repetition, and one with the median.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the cases.

        Raises:
            CommandError: a result is wrong, or there is none.
        """
        setup = Setup(
            limit=options["pool_limit"],
            threads=options["threads"],
            processes=options["processes"],
            options=tuple(options["worker_options"]),
            retention_day=options["retention_day"],
        )
        wrong = []
        try:
            with (
                ended_by_signals(),
                tempfile.TemporaryDirectory(prefix="workpool-bench-") as name,
                place.temporary_database(Path(name)) as database,
            ):
                course = Course(database, Path(name), setup)
                for case in (CASES[name] for name in options["cases"]):
                    if not self._measure(case, course, options["n"] or case.n, options["reps"], options["json"]):
                        wrong.append(case.name)
        except place.NoPlace as error:
            raise CommandError(str(error)) from error
        if wrong:
            raise CommandError(f"wrong: {', '.join(wrong)}")

    def _measure(self, case: Case, course: Course, n: int, reps: int, as_json: bool) -> bool:
        """Run one case ``reps`` times and tell of each; return whether all results were right."""
        title = {"case": case.name, "n": n, "unit": case.unit, "database": _database()}
        if not as_json:
            self.stdout.write("\n{case}: {n:,} {unit}, {database}".format(**title))
        if case.postgresql_only and not place.is_postgresql():
            self.stdout.write(json.dumps({**title, "left_out": LEFT_OUT}) if as_json else f"  left out: {LEFT_OUT}")
            return True
        told: dict[str, Figures] = {}
        right = True
        for rep in range(1, reps + 1):
            figures, problems = _repetition(case, course, n)
            told[str(rep)] = figures
            right = right and not problems
            if as_json:
                self._line({**title, "rep": rep, "ok": not problems, "problems": problems, **figures})
            for problem in () if as_json else problems:
                self.stdout.write(f"  WRONG: {problem}")
        if reps > 1 and right:
            told["median"] = median(list(told.values()))
            if as_json:
                self._line({**title, "rep": "median", "ok": True, "problems": [], **told["median"]})
        if not as_json:
            self._table(told)
        return right

    def _line(self, told: dict[str, Any]) -> None:
        self.stdout.write(json.dumps(told))
        self.stdout.flush()

    def _table(self, told: dict[str, Figures]) -> None:
        if len(told) > 1:
            self.stdout.write(f"  {'':<24}" + "".join(f"{rep:>14}" for rep in told))
        for name in dict.fromkeys(name for figures in told.values() for name in figures):
            self.stdout.write(f"  {name:<24}" + "".join(f"{_shown(figures.get(name)):>14}" for figures in told.values()))
        self.stdout.flush()


def _repetition(case: Case, course: Course, n: int) -> tuple[Figures, list[str]]:
    """Run a case once; return its figures, and what was wrong."""
    course.problems = []
    course.begin()
    try:
        figures = case.run(course, n)
    except (Stalled, WorkerFailed) as error:
        return {}, [*course.problems, str(error)]
    return figures, course.problems


def median(told: Sequence[Figures]) -> Figures:
    """Return the median of each figure, None where it is no number in all repetitions."""
    figures: Figures = {}
    for name in told[0]:
        values = [one[name] for one in told]
        numbers = [value for value in values if isinstance(value, (int, float))]
        figures[name] = round(statistics.median(numbers), 3) if len(numbers) == len(values) else None
    return figures


def _shown(value: float | int | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:,}"


@cache
def _database() -> str:
    return f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ArgumentTypeError("must be 1 or more")
    return value
