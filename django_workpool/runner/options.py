"""What the command line says to a ``workpool_main`` process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .probe import Part, Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    threads: int
    #: The pools whose works it runs; None for all.
    pools: tuple[str, ...] | None
    #: End when nothing is due, running or waiting for a retry.
    drain: bool
    #: Seconds that running functions get after the first signal.
    grace: float
    #: Child processes that run the functions instead of threads; 0 for none.
    processes: int = 0
    #: Works that wait here for a free thread or child, so that short functions need not wait for the loop.
    prefetch: int = 0
    #: Works after which a child is replaced; 0 for never.
    recycle: int = 0
    #: Makes the executor to which actions are handed over.
    executor: Callable[[], Any] | None = None
    #: Is told how the process is.
    probe: Probe | Part | None = None

    @property
    def capacity(self) -> int:
        """Works assigned to this process at once, coroutines and callbacks not counted."""
        return (self.processes or self.threads) + self.prefetch
