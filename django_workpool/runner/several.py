"""One process for all databases that hold its pools: a ``Process`` for each, with one end and one exit code."""

import logging
import threading
from collections.abc import Callable, Sequence

from django.db import connections

from .probe import Part
from .process import Process

logger = logging.getLogger("django_workpool.runner")

#: Seconds for which the main thread waits without looking up: it takes the signals.
LOOK_EVERY = 0.05


class Several:
    """Runs processes, each on a thread of its own; a single one on this thread.

    Nothing is shared among them but the registry of functions, and asgiref's thread for the synchronous parts of coroutines: each
    database has its leader, its watch, its writer and its executors. If one of them ends for another reason than a signal, all end.

    Args:
        processes: One for each database.
        prepare: Called on the thread of each before it is run; False if a signal came first.
    """

    def __init__(self, processes: Sequence[Process], prepare: Callable[[Process], bool]) -> None:
        self.processes, self.prepare = processes, prepare
        #: What has ended a process otherwise than in order.
        self._errors: list[BaseException] = []
        self._codes: list[int] = []

    def signal(self) -> None:
        """Take a signal: the first ends all of them when their functions have ended, the second does not wait for these."""
        for process in self.processes:
            process.signal()

    def run(self) -> int:
        """Run until a signal, or until drained; return the exit code: the worst of all.

        Raises:
            CommandError: of what ``prepare`` raises, and whatever else has ended one of them, the first one.
        """
        if len(self.processes) == 1:
            return self._run(self.processes[0])
        threads = [
            threading.Thread(target=self._run_beside, args=(process,), name=f"workpool-main@{process.using}", daemon=True)
            for process in self.processes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(LOOK_EVERY)
        connections.close_all()
        if self._errors:
            raise self._errors[0]
        return max(self._codes)

    @property
    def idle(self) -> bool:
        """Whether nothing runs any more, and everything that has ended is written."""
        return all(process.idle for process in self.processes)

    def _run(self, process: Process) -> int:
        return process.run() if self.prepare(process) else 0

    def _run_beside(self, process: Process) -> None:
        code = 1
        try:
            code = self._run(process)
        except BaseException as error:
            logger.error("what serves the database %r has ended: %r", process.using, error)
            self._errors.append(error)
        finally:
            if isinstance(process.options.probe, Part) and not code:
                process.options.probe.leave()
            self._codes.append(code)
            if code:
                self._end_others()

    def _end_others(self) -> None:
        for process in self.processes:
            if not process.signals:
                process.signal()
