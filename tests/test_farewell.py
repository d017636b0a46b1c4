"""The end of a process in which functions have left something behind that does not end."""

import time

import pytest

from django_workpool import Workpool

from .conftest import StartMain
from .live import PATIENCE, result
from .works.behind import leave_threads

LEFT = {"thread": "left-behind", "pool": "a pool of threads, or a call at exit", "exit": "a pool of threads, or a call at exit"}


@pytest.mark.slow
@pytest.mark.parametrize("how", LEFT)
def test_what_functions_have_left_gets_the_grace_time(main_process: StartMain, how: str) -> None:
    """Python would wait for it for ever, and a supervisor would kill the process."""
    main = main_process("--grace", "2")
    main.wait_for("process_started", PATIENCE)
    assert result(Workpool().enqueue(leave_threads, how)).kind == "success"
    main.terminate()
    main.wait_for("process_ended", PATIENCE)
    began = time.monotonic()
    assert main.wait(PATIENCE) == 0
    assert time.monotonic() - began < 2 + 1
    assert f"what was left behind does not end ({LEFT[how]})" in main.output()


def test_a_second_signal_ends_it_at_once(main_process: StartMain) -> None:
    """As it does for functions that run."""
    main = main_process("--grace", "50")
    main.wait_for("process_started", PATIENCE)
    assert result(Workpool().enqueue(leave_threads, "thread")).kind == "success"
    main.terminate()
    main.wait_for("process_ended", PATIENCE)
    began = time.monotonic()
    main.terminate()
    assert main.wait(PATIENCE) == 0
    assert time.monotonic() - began < 2


def test_an_orderly_end_waits_for_nothing(main_process: StartMain) -> None:
    """The time is a limit, not a pause."""
    main = main_process("--grace", "50")
    main.wait_for("process_started", PATIENCE)
    main.terminate()
    main.wait_for("process_ended", PATIENCE)
    began = time.monotonic()
    assert main.wait(PATIENCE) == 0
    assert time.monotonic() - began < 2
    assert "left behind" not in main.output()
