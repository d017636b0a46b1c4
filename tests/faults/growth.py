"""A drill of a long life: what a main keeps of the works that it has run."""

import argparse
import time

from .drill import Drill, drill
from .fleet import Main

#: Bytes that a main may keep of each work, after it has warmed up.
KEPT = 1024


def _works(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--works", type=int, default=20_000, help="No-op works after the warm-up (default: %(default)s).")
    parser.add_argument("--fat", type=int, default=2_000, help="Failing works whose frames hold 10 MB each (default: %(default)s).")


@drill(
    "memory after thousands of works, with DEBUG on, on_complete and failures whose frames hold 10 MB: it is flat",
    seconds=240,
    options=_works,
)
def growth(drill: Drill) -> None:
    """Run thousands of works in one main, and compare its memory before and after each kind of them."""
    drill.set_limit(20)
    main = drill.fleet.start("--threads", "8", env={"DEBUG": "1", "WORKPOOL_LOG_LEVEL": "ERROR"})
    drill.leader()
    _run(drill, "small", 3_000, callback=True)
    _run(drill, "fat", 100, callback=False)
    for name, function, number, callback in (
        ("plain", "small", drill.options.works, False),
        ("callback", "small", drill.options.works // 4, True),
        ("failing", "fat", drill.options.fat, False),
    ):
        before = _rss(main)
        _run(drill, function, number, callback=callback)
        kept = (_rss(main) - before) / number
        drill.expect(kept < KEPT, f"{name}: {kept:.0f} bytes are kept of each work")
        drill.figures[f"{name}_bytes_a_work"] = round(kept)
    drill.figures["rss_mb"] = round(_rss(main) / 2**20)


def _rss(main: Main) -> int:
    """Return what is left when it has been quiet for a moment: the least of some looks."""
    looks = []
    for _ in range(10):
        looks.append(main.rss())
        time.sleep(0.2)
    return min(looks)


def _run(drill: Drill, function: str, number: int, *, callback: bool) -> None:
    from django_workpool import Workpool, call
    from django_workpool.models import Archive, Work

    from .works import called

    pool = Workpool().using(on_complete=called) if callback else Workpool()
    before = Archive.objects.count()
    for first in range(0, number, 5_000):
        pool.enqueue_many(f"tests.faults.works.{function}", [call()] * min(5_000, number - first))
    drill.wait(lambda: not Work.objects.exists(), 600, f"{number} works have ended")
    drill.expect(Archive.objects.count() == before + number, "not all are in the archive")
