"""``manage.py demo [FOLDER]``: take a folder in through the site, run the pool beside it, and tell how it went."""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.test import Client
from django.urls import reverse

from testproject.ending import ended_by_signals
from testproject.imports import files
from testproject.imports.bar import Bar
from testproject.imports.drain import Drain, MainProcessFailed
from testproject.imports.models import Import
from testproject.imports.progress import progress, retried

#: Failed files that the table names; the site and --json have them all.
NAMED_FAILURES = 20


@dataclass(frozen=True)
class Figures:
    """What the table tells."""

    folder: str
    database: str
    files: int
    bytes: int
    succeeded: int
    retried: int
    failed: int
    seconds: float
    work_per_second: float


class Command(BaseCommand):
    """Take a folder in, file by file."""

    help = "Post a folder to the site, run workpool_main beside it until all its files are done, and print what came of it."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare FOLDER and --json."""
        parser.add_argument("folder", nargs="?", metavar="FOLDER", help="Folder to take in; without it, this checkout.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object with the digests instead of the table.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo."""
        with ended_by_signals():
            self._take_in(options)

    def _take_in(self, options: dict[str, Any]) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        started = time.monotonic()
        made = self._post(os.path.abspath(options["folder"] or settings.BASE_DIR.parent))
        try:
            with Drain() as drain, Bar(sys.stderr, made.total) as bar:
                ended = drain.watch(made.files.count, made.total, bar.show)
        except MainProcessFailed as error:
            raise CommandError(str(error)) from error
        figures = _figures(made, max(ended - started, 0.001))
        if options["json"]:
            self._print_json(made, figures)
        else:
            self._print_table(made, figures)
        if without := made.found.exclude(work_id__in=made.files.values("work_id")).order_by("path"):
            names = ", ".join(_printable(found.path) for found in without[:NAMED_FAILURES])
            raise CommandError(f"{len(without)} files have no row: {names}")

    def _post(self, folder: str) -> Import:
        client = Client(SERVER_NAME="localhost", headers={"accept": "application/json"})
        response = client.post(reverse("imports:imports"), {"folder": files.to_text(folder)})
        if response.status_code != 201:
            told = response.json()["errors"] if response["Content-Type"] == "application/json" else {}
            reasons = " ".join(text for texts in told.values() for text in texts) or response.content.decode(errors="replace")
            raise CommandError(_printable(reasons))
        return Import.objects.get(pk=response.json()["id"])

    def _print_table(self, made: Import, figures: Figures) -> None:
        rows = {**asdict(figures), "folder": _printable(figures.folder)}
        rows["work/s"] = rows.pop("work_per_second")
        for name, value in rows.items():
            self.stdout.write(f"{name:<10} {value:>,}" if isinstance(value, (int, float)) else f"{name:<10} {value}")
        if made.unlisted:
            self.stdout.write(f"{made.unlisted} folders could not be listed.")
        if figures.failed:
            self.stdout.write("\nFailed, after their retries:")
            for path, error in made.files.filter(ok=False).values_list("path", "error")[:NAMED_FAILURES]:
                self.stdout.write(f"  {_printable(path)}: {_printable(error)}")
            if figures.failed > NAMED_FAILURES:
                self.stdout.write(f"  and {figures.failed - NAMED_FAILURES} more")

    def _print_json(self, made: Import, figures: Figures) -> None:
        succeeded = made.files.filter(ok=True).values_list("path", "sha256")
        failed = made.files.filter(ok=False).values_list("path", "error")
        whole = {
            **asdict(figures),
            "unlisted_folders": made.unlisted,
            "failures": {files.from_text(path): error for path, error in failed.iterator()},
            "digests": {files.from_text(path): sha256 for path, sha256 in succeeded.iterator()},
        }
        # ASCII: bytes of a name that are no UTF-8 become the escapes from which Python makes the same name again.
        self.stdout.write(json.dumps(whole, ensure_ascii=True))


def _figures(made: Import, seconds: float) -> Figures:
    counts = progress(made)
    return Figures(
        folder=files.from_text(made.folder),
        database=f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}",
        files=made.total,
        bytes=counts.bytes,
        succeeded=counts.succeeded,
        retried=retried(made),
        failed=counts.failed,
        seconds=round(seconds, 2),
        work_per_second=round(counts.done / seconds, 1),
    )


def _printable(text: str) -> str:
    """Return ``text`` as one line that any terminal's encoding takes."""
    line = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return line.encode(encoding, "backslashreplace").decode(encoding)
