"""The app, and what a test asks of the processes that it starts."""

import json
import os
import signal
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig

if TYPE_CHECKING:
    from django_workpool.loop.context import Iteration

#: Set to anything: deaths are seen after a moment of silence instead of five seconds, so that a test can kill several times.
QUICK_VARIABLE = "WORKPOOL_TEST_QUICK"
#: Set to anything: no kick is ever sent by this process.
NO_KICK_VARIABLE = "WORKPOOL_TEST_NO_KICK"
#: Set to anything: callback work is retried after moments.
QUICK_CALLBACKS_VARIABLE = "WORKPOOL_TEST_QUICK_CALLBACKS"
#: Set to anything: the leader tells nobody that works which run were canceled, its own process neither.
LOST_VARIABLE = "WORKPOOL_TEST_LOST"
#: Set to anything: functions that do not end after their timeout or cancelation are killed, or told of, after half a second.
STOP_VARIABLE = "WORKPOOL_TEST_STOP"
#: A file that the first process makes; whatever process loads the project afterwards, fails.
ONCE_VARIABLE = "WORKPOOL_TEST_ONCE"
#: Where the process kills itself when a batch is over: "before" its callback is inserted, or "after" the commit of that.
DIE_AT_BATCH_VARIABLE = "WORKPOOL_TEST_DIE_AT_BATCH"


class WorksConfig(AppConfig):
    """What INSTALLED_APPS loads for ``tests.works``."""

    name = "tests.works"
    label = "works"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Change the constants that the environment names."""
        if os.environ.get(QUICK_VARIABLE):
            _be_quick()
        if os.environ.get(NO_KICK_VARIABLE):
            _never_kick()
        if os.environ.get(QUICK_CALLBACKS_VARIABLE):
            _retry_callbacks_soon()
        if os.environ.get(STOP_VARIABLE):
            _stop_soon()
        if os.environ.get(LOST_VARIABLE):
            _tell_nobody()
        if os.environ.get("WORKPOOL_TEST_SIGNALS"):
            from . import receivers

            receivers.connect()
        if path := os.environ.get("WORKPOOL_TEST_TRACES"):
            from . import traces

            traces.begin(path)
        if where := os.environ.get(DIE_AT_BATCH_VARIABLE):
            _die_at_batch(where)
        if once := os.environ.get(ONCE_VARIABLE):
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))


def _be_quick() -> None:
    from django_workpool.execution import liveness, processes
    from django_workpool.runner import lead, leader, watcher

    liveness.WINDOW = lead.UNCHANGED = 0.6
    watcher.PULSE_EVERY = leader.STANDBY_EVERY = 0.2
    processes.START_AGAIN, processes.STARTS_MAX = 0.02, 3


def _stop_soon() -> None:
    from django_workpool.execution import limits, offspring, timeouts

    timeouts.STOP_GRACE = limits.STOP_GRACE = offspring.STOP_GRACE = 0.5


def _tell_nobody() -> None:
    from django_workpool.runner.turns import Turns

    act = Turns._act

    def acts(turns: Any, it: Any) -> None:
        it.stops.clear()
        act(turns, it)

    Turns._act = acts  # type: ignore[method-assign]


def _never_kick() -> None:
    from django_workpool import kick

    kick.kick = lambda *args, **kwargs: None  # type: ignore[assignment]


def _retry_callbacks_soon() -> None:
    from django_workpool import RetryBehavior, settle

    settle.CALLBACK_RETRY = json.dumps(RetryBehavior(initial_backoff=timedelta(milliseconds=10)).to_json())


def _die_at_batch(where: str) -> None:
    from django_workpool import batches
    from django_workpool.runner.turns import Turns

    def die(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    act = Turns._act

    def die_with_callbacks(turns: Turns, it: "Iteration") -> None:
        if any(run.fn_type == "callback" for runs in it.runs.values() for run in runs):
            die()
        act(turns, it)

    if where == "before":
        batches.call_back = die
    else:
        Turns._act = die_with_callbacks  # type: ignore[method-assign]


def fail_thread_starts(times: int) -> list[str]:
    """Let the next ``times`` starts of an executor's thread fail, as they do when the process has too many; return their names."""
    start = threading.Thread.start
    failed: list[str] = []

    def failing(thread: threading.Thread) -> None:
        if thread.name.startswith("workpool-") and thread.name[9:].isdigit() and len(failed) < times:
            failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = failing  # type: ignore[method-assign]
    return failed
