"""``manage.py workpool_main``: lead or stand by, and run functions."""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, OperationalError, connections

from ... import conf
from ...exceptions import UnknownPool
from ...models import Worker
from ...runner.process import Options, Process

logger = logging.getLogger("django_workpool.runner")

#: Seconds between two tries to reach a database that is away at the start.
WAIT_FIRST, WAIT_MAX = 0.5, 30.0


class Command(BaseCommand):
    """Runs work: any number of these processes, on any number of hosts, are one pool."""

    help = "Runs the pools' work: leads the main loop or stands by, and runs functions. Start as many as you want."
    stealth_options = ("stdin",)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--threads",
            type=_positive,
            default=conf.DEFAULT_THREADS,
            help="Functions this process runs at once on threads (default: %(default)s).",
        )
        parser.add_argument("--pool", action="append", metavar="NAME", help="Run works of this pool only; may be repeated (default: all).")
        parser.add_argument("--drain", action="store_true", help="End when nothing is due, running or waiting for a retry.")
        parser.add_argument(
            "--grace",
            type=_seconds,
            default=25.0,
            metavar="SECONDS",
            help="What running functions get to end after the first signal (default: %(default)s).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal, or until drained.

        Raises:
            CommandError: a pool is unknown, or the tables are missing.
        """
        try:
            for name in options["pool"] or ():
                conf.pool(name)
        except UnknownPool as error:
            raise CommandError(str(error)) from error
        stop = threading.Event()
        process = Process(
            conf.database_alias(),
            Options(
                threads=options["threads"],
                pools=tuple(options["pool"]) if options["pool"] else None,
                drain=options["drain"],
                grace=options["grace"],
            ),
        )

        def on_signal(*_: object) -> None:
            stop.set()
            process.signal()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, on_signal)
        _log_to_stderr()
        if not _wait_for_tables(process.using, stop):
            return
        code = process.run()
        if not process.idle:
            # A function that never ends must not keep the process from ending: Python would wait for some threads.
            logging.shutdown()
            sys.stdout.flush()
            os._exit(code)
        if code:
            raise CommandError("a thread of the pool has died; see the log", returncode=code)


def _wait_for_tables(using: str, stop: threading.Event) -> bool:
    """Wait for a database that is away; return False if a signal came first.

    Raises:
        CommandError: it is there, but has no tables.
    """
    wait = WAIT_FIRST
    while not stop.is_set():
        try:
            connections[using].ensure_connection()
        except OperationalError as error:
            logger.warning("the database is away (%s), next try in %.1f s", str(error).strip().partition("\n")[0], wait)
            stop.wait(wait)
            wait = min(wait * 2, WAIT_MAX)
            continue
        try:
            Worker.objects.using(using).exists()
            return True
        except DatabaseError as error:
            connections[using].close()
            raise CommandError(f"The pool's tables cannot be read ({str(error).strip()}). Run: manage.py migrate") from error
    return False


def _log_to_stderr() -> None:
    """Show the pool's log where the project configures none for it."""
    pool_logger = logging.getLogger("django_workpool")
    if not pool_logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handler.formatter.converter = time.localtime  # type: ignore[union-attr]
        pool_logger.addHandler(handler)
    if pool_logger.level == logging.NOTSET:
        # What is shown is decided by each pool's own level.
        pool_logger.setLevel(logging.DEBUG)


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError("must be from 1 to 10000")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError("must be from 0 to 86400")
    return value
