"""What the operators' commands share: how they ask, tell and end."""

import json
import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TextIO

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import Error
from django.db.models import Model, QuerySet

from .. import conf
from ..exceptions import WorkpoolError
from ..ids import parse_work_ids

#: Exit codes.
DONE, PARTLY, UNASKED = 0, 1, 2
CODES = "Exit code 0: done; 1: nothing, or not all, could be done; 2: the command cannot be taken, or the database not be asked."
#: Works taken at once.
CHUNK = 500
#: Longer than anything is kept, and short enough for each database's calendar.
DURATION_MAX = timedelta(days=36_500)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Telling(BaseCommand):
    """A command that writes whatever its streams can show, and as long as anybody reads them."""

    # A project that has other troubles must be able to ask.
    requires_system_checks = []

    #: Whether whoever read stdout has gone.
    unread = False

    def __init__(self, stdout: Any = None, stderr: Any = None, **kwargs: Any) -> None:
        # Python has none for a stream that was closed before it began.
        out, err = stdout or sys.stdout or _nowhere(), stderr or sys.stderr or _nowhere()
        super().__init__(stdout=out, stderr=err, **kwargs)

    def tell(self, text: str) -> None:
        """Write to stdout."""
        try:
            self.stdout.write(self.shown(text))
            self.stdout.flush()
        except BrokenPipeError:
            self.unread = True
            # Else the interpreter would complain when it closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def tell_json(self, value: Any) -> None:
        """Write an object to stdout."""
        self.tell(json.dumps(value, cls=DjangoJSONEncoder, indent=2))

    def shown(self, text: str) -> str:
        """Return a text as the stream can show it."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)


class Operation(Telling):
    """A command that changes something: ``operate`` does it."""

    stealth_options = ("stdin",)

    #: Works and batches that are done with so far, where many are changed in portions.
    so_far = 0
    #: Whether Ctrl-C has ended that between two portions.
    stopped = False
    _interrupted = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it.

        Raises:
            CommandError: its return code says whether the command was taken (1) or not (2).
        """
        self.options = options
        try:
            self.operate(options)
        except (WorkpoolError, ImproperlyConfigured) as error:
            raise self.refusal(str(error)) from error
        except (Error, OSError) as error:
            raise self.refusal(f"The database cannot be asked: {' '.join(str(error).split())}{self._before()}") from error
        except KeyboardInterrupt:
            raise self.refusal(f"Interrupted at once: what was being done then may be done or not{self._before()}", PARTLY) from None

    def operate(self, options: dict[str, Any]) -> None:
        """Do what the command is for."""
        raise NotImplementedError

    def _before(self) -> str:
        return f" (before that, {self.so_far} were done with)" if self.so_far else ""

    def stops(self) -> bool:
        """Return, between two portions, whether Ctrl-C has come; within ``stoppable`` it waits for that."""
        self.stopped = self.stopped or self._interrupted
        return self.stopped

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let Ctrl-C wait for the end of a portion, so that what is told is what was done; a second one does not wait."""

        def on_signal(*_: object) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def end_if_stopped(self) -> None:
        """End the command, after it has told what was done, if Ctrl-C has kept it from the rest.

        Raises:
            CommandError: it has.
        """
        if self.stopped:
            raise self.refusal("Interrupted: the rest is as it was.", PARTLY)

    def refusal(self, text: str, code: int = UNASKED) -> CommandError:
        """Return the end of a command that did not do what it was to do."""
        return CommandError(self.shown(text), returncode=code)

    def confirmed(self, question: str) -> bool:
        """Ask on a terminal, unless ``--yes`` was said; elsewhere nobody is there to be asked."""
        stdin = self.options.get("stdin") or sys.stdin
        if self.options["yes"] or stdin is None or not stdin.isatty():
            return True
        self.stderr.write(self.shown(f"{question} [y/N] "), ending="")
        self.stderr.flush()
        return str(stdin.readline()).strip().lower() in ("y", "yes")

    def ids(self) -> list[uuid.UUID]:
        """Return the ids of the command line."""
        return parse_work_ids(self.options["ids"])


def add_bulk_arguments(parser: CommandParser) -> None:
    """Declare what commands have that change many works."""
    parser.add_argument("--pool", metavar="NAME", help="The pool: needed where no ids are given.")
    parser.add_argument("--name", help="Of these, only works of this name.")
    parser.add_argument("--function", metavar="PATH", help="Of these, only calls of this function.")
    parser.add_argument("--dry-run", action="store_true", help="Only tell how many works it would be.")
    parser.add_argument("--yes", action="store_true", help="Do not ask on a terminal before many works are changed.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def by_pool(model: type[Model], ids: list[uuid.UUID], only: str | None) -> dict[str, list[uuid.UUID]]:
    """Return which of the works have a row, by their pools: each is looked for in the database that its pool is in.

    Raises:
        UnknownPool: ``only`` is not a pool.
    """
    if only is not None:
        conf.pool(only)
    pools = list(conf.pools()) if only is None else [only]
    found: dict[str, list[uuid.UUID]] = {}
    for alias in conf.database_aliases(pools):
        rows = model._default_manager.using(alias).filter(id__in=ids, pool__in=set(pools) & set(conf.pools_in(alias)))
        for pool, work_id in rows.order_by("id").values_list("pool", "id"):
            found.setdefault(pool, []).append(work_id)
    return found


def filtered(model: type[Model], options: dict[str, Any], **conditions: Any) -> "QuerySet[Any]":
    """Return the rows of a pool that ``--name`` and ``--function`` leave."""
    pool = options["pool"]
    conf.pool(pool)
    named = {"name": options["name"], "func_path": options["function"]}
    conditions |= {column: value for column, value in named.items() if value is not None}
    return model._default_manager.using(conf.database_alias(pool)).filter(pool=pool, **conditions)


def chunks(rows: "QuerySet[Any]") -> Iterator[list[uuid.UUID]]:
    """Yield the ids of rows, in order: what comes behind the last one while they are worked off is left alone."""
    last = rows.order_by("-id").values_list("id", flat=True).first()
    if last is None:
        return
    rows = rows.filter(id__lte=last).order_by("id")
    after = None
    while ids := list((rows if after is None else rows.filter(id__gt=after)).values_list("id", flat=True)[:CHUNK]):
        after = ids[-1]
        yield ids


def duration(text: str) -> timedelta:
    """Return a time such as ``90s``, ``15m``, ``1h30m``, ``2d`` or ``1w``, or a whole number of seconds.

    Raises:
        CommandError: it is none.
    """
    if re.fullmatch(r"(\d+[smhdw])+|\d+", text.strip()):
        parts = re.findall(r"(\d+)([smhdw]?)", text)
        try:
            found = sum((timedelta(**{_UNITS[unit or "s"]: int(number)}) for number, unit in parts), timedelta())
        # Python reads no number of very many digits.
        except (OverflowError, ValueError):
            found = timedelta.max
        if found > DURATION_MAX:
            raise CommandError(f"{ascii(text)[:50]} is longer than a hundred years.", returncode=UNASKED)
        return found
    raise CommandError(f"{ascii(text)[:50]} is not a time such as 90s, 15m, 1h30m, 2d or 1w.", returncode=UNASKED)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it is a stream of the process, and stays open as long


def several(number: int) -> str:
    """Return a number of works for people."""
    return f"{number} work{'' if number == 1 else 's'}"


def only_one_of(texts: Iterable[str]) -> str:
    """Return what is told where of several ways none, or more than one, was chosen."""
    return f"Choose one: {', '.join(texts)}."
