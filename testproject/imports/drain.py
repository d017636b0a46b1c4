"""``workpool_main --drain`` as a process beside this one, watched."""

import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

#: Seconds between two looks.
POLL = 0.1
#: Without a new row for so long, something is wrong: reading 60 GB of one file at 100 MB/s takes as long.
STALL_SECONDS = 600
#: With all rows there, and after SIGTERM, it must end soon.
END_SECONDS = 60
TAIL_LINES = 20


class MainProcessFailed(Exception):
    """It ended with an error, or did not end; the text says how, and where its output is."""


class Drain:
    """A started ``workpool_main --drain``; a context manager that leaves no process behind.

    Its output goes to a file, which is kept if it failed.
    """

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="workpool_main-", suffix=".log")
        self.log = Path(name)
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "workpool_main", "--drain"]
        with open(handle, "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> "Drain":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        self.stop()
        if exc_type is not MainProcessFailed:
            self.log.unlink(missing_ok=True)

    def stop(self) -> None:
        """End it, in order if it can be done."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def watch(self, count: Callable[[], int], total: int, show: Callable[[int], None]) -> float:
        """Show what ``count`` returns, until the process has ended.

        Returns:
            When the last row was seen, by the monotonic clock.

        Raises:
            MainProcessFailed: it ended with an error, or hangs: with all ``total`` there, or without a new one for long.
        """
        done, changed = -1, time.monotonic()
        while True:
            code = self.process.poll()
            # Counted after the look at the process: what it wrote before it ended is seen.
            now_done = count()
            if now_done != done:
                done, changed = now_done, time.monotonic()
                show(done)
            if code == 0:
                return changed
            if code is not None:
                raise MainProcessFailed(f"workpool_main ended with exit code {code}.{self._tail()}")
            if time.monotonic() - changed > (END_SECONDS if done >= total else STALL_SECONDS):
                raise MainProcessFailed(f"workpool_main has done nothing for {time.monotonic() - changed:.0f} s.{self._tail()}")
            time.sleep(POLL)

    def _tail(self) -> str:
        with open(self.log, errors="replace") as log:
            last = "".join(f"\n    {line.rstrip()}" for line in deque(log, TAIL_LINES))
        return f" Its output is in {self.log}" + (f", at last:{last}" if last else " (nothing).")
