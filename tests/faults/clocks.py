"""A drill with wrong clocks."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from .drill import Drill, Skipped, drill
from .evidence import conclude
from .journal import read


@drill(
    "mains whose clocks are an hour ahead and behind: delays and order go by the database's clock", databases=("postgresql",), seconds=20
)
def clock_skew(drill: Drill) -> None:
    """Give two mains wrong clocks, each leading for a while, and look when delayed works begin."""
    library = _library(drill)
    for hours in (+1, -1):
        skewed = {"LD_PRELOAD": str(library), "DRILL_CLOCK_SHIFT": str(hours * 3600)}
        main = drill.fleet.start(env=skewed)
        drill.fleet.wait_for(main, "lead_taken")
        sign = "ahead" if hours > 0 else "behind"
        began = {}
        for number in range(4):
            began[f"plain.{sign}{number}"] = time.monotonic()
            drill.enqueue(f"plain.{sign}{number}", delay=2.0 + number)
        drill.wait(lambda: began.keys() <= {run.key for run in read(drill.folder)}, 20, "the delayed works begin")  # noqa: B023
        waits = [run.begun - began[run.key] for run in read(drill.folder) if run.key in began]
        for number, waited in enumerate(waits):
            drill.expect(2.0 + number <= waited <= 3.5 + number, f"{sign}: delayed by {2 + number} s, begun after {waited:.2f} s")
        drill.figures[sign] = "/".join(f"{waited:.2f}" for waited in waits)
        main.tell_to_end()
        drill.expect(main.wait() == 0, f"main {main.number} did not end in time")
        ahead = main.events()[0].at - main.began - drill.offset
        drill.expect(abs(ahead - hours * 3600) < 60, f"the clock of main {main.number} is {ahead:.0f} s ahead: it was not wrong")
    drill.fleet.start()
    # By their logs the second main did everything two hours before the first.
    conclude(drill, judge_leads=False)


def _library(drill: Drill) -> Path:
    """Compile what makes the clock wrong. (libfaketime 0.9.10 breaks the waits of Python 3.11, with or without the monotonic clock.)"""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        raise Skipped("there is no C compiler, or this is not Linux")
    library = drill.folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, Path(__file__).with_name("clock.c"), "-ldl"], check=True)
    return library
