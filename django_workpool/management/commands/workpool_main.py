"""``manage.py workpool_main``: lead or stand by, and run functions."""

import argparse
import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, OperationalError, connections
from django.utils.module_loading import import_string

from ... import conf, eventlog, health
from ...database_errors import is_away, is_conflict, lacks_table
from ...exceptions import UnknownPool, WorkpoolSettingsError
from ...execution.copies import let_signals_end_copies
from ...failures import first_line
from ...runner.clerk import Late
from ...runner.drain import Agreement
from ...runner.farewell import Farewell
from ...runner.probe import Part, Probe
from ...runner.process import Options, Process
from ...runner.several import Several

logger = logging.getLogger("django_workpool.runner")

#: Seconds between two tries to reach a database that is away at the start.
WAIT_FIRST, WAIT_MAX = 0.5, 30.0


class Command(BaseCommand):
    """Runs work: any number of these processes, on any number of hosts, are one pool."""

    help = "Runs the pools' work: leads the main loop or stands by, and runs functions. Start as many as you want."
    stealth_options = ("stdin",)
    farewell: Farewell | None = None

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--threads",
            type=_positive,
            default=conf.DEFAULT_THREADS,
            help="Functions this process runs at once on threads (default: %(default)s).",
        )
        parser.add_argument(
            "--processes",
            type=_number_of_processes,
            default=0,
            metavar="N",
            help="Run functions in this many child processes instead, one at a time in each (default: none).",
        )
        parser.add_argument(
            "--prefetch",
            type=_count,
            default=0,
            metavar="N",
            help="Works that wait in this process beyond those that run: for many short functions (default: none).",
        )
        parser.add_argument(
            "--recycle", type=_count, default=0, metavar="N", help="Replace a child process after this many works (default: never)."
        )
        parser.add_argument(
            "--executor",
            metavar="DOTTED.PATH",
            help="Hand actions to the concurrent.futures executor that this function makes; --threads says how many at once.",
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
        parser.add_argument(
            "--health-file", metavar="PATH", help="Keep this file fresh while the process is well (workpool_status --health-file PATH)."
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Be the process's only purpose."""
        code: Any = 0
        let_signals_end_copies()
        try:
            super().run_from_argv(argv)
        except SystemExit as error:
            code = error.code
            raise
        finally:
            # While it ends, Python puts the system's own handlers back: one more signal would spoil the exit code. Before that it waits
            # for threads, which a signal can shorten.
            atexit.register(_take_signals, signal.SIG_IGN)
            if self.farewell is not None:
                self.farewell.begin(code if isinstance(code, int) else 1)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal, or until drained.

        Raises:
            CommandError: a pool is unknown, the options do not fit together, the caller is in a transaction, or the tables are missing.
        """
        _refuse_transaction()
        if options["processes"] and options["executor"]:
            raise CommandError("Choose --processes or --executor: functions run in one of them.")
        if (options["processes"] or options["executor"]) and not getattr(settings, "SETTINGS_MODULE", None):
            raise CommandError("--processes and --executor need DJANGO_SETTINGS_MODULE: other processes set themselves up by it.")
        databases = _databases(options["pool"])
        probe = _probe(options["health_file"]) if options["health_file"] else None
        all_of_them = Options(
            threads=options["threads"],
            pools=None,
            drain=options["drain"],
            grace=options["grace"],
            processes=options["processes"],
            prefetch=options["prefetch"],
            recycle=options["recycle"],
            executor=_factory(options["executor"]) if options["executor"] else None,
            probe=probe,
        )
        agreement = Agreement(databases)
        several = Several(
            [
                Process(
                    using,
                    replace(all_of_them, pools=pools, probe=Part(probe, using) if probe and len(databases) > 1 else probe),
                    agreement,
                )
                for using, pools in databases.items()
            ],
            _wait_for_tables,
        )

        farewell = self.farewell = Farewell(options["grace"])

        def on_signal(*_: object) -> None:
            farewell.signal()
            several.signal()

        _take_signals(on_signal)
        eventlog.log_to_stderr()
        try:
            code = several.run()
        finally:
            if probe is not None:
                probe.remove()
        if not several.idle:
            # A function that never ends must not keep the process from ending: Python would wait for some threads.
            logging.shutdown()
            sys.stdout.flush()
            os._exit(code)
        if code:
            raise CommandError("a thread of the pool has died; see the log", returncode=code)


def _refuse_transaction() -> None:
    """Refuse to begin where the caller's transaction would hide its works from other sessions, and lose its connection.

    Raises:
        CommandError: the caller's thread is in a transaction, a TestCase's for instance.
    """
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        raise CommandError(
            "workpool_main cannot run inside of a transaction, whose works no other session sees. "
            "In a TestCase, call run_work() of django_workpool.testing."
        )


def _databases(names: list[str] | None) -> dict[str, tuple[str, ...] | None]:
    """Return the databases that the process serves, each with the pools whose works it runs there: None for all.

    Raises:
        CommandError: a pool is unknown, or the settings cannot be used.
    """
    try:
        if not names:
            return dict.fromkeys(conf.database_aliases())
        pools = [conf.pool(name).name for name in names]
        return {using: tuple(name for name in pools if conf.database_alias(name) == using) for using in conf.database_aliases(pools)}
    except (UnknownPool, WorkpoolSettingsError) as error:
        raise CommandError(str(error)) from error


def _take_signals(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handler)


def _wait_for_tables(process: Process) -> bool:
    """Wait for a database that is away; return False if a signal came first.

    Raises:
        CommandError: it is there, but has no tables.
    """
    using, wait = process.using, WAIT_FIRST
    while not process.signals:
        try:
            process.clerk.do(lambda: connections[using].ensure_connection(), float("inf"), lambda: process.signals > 0)
        except Late:
            return False
        except OperationalError as error:
            logger.warning("the database is away (%s), next try in %.1f s", first_line(error), wait)
            until = time.monotonic() + wait
            while time.monotonic() < until and not process.signals:
                time.sleep(0.05)
            wait = min(wait * 2, WAIT_MAX)
            continue
        try:
            process.clerk.do(lambda: _read_tables(using), float("inf"), lambda: process.signals > 0)
            return True
        except Late:
            return False
        except DatabaseError as error:
            if is_away(error) or is_conflict(error):
                continue
            advice = f" Run: {health.migrate_command(using)}" if lacks_table(error) else ""
            raise CommandError(f"The pool's tables in the database {using!r} cannot be read ({str(error).strip()}).{advice}") from error
    return False


def _read_tables(using: str) -> None:
    """Read a row of each table: one of this version, or a column of it, may not have been made yet."""
    for model in apps.get_app_config("workpool").get_models():
        list(model._default_manager.using(using)[:1])


def _probe(path: str) -> Probe:
    try:
        return Probe(path)
    except OSError as error:
        raise CommandError(f"--health-file: {error}") from error


def _factory(path: str) -> Callable[[], Any]:
    try:
        factory = import_string(path)
    except ImportError as error:
        raise CommandError(f"--executor: {error}") from error
    if not callable(factory):
        raise CommandError(f"--executor: {path} is not a function that makes an executor")
    return factory  # type: ignore[no-any-return]


def _number_of_processes(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 1_000:
        raise argparse.ArgumentTypeError("must be from 0 to 1000")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError("must be from 0 to 1000000")
    return value


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
