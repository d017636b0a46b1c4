"""``python -m tests.faults NAME [--database postgresql|sqlite] [options]``, ``--list``, or ``--all``: one line a drill says how it went.

Ends with 1 if something is not as promised; with REQUIRE_ALL=1 also if a drill was skipped.
"""

import argparse
import os
import subprocess
import sys

from . import clocks, connections, growth, leaders, locking, poolers, signals, timeouts, workers
from .drill import BOTH, TABLE, Entry, run

#: The modules that fill the table.
THEMES = (leaders, workers, connections, timeouts, poolers, signals, clocks, locking, growth)
SKIPPED = 2


def main(arguments: list[str]) -> int:
    """Do what the command line says; return the exit code."""
    if arguments[:1] in (["--list"], ["--all"]):
        return show() if arguments[0] == "--list" else run_all(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME | --list | --all")
    for entry in TABLE.values():
        one = names.add_parser(entry.name, help=entry.shows, description=entry.body.__doc__)
        one.add_argument("--database", choices=BOTH, default=entry.databases[0])
        one.add_argument("--keep", metavar="FOLDER", help="Copy logs and journals to this folder.")
        if entry.options is not None:
            entry.options(one)
    options = parser.parse_args(arguments)
    code = run(TABLE[options.name], options.database, options)
    return int(bool(os.environ.get("REQUIRE_ALL"))) if code == SKIPPED else code


def show() -> int:
    """Print the table."""
    for entry in TABLE.values():
        quick = "" if entry.quick is None else " [CI]"
        print(f"{entry.name:16} {'+'.join(entry.databases):18} {entry.seconds:5} s{quick:5} {entry.shows}")
    return 0


def run_all(arguments: list[str]) -> int:
    """Run every drill on each of its databases, or only on those of ``--database``; Django can be set up once a process."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults --all")
    parser.add_argument("--database", choices=BOTH, action="append")
    parser.add_argument("--quick", action="store_true", help="Only what runs in CI, as it runs there.")
    options = parser.parse_args(arguments)
    codes = [
        _run_apart(entry, vendor, options.quick)
        for vendor in options.database or BOTH
        for entry in TABLE.values()
        if vendor in entry.databases and (entry.quick is not None or not options.quick)
    ]
    skipped, failed = codes.count(SKIPPED), sum(code not in (0, SKIPPED) for code in codes)
    print(f"{len(codes)} drills: {codes.count(0)} ok, {failed} failed, {skipped} skipped", flush=True)
    return int(failed > 0 or (skipped > 0 and bool(os.environ.get("REQUIRE_ALL"))))


def _run_apart(entry: Entry, vendor: str, quick: bool) -> int:
    arguments = entry.quick if quick and entry.quick else ()
    command = [sys.executable, "-m", "tests.faults", entry.name, "--database", vendor, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    return SKIPPED if ": skipped (" in done.stdout.rpartition("\n")[0].rpartition("\n")[2] else done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
