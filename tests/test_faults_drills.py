"""The quick drills, each with processes and a server of its own; and that the check of a history finds what it is to find.

All of them, and those that take longer: ``python -m tests.faults --list``.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connection

from .faults.__main__ import THEMES as THEMES
from .faults.drill import BOTH, TABLE
from .faults.fleet import Disturbance, LogEvent
from .faults.history import Accepted, End, Failure, History, check
from .faults.journal import Run
from .faults.sampler import Limits

ROOT = Path(__file__).parents[1]
#: They wait more than they compute.
AT_ONCE = 3
SOAK = "soak"
#: The one that is drilled each time.
FIRST = "leader_killed"
QUICK = {name: [name, *entry.quick] for name, entry in TABLE.items() if entry.quick is not None and connection.vendor in entry.databases}
COMMANDS = {name: ["tests.faults", *words] for name, words in QUICK.items()}
if connection.vendor in BOTH:
    COMMANDS[SOAK] = ["tests.faults.soak", "--minutes", "0.5", "--seed", "7"]


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Iterator[dict[str, "Future[tuple[int, str]]"]]:
    """Start the drills that this session wants, some at once, and return what they will say."""
    begun: list[subprocess.Popen[str]] = []

    def run(name: str) -> tuple[int, str]:
        command = [sys.executable, "-m", *COMMANDS[name], "--database", connection.vendor]
        environment = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, stdin=subprocess.DEVNULL, env=environment
        )
        begun.append(process)
        output, _ = process.communicate()
        return process.returncode, output

    wanted = [item.callspec.params["drill"] for item in request.session.items if getattr(item, "originalname", "") == "test_drill"]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield {name: threads.submit(run, name) for name in wanted}
        threads.shutdown(wait=False, cancel_futures=True)
        for process in begun:
            if process.poll() is None:
                process.terminate()


@pytest.mark.once
@pytest.mark.timeout(400)
@pytest.mark.parametrize("drill", [pytest.param(name, marks=() if name == FIRST else pytest.mark.slow) for name in COMMANDS])
def test_drill(drill: str, verdicts: dict[str, "Future[tuple[int, str]]"]) -> None:
    """The drill's verdict is that all is as promised."""
    code, output = verdicts[drill].result()
    assert code == 0, output
    assert f"{drill} on {connection.vendor}: ok" in output or ": skipped (" in output


# The check itself ---------------------------------------------------------------------------------------------------


def good() -> History:
    """Return a history of two works in which all is as it should be: one at once, one at the second attempt, on a killed process."""
    limits = Limits()
    limits.spans.append((0.0, float("inf"), 2))
    return History(
        accepted=[Accepted("plain.a", "1", True), Accepted("nap.b", "2", False), Accepted("insert.c", "3", False)],
        committed={"plain.a": 1.0, "nap.b": 1.0, "insert.c": 1.0},
        ends=[
            End("1", "plain.a", "success", 1, True),
            End("2", "nap.b", "success", 2, False, (Failure(1, "django_workpool.WorkerLost", 10),)),
            End("3", "insert.c", "success", 1, False),
        ],
        calls=[("1", "success")],
        effects=["insert.c"],
        runs=[Run("plain.a", 11, 1, 2.0, 2.1, "ended"), Run("nap.b", 10, 1, 2.0), Run("nap.b", 11, 1, 8.0, 9.0, "ended")],
        disturbances=[Disturbance("killed", 10, 2.5)],
        samples=[(1.0, 0), (2.0, 2), (3.0, 1), (9.0, 0)],
        limits=limits,
        events=[
            LogEvent(1, 1.0, "lead_taken", {"term": "1"}),
            LogEvent(1, 2.0, "started", {"work_id": "1"}),
            LogEvent(2, 7.0, "lead_taken", {"term": "2"}),
            LogEvent(2, 8.0, "completed", {"work_id": "1", "status": "success"}),
        ],
    )


def lose_a_work(history: History) -> None:
    del history.ends[0], history.calls[0], history.runs[0]


