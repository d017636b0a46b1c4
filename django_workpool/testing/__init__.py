"""For the tests of projects: run what was enqueued inside a test, look at it, and move the pool's time on. Needs no worker and no commit.

Everything goes through the real rows, the real iterations of the loop and the real completions, on the test's thread and connection.
"""

from .clock import travel
from .eager import eager
from .looking import assert_enqueued, assert_not_enqueued, capture_work, enqueued
from .records import EndlessWork, EnqueuedWork, RanWork, WorkFailed
from .running import arun_work, run_work
from .tester import WorkpoolTester, WorkpoolTestMixin

__all__ = [
    "EndlessWork",
    "EnqueuedWork",
    "RanWork",
    "WorkFailed",
    "WorkpoolTestMixin",
    "WorkpoolTester",
    "arun_work",
    "assert_enqueued",
    "assert_not_enqueued",
    "capture_work",
    "eager",
    "enqueued",
    "run_work",
    "travel",
]
