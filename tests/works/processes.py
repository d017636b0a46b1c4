"""What tests run in child processes, and elsewhere: functions that tell where they run, and that end, fork or hold their process."""

import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django_workpool import RetryBehavior, action, mutation, query

from .models import Event

#: What runs longer was forgotten.
PATIENCE = 60


@action
def where(text: str = "") -> dict[str, Any]:
    """Return which process runs this, and the text."""
    return {"pid": os.getpid(), "parent": os.getppid(), "text": text}


@mutation
def where_mutation() -> int:
    """Return which process runs this."""
    return os.getpid()


@query
def where_query() -> int:
    """Return which process runs this."""
    return os.getpid()


@action
async def where_async() -> int:
    """Return which process runs this."""
    return os.getpid()


@action
def say(text: str) -> None:
    """Print."""
    print(text)


@action
def meet(folder: str, key: str, parties: int) -> int:
    """Wait until all are there at the same time; return which process runs this."""
    Path(folder, f"met-{key}").touch()
    deadline = time.monotonic() + PATIENCE
    while len(list(Path(folder).glob("met-*"))) < parties:
        if time.monotonic() > deadline:
            raise TimeoutError("alone")
        time.sleep(0.01)
    return os.getpid()


def end_process(how: str) -> None:
    """End this process at once."""
    if how == "exit":
        os._exit(0)
    if how == "abort":
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@action
def end_by(how: str) -> None:
    """End the process that runs this."""
    end_process(how)


@action(retry=RetryBehavior(max_attempts=3))
def end_always(path: str) -> None:
    """Count in a file, and end the process that runs this."""
    write_line(path)
    end_process("kill")


@mutation
def end_once(path: str) -> int:
    """Insert a row; the first time, end the process before the commit. Returns the number of rows that it sees."""
    Event.objects.create(name="end once", at=time.time())
    first = not Path(path).exists()
    write_line(path)
    if first:
        end_process("kill")
    return Event.objects.filter(name="end once").count()


@action
def write_line(path: str) -> None:
    """Add the id of this process to a file."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")


@action
def burn(path: str) -> None:
    """Tell the id of the process, then compute without an end."""
    write_line(path)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        pass


@action(retry=True)
def swallow(path: str) -> None:
    """Tell the id of the process, then go on whatever is raised."""
    write_line(path)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            time.sleep(0.05)
        except BaseException:
            continue


@action
def hold_the_interpreter(path: str) -> None:
    """Tell the ids of this process and of a forked one that sleeps, then let no other thread of this process run."""
    if os.fork() == 0:
        write_line(path)
        time.sleep(PATIENCE)
        os._exit(0)
    write_line(path)
    ctypes.PyDLL(None).sleep(PATIENCE)


@action
def fork(returns: bool) -> list[int]:
    """Fork; return the exit code of the copy and the number of rows seen afterwards. The copy ends, or returns too."""
    Event.objects.count()
    pid = os.fork()
    if pid == 0:
        if returns:
            return [-1]
        os._exit(7)
    _, status = os.waitpid(pid, 0)
    return [os.waitstatus_to_exitcode(status), Event.objects.count()]


def count_rows(number: int) -> list[int]:
    """Return the process and the number of rows, in a process of a pool of multiprocessing."""
    return [os.getpid(), Event.objects.filter(name="no such").count() + number]


@action
def use_multiprocessing() -> dict[str, Any]:
    """Let a pool of processes use the database, which this process uses as well."""
    before = Event.objects.count()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        rows = pool.map(count_rows, range(4), chunksize=1)
    return {"pid": os.getpid(), "pids": [pid for pid, _ in rows], "sum": sum(n for _, n in rows), "same": before == Event.objects.count()}


@action
def descriptors() -> list[str]:
    """Return what a program that inherits what is to be inherited has open, its standard streams left out."""
    told = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2])"
    done = subprocess.run([sys.executable, "-c", told], close_fds=False, stdout=subprocess.PIPE, text=True, check=False)
    return [name for name in re.findall(r"'([^']*)'", done.stdout) if not name.startswith("/proc/")]
