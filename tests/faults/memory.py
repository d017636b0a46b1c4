"""The memory of the mains over their lives: how much it grows with the works that they have run."""

import statistics
import threading
import time
from bisect import bisect
from collections import defaultdict

from .fleet import Fleet
from .history import History

#: Seconds between two samples, and of a main's life that do not count: it loads, and its threads come to be.
EVERY, WARM_UP = 2.0, 60.0
#: A main that lived for less after that, or ran less, says nothing.
LIFE_MIN, WORKS_MIN = 90.0, 500


class Memory:
    """A thread that samples the resident memory of all living mains. A context manager."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        #: main's process -> (when, bytes)
        self.samples: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drill-memory", daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._end.wait(EVERY):
            now = time.monotonic()
            for main in list(self.fleet.mains):
                if main.is_alive and now - main.began > WARM_UP and (size := main.rss()):
                    self.samples[main.pid].append((now, size))

    def figures(self, history: History) -> dict[str, object]:
        """Return the slope of the mains that lived for long: kB for each thousand works that they ran themselves."""
        slopes, most = [], max((size for samples in self.samples.values() for _, size in samples), default=0)
        ended: defaultdict[int, list[float]] = defaultdict(list)
        mains = {main.pid for main in self.fleet.mains}
        for run in history.runs:
            if run.ended is not None:
                ended[run.pid if run.pid in mains else run.parent].append(run.ended)
        for pid, samples in self.samples.items():
            times = sorted(ended[pid])
            works = [float(bisect(times, at)) for at, _ in samples]
            if len(samples) > 2 and samples[-1][0] - samples[0][0] >= LIFE_MIN and works[-1] - works[0] >= WORKS_MIN:
                slopes.append(statistics.linear_regression(works, [size / 1024 for _, size in samples]).slope * 1000)
        shown = "/".join(f"{slope:.0f}" for slope in sorted(slopes)) or "too short"
        return {"rss_kb_per_1000_works": shown, "rss_most_mb": round(most / 1024 / 1024)}
