"""What runs in a child process: one function at a time, on its main thread, until the parent says stop, or is gone.

Importable without settings: they are set up here.
"""

import contextvars
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from ..types import Outcome
from .copies import let_signals_end_copies
from .frames import Frame, Lines, outcome_frame, pack, read_run, unpack
from .isolation import Isolation

T = TypeVar("T")

#: Bytes taken from the parent at once.
PIECE = 64 * 1024
#: What a function may set, and what one that is not set says.
TIMERS, STILL = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF), (0.0, 0.0)
_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    """Serve the parent.

    Args:
        descriptor: this process's end of a pair of sockets, inherited.
    """
    channel = socket.socket(fileno=descriptor)
    # Not for what functions start.
    channel.set_inheritable(False)
    frames = _receive(channel)
    setup = next(frames, None)
    if setup is None:
        os._exit(1)
    sys.argv[:] = setup["argv"]
    _die_with(setup["parent"])
    for number in (signal.SIGINT, signal.SIGTERM):
        # They may be sent to all processes of a terminal or a service; what follows is for the parent to say. A handler, not
        # SIG_IGN: programs that functions start would inherit that.
        signal.signal(number, lambda *_: None)
    let_signals_end_copies()
    home = os.getpid(), threading.get_ident()
    os.register_at_fork(after_in_child=lambda: _become_a_copy(channel, *home))
    runs: SimpleQueue[Frame | None] = SimpleQueue()
    parent = Parent(channel)
    threading.Thread(target=_listen, args=(frames, runs, parent), name="workpool-parent", daemon=True).start()
    try:
        _serve(parent, setup, runs)
    except BaseException:
        with suppress(BaseException):
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        # Whoever cannot serve any more must not stay, though a thread that a function has started would keep it.
        os._exit(1)


class Parent:
    """The parent, as it is told things by several threads."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        #: Told tokens of canceled works, once there is somebody.
        self.cancel: Callable[[int], None] = lambda token: None

    def tell(self, **frame: Any) -> None:
        """Send a frame."""
        with self._lock:
            self._channel.sendall(pack(frame))


def _receive(channel: socket.socket) -> Iterator[Frame]:
    """Yield what the parent sends, until it is gone."""
    lines = Lines()
    while piece := channel.recv(PIECE):
        for line in lines.feed(piece):
            yield unpack(line)


def _listen(frames: Iterator[Frame], runs: "SimpleQueue[Frame | None]", parent: Parent) -> None:
    """Hand the parent's frames over; end at once when it is gone, whatever the main thread does."""
    try:
        for frame in frames:
            if "cancel" in frame:
                parent.cancel(frame["cancel"])
            else:
                runs.put(None if "stop" in frame else frame)
    finally:
        if os.getpgrp() == os.getpid():
            # With all that functions have started.
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with its parent: a function that holds the GIL keeps every thread from noticing."""
    if sys.platform == "linux":
        with suppress(Exception):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It was gone before that.
        os._exit(1)


def _become_a_copy(channel: socket.socket, original: int, main_thread: int) -> None:
    """In a process that a function has forked: let go of what belongs to the original, and end with it."""
    if channel.fileno() >= 0:
        os.close(channel.detach())
    if threading.get_ident() == main_thread and os.getppid() == original:
        # Forked from another thread, it would end with that thread already; a copy's copy is a daemon and may stay.
        _die_with(original)


class _ChildIsolation(Isolation):
    """An isolation of a main thread, whose functions can also leave handlers of signals and timers behind."""

    def __init__(self, home: str | None = None) -> None:
        super().__init__(home)
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._timers = [timer for timer in TIMERS if signal.getitimer(timer) == STILL]

    def call(self, func: Callable[..., T], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> T:
        """Call ``func``; stop the timers that it has set, and put handlers of signals back, before anything else is done."""
        try:
            return super().call(func, args, kwargs)
        finally:
            for timer in self._timers:
                if signal.getitimer(timer) != STILL:
                    signal.setitimer(timer, 0)
            for number, handler in self._handlers.items():
                # None: it is not Python's, and cannot be set by it.
                if handler is not None and signal.getsignal(number) is not handler:
                    signal.signal(number, handler)


def _serve(parent: Parent, setup: Frame, runs: "SimpleQueue[Frame | None]") -> None:
    import django

    django.setup()
    # They lead to the models.
    from .. import eventlog, functions, kick
    from ..failures import describe
    from . import limits
    from .courier import courier, frames
    from .run import Performer

    #: What was told of runs that may not have begun: the parent tells it once.
    canceled: set[int] = set()

    def cancel(token: int) -> None:
        # Whoever comes first, the other sees it: here it is noted before the run is looked for, there the run begins before.
        canceled.add(token)
        limits.cancel([token])
        # Where the function is not called, its end is being written, or it is yet to begin: that is not to be disturbed.
        limits.tell_call(token, lambda calls: parent.tell(token=token, calls=calls))

    eventlog.log_to_stderr()
    functions.load_tasks()
    brought: list[Outcome] = []
    notices = courier.collect()
    performer = Performer(
        setup["using"],
        setup["worker"],
        write=lambda attempted: brought.append(attempted.outcome),
        aside=lambda _: None,
        done=lambda _: None,
        is_stopping=lambda: False,
    )
    isolation = _ChildIsolation(setup["home"])
    leads = False
    kick.listen(setup["using"], lambda hint: leads and hint.kind == "ended")
    _keep_board(parent, setup["using"])
    parent.cancel, limits.on_call = cancel, lambda run, calls: parent.tell(token=run.token, calls=calls)
    parent.tell(ready=True)
    while (frame := runs.get()) is not None:
        run, leads = read_run(frame["run"]), frame["leads"]
        eventlog.set_levels(setup["using"], {run.pool: frame["level"]})
        brought.clear()
        limits.begin(run)
        limits.cancel(canceled & {run.token})
        try:
            contextvars.Context().run(performer.perform, run, isolation)
        except BaseException as error:
            brought[:] = brought or [Outcome(kind="failed", failure=describe(error))]
        isolation.end()
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        outcome = outcome_frame(brought[0]) if brought else None
        canceled.clear()
        parent.tell(token=run.token, outcome=outcome, signals=frames(notices))
    isolation.close()


def _keep_board(parent: Parent, using: str) -> None:
    """Let the parent write what functions say of their progress: a connection for each child would be too many."""
    from . import progress

    def bring(taken: Sequence[progress.Said]) -> None:
        for one in taken:
            parent.tell(token=one.token, said=[one.done, one.total])

    board = progress.Board(using, bring)
    threading.Thread(target=board.run, args=(threading.Event(),), name="workpool-progress", daemon=True).start()
