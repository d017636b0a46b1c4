"""How far a long command has come, for people at a terminal: a bar of tqdm's where that is installed, else a line now and then."""

import time
from importlib import import_module
from types import TracebackType
from typing import Any, Self

#: Seconds between two lines.
EVERY = 2.0


class Progress:
    """Counts things that are done, on a stream; nothing is shown where it is no terminal.

    Args:
        stream: Where it is shown.
        label: What is done.
        total: Of how many things; None where nobody has counted them.
    """

    def __init__(self, stream: Any, label: str, total: int | None = None) -> None:
        # Django's own stream ends each write with a new line.
        self._stream, self._label, self._total = getattr(stream, "_out", stream), label, total
        self._done, self._told = 0, time.monotonic()
        self._shows = bool(getattr(self._stream, "isatty", lambda: False)())
        self._bar: Any = None
        if self._shows:
            try:
                self._bar = import_module("tqdm").tqdm(total=total, desc=label, file=self._stream, unit="")
            except ImportError:
                # The extra [progress] is not installed: lines do as well.
                self._bar = None

    def add(self, number: int) -> None:
        """Count so many more."""
        self._done += number
        if self._bar is not None:
            self._bar.update(number)
        elif self._shows and time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            self._stream.write(f"{self._label}: {self._done}" + (f" of {self._total}" if self._total else "") + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
