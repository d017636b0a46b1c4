"""Functions that leave something of theirs behind: copies of their process, signals, threads, connections that are cut."""

import asyncio
import atexit
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from asgiref.sync import sync_to_async

from django_workpool import action, mutation

from .models import Event
from .processes import write_line

#: What runs longer was forgotten.
PATIENCE = 60


@mutation
def fork_mutation(path: str) -> int:
    """Fork; both tell their process and return, the original last."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    write_line(path)
    return pid


@action
async def fork_async(path: str) -> list[int]:
    """Fork; the copy waits a little, which lets others of the loop go on; return the exit code of the copy."""
    pid = os.fork()
    if pid == 0:
        await asyncio.sleep(0.1)
        write_line(path)
        return [-1]
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    return [os.waitstatus_to_exitcode(status)]


@action
async def step_async(path: str, steps: int) -> int:
    """Write the process down again and again, with a wait of the loop before each time; return how often."""
    for _ in range(steps):
        await asyncio.sleep(0.005)
        write_line(path)
    return steps


@action
def end_a_process(number: int) -> int | None:
    """Start a process of multiprocessing that would take long, send it a signal, and return with which code it has ended."""
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(PATIENCE,))
    process.start()
    if number == signal.SIGINT:
        # An exception that comes while it is still being forked is lost.
        time.sleep(0.5)
    os.kill(process.pid or 0, number)
    process.join(5)
    if process.is_alive():
        process.kill()
    return process.exitcode


@action
def leave_signals(what: str) -> None:
    """Set a timer that would end the process soon, or take signals over."""
    if what == "timer":
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    else:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda *_: None)


@action
def look_at_signals(seconds: float) -> list[str]:
    """Take a while, then return who takes the signals."""
    time.sleep(seconds)
    return [str(signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGALRM)]


@action
def leave_threads(how: str) -> None:
    """Leave something behind for which Python waits at its end: a thread, one of a pool that has work, or a call."""
    if how == "thread":
        threading.Thread(target=time.sleep, args=(PATIENCE,), name="left-behind", daemon=False).start()
    elif how == "pool":
        ThreadPoolExecutor(1, thread_name_prefix="left-behind").submit(time.sleep, PATIENCE)
    else:
        atexit.register(time.sleep, PATIENCE)


@action
async def count_beside(number: int) -> int:
    """Ask the database on several threads at once; return how many have been answered."""

    def ask() -> int:
        time.sleep(0.05)
        return Event.objects.filter(name="no such").count()

    return len(await asyncio.gather(*(sync_to_async(ask, thread_sensitive=False)() for _ in range(number))))
