"""Hundreds of histories in one thread, with a crash at every commit; what is simulated, and how, is in ``tests/simulation``."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.simulation.crashes import POINTS

ROOT = Path(__file__).parents[1]
#: Seconds for the fixed range of seeds, and the number that is run however slow the machine is: each point is aimed at by then.
SECONDS, LEAST, MOST = 20, 200, 5_000

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="it runs on SQLite in memory: once, beside the suite on SQLite"),
]


def simulate(*arguments: str, seconds: float, hash_seed: str = "0") -> str:
    """Run the simulation in a process of its own, with the clock and the database that it needs; return what it prints."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert result.returncode == 0, f"{result.stdout[-6000:]}\n{result.stderr[-3000:]}"
    return result.stdout


@pytest.mark.timeout(600)
def test_whatever_dies_at_whichever_commit_each_work_ends_once() -> None:
    """A fixed range of seeds: nothing is lost, doubled, started early, over the limit or against a cancelation."""
    missing, outputs = {point.replace(" ", "_") for point in POINTS}, ""
    # A slow machine gets no further than the least: what nobody has died at by then is aimed at by other seeds.
    for first in (0, MOST, 2 * MOST):
        seconds = SECONDS if first == 0 else 0
        outputs += simulate(
            *("--jobs", "2", "--first", str(first), "--seeds", str(MOST), "--seconds", str(seconds), "--least", str(LEAST), "--points"),
            seconds=280,
        )
        died = {"before": set(), "after": set()}
        for name, before, after in re.findall(r"^point (\S+) commits=\d+ before=(\d+) after=(\d+)$", outputs, re.M):
            died["before"] |= {name} if int(before) else set()
            died["after"] |= {name} if int(after) else set()
        missing -= died["before"] & died["after"]
        if not missing:
            break
    assert missing == set(), outputs
    assert sum(int(number) for number in re.findall(r"old_leaders_refused=(\d+)", outputs)) > 0, outputs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_seed_is_a_history() -> None:
    """The same seeds give the same histories byte for byte, others give others."""
    first = simulate("--seeds", "12", "--trace", "--digest", seconds=140, hash_seed="1").split("simulation: ok")[0]
    again = simulate("--seeds", "12", "--trace", "--digest", seconds=140, hash_seed="2").split("simulation: ok")[0]
    assert first == again
    assert len(set(re.findall(r"^digest \d+ (\w+)", first, re.M))) == 12


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_planted_faults_are_found() -> None:
    """Each promise can be seen broken: with a fault in the product, few histories are needed."""
    output = simulate("--plants", "--seeds", "120", seconds=280)
    assert "NOT FOUND" not in output
    assert output.count("found by seed") >= 16
