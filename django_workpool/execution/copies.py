"""Signals of copies of this process: what it does when it is told to end is not for those that functions fork."""

import os
import signal

_HANDLERS = ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL))
_NUMBERS = [number for number, _ in _HANDLERS]


def let_signals_end_copies() -> None:
    """Give SIGINT and SIGTERM in each copy the meaning that they have at first: ``multiprocessing`` ends its processes by them."""
    # One that comes before its handler is there waits: Python would forget it.
    os.register_at_fork(before=_hold, after_in_parent=_let_come, after_in_child=_give_back)


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


def _let_come() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)


def _give_back() -> None:
    for number, handler in _HANDLERS:
        signal.signal(number, handler)
    _let_come()
