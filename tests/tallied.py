"""What the rows of finished works and of their attempts say that the tallies must have counted."""

from collections import Counter

from django_workpool import tallies
from django_workpool.models import Archive, Attempt, PendingCompletion, RunningWork, Work
from django_workpool.types import FnType, Follow, Lane, ResultKind

ENDS = {ResultKind.SUCCESS: "succeeded", ResultKind.FAILED: "failed", ResultKind.CANCELED: "canceled"}
KINDS = (*ENDS.values(), "failed_attempts")

Figures = dict[tuple[str, Lane], dict[str, int]]


def counted(using: str = "default", names: tuple[str, ...] = KINDS) -> Figures:
    """Return what the tallies sum up to, pools and lanes without anything left out."""
    found = {of: {name: number for name in names if (number := getattr(one, name))} for of, one in tallies.totals_by_lane(using).items()}
    return {of: numbers for of, numbers in found.items() if numbers}


def kept(using: str = "default") -> Figures:
    """Return what the rows say where nothing was pruned, without what the loop has yet to take: ends by kind, and failed attempts."""
    found: Counter[tuple[str, Lane, str]] = Counter()
    of: dict[object, tuple[str, Lane]] = {}
    for model in (Work, Archive):
        for work_id, pool, fn_type in model._default_manager.using(using).values_list("id", "pool", "fn_type"):
            of[work_id] = pool, Lane.CALLBACK if fn_type == FnType.CALLBACK else Lane.WORK
    for work_id, kind in Archive.objects.using(using).values_list("id", "kind"):
        found[(*of[work_id], ENDS[ResultKind(kind)])] += 1
    for work_id in Attempt.objects.using(using).values_list("work_id", flat=True):
        found[(*of[work_id], "failed_attempts")] += 1
    lanes = {work_id: Lane(lane) for work_id, lane in RunningWork.objects.using(using).values_list("work_id", "lane")}
    for work_id, pool, kind, follow in PendingCompletion.objects.using(using).values_list("work_id", "pool", "kind", "follow"):
        assert of[work_id] == (pool, lanes[work_id])
        if follow == Follow.END:
            found[pool, lanes[work_id], ENDS[ResultKind(kind)]] -= 1
        if follow != Follow.RETURN and kind != ResultKind.SUCCESS:
            found[pool, lanes[work_id], "failed_attempts"] -= 1
    figures: Figures = {}
    for (pool, lane, name), number in found.items():
        if number:
            figures.setdefault((pool, lane), {})[name] = number
    return figures
