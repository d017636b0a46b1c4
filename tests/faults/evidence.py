"""Collect the history of a drill after its last fault: wait until all is quiet, then read rows, journals and logs."""

import json
from collections import defaultdict

from . import history
from .drill import QUIET_SECONDS, Drill, Failed
from .fleet import Disturbance
from .history import Accepted, End, Failure, History
from .journal import Run, read


def conclude(drill: Drill, seconds: float = QUIET_SECONDS, *, judge_leads: bool = True) -> History:
    """Wait until nothing is left to do, check everything, and put problems and counts into the verdict.

    Args:
        drill: The drill.
        seconds: How long to wait.
        judge_leads: False where the times of the logs cannot be compared.
    """
    from ..live import left_over

    drill.fleet.end_loads()
    drill.figures["quiet_after_s"] = "never"
    try:
        took = drill.wait(lambda: drill.ask(left_over) == {}, seconds, "the hot tables are empty")
        drill.figures["quiet_after_s"] = f"{took:.1f}"
    except Failed as failure:
        drill.problems.append(str(failure))
    found = collect(drill)
    drill.problems += history.check(found, set() if judge_leads else {history.leads})
    drill.figures.update(history.figures(found))
    return found


def collect(drill: Drill) -> History:
    """Read everything that is known now."""
    from ..live import left_over
    from ..works.models import Event

    noted = defaultdict(list)
    rows = Event.objects.filter(name__in=["asked", "called", "effect"]).order_by("id").values_list("name", "key", "text", "at")
    for name, key, text, at in rows:
        noted[name].append((key, text, at))
    lines = map(json.loads, drill.accepted_path.read_text().splitlines())
    stops = defaultdict(list)
    numbers = {main.pid: main.number for main in drill.fleet.mains}
    for one in drill.fleet.disturbances:
        if one.what == "stopped" and one.pid in numbers:
            stops[numbers[one.pid]].append(one.until + drill.offset)
    runs = read(drill.folder)
    return History(
        accepted=[Accepted(line["key"], line["id"], line["callback"]) for line in lines],
        committed={key: at for key, _, at in noted["asked"]},
        ends=_ends(),
        calls=[(key, text.partition(":")[0]) for key, text, _ in noted["called"]],
        effects=[key for key, _, _ in noted["effect"]],
        runs=runs,
        disturbances=[*drill.fleet.disturbances, *_killed_themselves(runs)],
        database_faults=bool(getattr(drill.database, "faults", None)) or any(d.what == "cut off" for d in drill.fleet.disturbances),
        canceled=drill.canceled,
        canceled_all=drill.canceled_all,
        samples=drill.sampler.samples,
        limits=drill.limits,
        events=drill.fleet.events(),
        woken=stops,
        left=left_over(),
    )


def _killed_themselves(runs: list[Run]) -> list[Disturbance]:
    """Return what functions did to their own processes; the pool keeps a child's lost attempt under its main's name."""
    return [Disturbance("killed itself", run.pid, run.ended or run.begun, main=run.parent) for run in runs if run.how == "dying"]


def _ends() -> list[End]:
    from django_workpool.models import Archive, Attempt

    failures = defaultdict(list)
    for work_id, number, class_path, worker in Attempt.objects.order_by("number").values_list("work_id", "number", "class_path", "worker"):
        pid = worker.rpartition(":")[2]
        failures[work_id].append(Failure(number, class_path, int(pid) if pid.isdigit() else 0))
    rows = Archive.objects.filter(callback_of=None).values_list("id", "arguments", "kind", "attempts", "on_complete")
    return [
        End(str(work_id), json.loads(arguments)["args"][0], kind, number, on_complete != "", tuple(failures[work_id]))
        for work_id, arguments, kind, number, on_complete in rows.iterator()
    ]