def lose_a_committed_work(history: History) -> None:
    history.committed["plain.unknown"] = 1.0


def end_twice(history: History) -> None:
    history.events.append(LogEvent(2, 9.0, "completed", {"work_id": "1", "status": "failed"}))


def call_back_twice(history: History) -> None:
    history.calls.append(("1", "success"))


def never_call_back(history: History) -> None:
    history.calls.clear()


def exceed_the_limit(history: History) -> None:
    history.samples.insert(2, (2.5, 3))


def leave_out_an_attempt(history: History) -> None:
    history.ends[1] = End("2", "nap.b", "success", 3, False, (Failure(2, "django_workpool.WorkerLost", 10),))


def lose_an_attempt_without_a_reason(history: History) -> None:
    history.disturbances.clear()


def run_twice(history: History) -> None:
    history.runs.append(Run("plain.a", 12, 1, 3.0, 3.1, "ended"))


def run_without_a_commit(history: History) -> None:
    history.runs.append(Run("plain.rolled-back", 12, 1, 3.0, 3.1, "ended"))


def fail_what_must_succeed(history: History) -> None:
    history.ends[0] = End("1", "plain.a", "failed", 1, True, (Failure(1, "builtins.ValueError", 11),))
    history.calls[0] = ("1", "failed")


def double_an_effect(history: History) -> None:
    history.effects.append("insert.c")


def take_a_term_twice(history: History) -> None:
    history.events.append(LogEvent(3, 9.0, "lead_taken", {"term": "2"}))


def start_after_a_take_over(history: History) -> None:
    history.events.append(LogEvent(1, 9.0, "started", {"work_id": "2"}))


def leave_a_row(history: History) -> None:
    history.left["RunningWork"] = 1


BREAKS: dict[Callable[[History], None], str] = {
    lose_a_work: "plain.a (1) is lost",
    lose_a_committed_work: "plain.unknown was committed and is lost",
    end_twice: "work 1 was told to have ended 2 times",
    call_back_twice: "plain.a ended as success, and its on_complete has run for ['success', 'success']",
    never_call_back: "plain.a ended as success, and its on_complete has run for []",
    exceed_the_limit: "3 ran where 2 may",
    leave_out_an_attempt: "nap.b ended as success after 3 attempts, of which [2] are kept",
    lose_an_attempt_without_a_reason: "attempt 1 was lost on process 10, which was never disturbed",
    run_twice: "plain.a began on process 11 (ended) and again on 12",
    run_without_a_commit: "plain.rolled-back ran, but its transaction was never committed",
    fail_what_must_succeed: "plain.a ended as failed (builtins.ValueError)",
    double_an_effect: "mutation insert.c ended as success, and its effect is there 2 times",
    take_a_term_twice: "term 2 was taken 2 times",
    start_after_a_take_over: "main 1 of term 1 started 2 after term 2 began",
    leave_a_row: "1 rows are left in RunningWork",
}


def test_a_good_history_has_no_problem() -> None:
    assert check(good()) == []


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda one: one.__name__)
def test_the_check_finds(break_it: Callable[[History], None]) -> None:
    history = good()
    break_it(history)
    assert any(BREAKS[break_it] in problem for problem in check(history)), check(history)


def test_a_lowered_limit_applies_to_starts_only() -> None:
    history = good()
    history.limits.spans[:] = [(0.0, 3.0, 5), (3.0, float("inf"), 1)]
    history.samples = [(1.0, 5), (6.0, 4), (7.0, 2), (8.0, 1)]
    assert check(history) == []
    history.samples.append((9.0, 2))
    assert check(history) == ["2 ran where 1 may"]


def test_the_manual_names_every_drill() -> None:
    """One file lists what runs in CI, and the command for each that does not."""
    manual = (ROOT / "tests" / "faults" / "README.md").read_text()
    in_ci, beside = manual.split("## Beside CI")
    for name, entry in TABLE.items():
        assert f"`{name}" in (beside if entry.quick is None else in_ci), name
