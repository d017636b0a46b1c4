"""One child process, as its parent has it: its start, its socket, its end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

from .. import eventlog, tracing
from ..types import Failure, FnType, Outcome, Run
from . import progress
from .frames import Frame, Lines, pack, run_frame, unpack
from .isolation import working_folder
from .limits import CANCELED, TIMEOUT
from .timeouts import STOP_GRACE, told_timeout

CHILD_LOST = "django_workpool.WorkerLost"

#: Seconds that a child may take to load the project, to stop when told so, and to end after it has closed its socket.
START_TIME, STOP_TIME, CLOSED_TIME = 120.0, 1.0, 1.0
#: Bytes taken from a child at once.
PIECE = 64 * 1024
#: Before anything can be imported, the path must be the parent's.
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from django_workpool.execution.child import main; main(int(sys.argv[1]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What children are started with."""

    using: str
    #: The worker's name, kept with failed attempts.
    worker: str
    #: The module of the project's settings.
    settings: str
    path: list[str] = field(default_factory=lambda: list(sys.path))
    home: str | None = field(default_factory=working_folder)


class Child:
    """A child process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, program: Program) -> None:
        self.channel, theirs = socket.socketpair()
        try:
            self.process = self._open(program, theirs)
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.channel.setblocking(False)
        self.started = time.monotonic()
        #: Whether it has loaded the project: that is the first that it says.
        self.ready = False
        #: What it runs.
        self.run: Run | None = None
        #: Whether its function is being called, as far as is known: what comes after it is not disturbed.
        self._calls = True
        #: When the function must have ended, by its timeout and by its cancelation; and what it means that it was killed for that.
        self._timeout_at = self._stop_at = float("inf")
        self.killed: Outcome | None = None
        #: Works that it has ended.
        self.works = 0
        #: Whether it has run something, or lived for a while: then its end says nothing about the start of others.
        self.proven = False
        #: When it was told to stop, and when its end of the socket was closed.
        self.stopping: float | None = None
        self.closed: float | None = None
        self._code: int | None = None
        self._unsent = bytearray()
        self._lines = Lines()
        setup = {"parent": os.getpid(), "argv": sys.argv, "home": program.home, "using": program.using, "worker": program.worker}
        self.send(setup)

    @staticmethod
    def _open(program: Program, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, str(theirs.fileno()), json.dumps(program.path)],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            cwd=program.home,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": program.settings},
            # All that functions start is in one group, which can be killed, and which a terminal's Ctrl-C does not reach.
            process_group=0,
        )

    @property
    def is_free(self) -> bool:
        """Whether it can be given a run."""
        return self.ready and self.run is None and not self.ends

    @property
    def ends(self) -> bool:
        """Whether it will not run anything any more."""
        return self.stopping is not None or self.closed is not None

    def is_overdue(self, now: float) -> bool:
        """Return whether what it is about to do takes it too long."""
        begun, time_for_it = self.started, START_TIME
        if self.closed is not None:
            begun, time_for_it = self.closed, CLOSED_TIME
        elif self.stopping is not None:
            begun, time_for_it = self.stopping, STOP_TIME
        elif self.ready:
            return False
        return now - begun > time_for_it

    @property
    def unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def send(self, frame: Frame) -> None:
        """Send a frame: now as far as that goes without waiting, the rest by ``flush``."""
        self._unsent += pack(frame)
        self.flush()

    def give(self, run: Run, *, leads: bool) -> None:
        """Let it run something."""
        self.run, self._calls, self._timeout_at, self._stop_at = run, True, float("inf"), float("inf")
        self.send({"run": run_frame(run), "level": eventlog.level_of(run.pool), "leads": leads})

    def note(self, frame: Frame) -> bool:
        """Note what it says of the run before its end, if that is what it says: how far it has come, that it calls the function or no more.

        The timeout counts from the first call.
        """
        if "said" in frame and self.run is not None:
            progress.put(self.run.pool, progress.Said(self.run.work_id, self.run.token, *frame["said"]))
            return True
        if "calls" not in frame:
            return False
        self._calls = frame["calls"]
        if self._calls and self.run is not None and self.run.timeout_ms is not None and self._timeout_at == float("inf"):
            self._timeout_at = time.monotonic() + self.run.timeout_ms / 1000 + STOP_GRACE
        return True

    def cancel(self) -> None:
        """Tell it, once, that its work was canceled."""
        if self.run is not None and self._stop_at == float("inf"):
            self._stop_at = time.monotonic() + STOP_GRACE
            self.send({"cancel": self.run.token})

    @property
    def kill_at(self) -> float:
        """When it is to be killed, because its function does not end (monotonic)."""
        at_work = self.run is not None and self._calls and self.killed is None
        return min(self._timeout_at, self._stop_at) if at_work else float("inf")

    def kill_for_good(self) -> None:
        """Kill it because its function does not end."""
        run = self.run
        if run is None:
            return
        late = self._timeout_at < self._stop_at
        text = f"{told_timeout(run)}, and its process was killed" if late else "the work was canceled, and its process was killed"
        eventlog.log(
            "killed", "WARN", run.pool, work_id=run.work_id, name=run.name, pid=self.process.pid, why=text, **tracing.told(run.trace)
        )
        failure = Failure(class_path=TIMEOUT if late else CANCELED, text=text)
        self.killed = Outcome(kind="failed" if late else "canceled", failure=failure)
        self.kill()

    def lost(self, run: Run) -> Outcome:
        """Return what its death means for what it ran."""
        if self.killed is not None:
            return self.killed
        told = self.told()
        eventlog.log(
            "child_lost", "WARN", run.pool, work_id=run.work_id, name=run.name, pid=self.process.pid, how=told, **tracing.told(run.trace)
        )
        # What a mutation or query has not committed has had no effect; what it has, is completed already.
        kind = "failed" if run.fn_type is FnType.ACTION else "returned"
        return Outcome(kind=kind, failure=Failure(class_path=CHILD_LOST, text=f"worker process lost ({told})"))

    def stop(self) -> None:
        """Tell it to end."""
        self.stopping = time.monotonic()
        self.send({"stop": True})

    def flush(self) -> None:
        """Send what is possible."""
        try:
            while self._unsent:
                del self._unsent[: self.channel.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # Nobody reads it any more; that it has ended is seen elsewhere.
            self._unsent.clear()

    def receive(self) -> list[Frame]:
        """Return what it has sent, and note when it has closed its end."""
        frames: list[Frame] = []
        try:
            while piece := self.channel.recv(PIECE):
                frames += map(unpack, self._lines.feed(piece))
                self.ready = self.ready or bool(frames)
        except BlockingIOError:
            return frames
        except OSError:
            pass
        self.closed = time.monotonic()
        return frames

    def kill(self) -> None:
        """Kill it and all that its functions have started."""
        if self._code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Return whether it has ended; then also kill what its functions have left in its group, and reap it."""
        if self._code is None:
            if hasattr(os, "waitid") and os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            if hasattr(os, "waitid") and self.stopping is None:
                # Until it is reaped, its number is nobody else's.
                self.kill()
            self._code = self.process.poll()
        return self._code is not None

    def told(self) -> str:
        """Return how it has ended, for people."""
        code = self._code or 0
        if code >= 0:
            return f"exit code {code}"
        with suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
        return f"signal {-code}"
