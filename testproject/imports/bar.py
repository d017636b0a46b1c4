"""A progress bar for a terminal, or a line now and then where there is none."""

import shutil
import time
from typing import TextIO

#: Seconds between two lines where there is no terminal.
LINE_SECONDS = 5


class Bar:
    """Shows how far something is; a context manager that ends the line."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self.stream = stream
        self.total = total
        self.started = self.last_line = time.monotonic()
        self.live = stream.isatty()

    def show(self, done: int) -> None:
        """Show that ``done`` of the total are done."""
        now = time.monotonic()
        figures = f"{done}/{self.total} {done / max(now - self.started, 0.001):.0f}/s"
        if self.live:
            width = max(shutil.get_terminal_size().columns - len(figures) - 4, 10)
            full = width * done // max(self.total, 1)
            self.stream.write(f"\r[{'#' * full}{'.' * (width - full)}] {figures}")
            self.stream.flush()
        elif now - self.last_line >= LINE_SECONDS:
            self.last_line = now
            self.stream.write(f"{figures}\n")
            self.stream.flush()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.live:
            self.stream.write("\n")
            self.stream.flush()
