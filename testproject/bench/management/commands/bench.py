"""``manage.py bench CASE``: measure the pool on this machine, in a database of its own."""

import json
import shlex
import signal
import statistics
import tempfile
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from testproject.bench import best, cases, costs, growth, pace, place  # noqa: F401 - each enters its cases
from testproject.bench.course import CASES, Case, Course, Stalled
from testproject.bench.measure import Figures
from testproject.bench.worker import Setup, WorkerFailed


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
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _exit)
        setup = Setup(
            limit=options["pool_limit"],
            threads=options["threads"],
            processes=options["processes"],
            options=tuple(options["worker_options"]),
            retention_day=options["retention_day"],
        )
        wrong = []
        with tempfile.TemporaryDirectory(prefix="workpool-bench-") as name, place.temporary_database(Path(name)) as database:
            course = Course(database, Path(name), setup)
            for case in (CASES[name] for name in options["cases"]):
                if case.postgresql_only and not place.is_postgresql():
                    self._tell(case, case.n, "", {"left_out": "needs PostgreSQL"}, [], options["json"])
                elif not self._measure(case, course, options["n"] or case.n, options["reps"], options["json"]):
                    wrong.append(case.name)
        if wrong:
            raise CommandError(f"wrong: {', '.join(wrong)}")

    def _measure(self, case: Case, course: Course, n: int, reps: int, as_json: bool) -> bool:
        """Run one case ``reps`` times and tell each; return whether all results were right."""
        told: list[Figures] = []
        right = True
        for rep in range(1, reps + 1):
            course.problems = []
            course.begin()
            try:
                told.append(case.run(course, n))
            except (Stalled, WorkerFailed) as error:
                course.problems.append(str(error))
                told.append({})
            right = right and not course.problems
            self._tell(case, n, rep, told[-1], course.problems, as_json)
        if reps > 1 and right:
            self._tell(case, n, "median", median(told), [], as_json)
        return right

    def _tell(self, case: Case, n: int, rep: int | str, figures: Figures, problems: Sequence[str], as_json: bool) -> None:
        if as_json:
            head = {"case": case.name, "rep": rep, "n": n, "unit": case.unit, "database": _database(), "ok": not problems}
            self.stdout.write(json.dumps({**head, **figures, "problems": list(problems)}))
        else:
            if rep in (1, ""):
                self.stdout.write(f"\n{case.name}: {n:,} {case.unit}, {_database()}")
            for name, value in figures.items():
                self.stdout.write(f"  {rep!s:<7}{name:<24}{_shown(value):>14}")
            for problem in problems:
                self.stdout.write(f"  {rep!s:<7}WRONG: {problem}")
        self.stdout.flush()


def median(told: Sequence[Figures]) -> Figures:
    """Return the median of each figure, None where it is no number in all repetitions."""
    figures: Figures = {}
    for name in told[0]:
        values = [one[name] for one in told]
        numbers = [value for value in values if isinstance(value, (int, float))]
        figures[name] = statistics.median(numbers) if len(numbers) == len(values) else None
    return figures


def _shown(value: float | int | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:,}"


@cache
def _database() -> str:
    return f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"


def _exit(number: int, frame: FrameType | None) -> None:
    # Unwinds through the context managers, undisturbed: no process and no database stays behind.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ArgumentTypeError("must be 1 or more")
    return value
