"""This process's row among the workers: what it can run, that it lives, and which runs are assigned to it."""

import hashlib
import os
import socket
import uuid
from collections.abc import Iterable, Sequence

from django.db import transaction

from .. import functions, serialization
from ..database import Part, database
from ..database.rows import PROBE
from ..models import FunctionSet, RunningWork, Worker
from ..types import FnType, Run

#: Running rows fetched by one statement: more are fetched at the next look. Of a pulse, which reads their tokens only, more.
FETCH_MAX, TOKENS_MAX = 2_000, 10_000
#: Unknown functions that are looked for at once.
UNKNOWN_MAX = 100


def host_name() -> str:
    """Return this host's name, as short as its column."""
    return socket.gethostname()[:255]


def register(
    using: str, *, process: uuid.UUID, threads: int, coroutines: int, pools: Iterable[str] | None, accepting: bool = True
) -> Worker:
    """Insert this process's row, unless it is there.

    Args:
        using: The database.
        process: A random id of the process, never reused.
        threads: Functions it runs at once on threads.
        coroutines: ``async def`` functions it runs at once.
        pools: The pools it takes works of; None for all.
        accepting: Whether it takes works at all.
    """
    db = database(using)
    mine = Worker.objects.using(using).filter(process=process, left=False).first()
    if mine is not None:
        # The connection was lost when it had just been inserted.
        return mine
    now = db.moment(db.clock_ms())
    with transaction.atomic(using=using):
        row = Worker(
            process=process,
            host=host_name(),
            pid=os.getpid(),
            capacity=threads,
            async_capacity=coroutines,
            pools=serialization.encode(None if pools is None else sorted(pools), "pools"),
            function_set=_keep_functions(using),
            accepting=accepting,
            started=now,
            beat=now,
        )
        # Not create(): the project's receivers of signals have no business in here.
        Worker.objects.using(using).bulk_create([row])
        # MySQL does not tell the id of a row that was inserted so.
        return row if row.pk is not None else Worker.objects.using(using).get(process=process)


def _keep_functions(using: str) -> str:
    """Insert the list of the known functions unless it is there; return its digest."""
    text = serialization.encode(dict(sorted(functions.known().items())), "functions")
    digest = hashlib.sha256(text.encode()).hexdigest()
    FunctionSet.objects.using(using).bulk_create([FunctionSet(digest=digest, functions=text)], ignore_conflicts=True)
    return digest


def publish_functions(using: str, worker_id: int) -> None:
    """Tell which functions this process knows by now."""
    with transaction.atomic(using=using):
        Worker.objects.using(using).filter(id=worker_id).update(function_set=_keep_functions(using))


def beating(using: str, worker_id: int, *, lockless: bool = False, accepting: bool = True) -> Part:
    """Return what renews the beat: its answer is empty if the row is gone, as the fleet has given this worker up.

    Args:
        using: The database.
        worker_id: The worker.
        lockless: Whether it can hold no lock: then others wait longer before they take it for dead.
        accepting: Whether it takes works.
    """
    now, params = database(using).moment_sql()
    statement = f"UPDATE {{Worker}} SET beat = {now}, lockless = %s, accepting = %s WHERE id = %s RETURNING id"
    return Part("beat", statement, [*params, lockless, accepting, worker_id], changes=True)


def questions(worker_id: int) -> list[Part]:
    """Return what a worker asks again and again.

    ``published``: is the list of functions that its row names there (another worker's end may have taken it along)?
    ``assigned``: the tokens of its runs; of those that it has it needs no more, and arguments may be large.
    ``unknown``: which functions does no live worker know, of works that are held? ``canceled``: which of its runs may stop?
    """
    published = "SELECT s.digest FROM {FunctionSet} s JOIN {Worker} w ON w.function_set = s.digest WHERE w.id = %s"
    assigned = (
        "SELECT r.id FROM {RunningWork} r WHERE r.worker_id = %s "
        f"AND NOT EXISTS (SELECT 1 FROM {{PendingCompletion}} c WHERE c.work_id = r.work_id {PROBE}) LIMIT {TOKENS_MAX}"
    )
    unknown = f"SELECT DISTINCT func_path FROM {{Work}} WHERE held_since IS NOT NULL LIMIT {UNKNOWN_MAX}"
    return [
        Part("published", published, [worker_id]),
        Part("assigned", assigned, [worker_id]),
        Part("unknown", unknown),
        canceled(worker_id),
    ]


def canceled(worker_id: int) -> Part:
    """Return what asks for the runs of a worker whose works are canceled, among others that are none."""
    # From the few that are canceled; not joined, so that no planner begins with the runs.
    run = "SELECT r.id FROM {RunningWork} r WHERE r.work_id = w.id AND r.worker_id = %s"
    # Said twice, as Django's versions word the condition of the index differently.
    return Part("canceled", f"SELECT ({run}) AS run FROM {{Work}} w WHERE w.canceled AND w.canceled = {{TRUE}}", [worker_id])


def stop_accepting(using: str, worker_id: int) -> bool:
    """Take nothing more; return False if the row is gone."""
    return bool(Worker.objects.using(using).filter(id=worker_id).update(accepting=False))


def leave(using: str, worker_id: int) -> None:
    """Say that this worker has ended in order: the leader takes back what it never began, and deletes its row."""
    Worker.objects.using(using).filter(id=worker_id).update(accepting=False, left=True)


def unregister(using: str, worker_id: int) -> None:
    """Delete the row of a worker that is gone and on which nothing runs, and what it leaves."""
    db = database(using)
    with transaction.atomic(using=using):
        # A leader that was suspended may think so, and be wrong by now.
        idle = "NOT EXISTS (SELECT 1 FROM {RunningWork} r WHERE r.worker_id = {Worker}.id)"
        if not db.execute(f"DELETE FROM {{Worker}} WHERE id = %s AND {idle}", [worker_id]):
            return
        db.execute("DELETE FROM {FunctionSet} WHERE digest > '' AND digest NOT IN (SELECT function_set FROM {Worker})")
    db.forget_worker(worker_id)


def assigned(using: str, worker_id: int, after: int = 0, among: Sequence[int] | None = None) -> list[Run]:
    """Return the runs assigned to a worker, oldest first; completing ones are left out.

    Args:
        using: The database.
        worker_id: The worker.
        after: Only those whose tokens are greater.
        among: Only those with these tokens.
    """
    db = database(using)
    those, param = ("r.id > %s", after) if among is None else db.among("r.id", among)
    rows = db.fetch(
        "SELECT r.id, w.id, w.pool, w.fn_type, w.func_path, w.name, w.arguments, w.attempts, w.on_complete, w.retry, w.timeout_ms, "
        "w.trace, r.due "
        f"FROM {{RunningWork}} r JOIN {db.each('{Work}', 'w', 'w.id = r.work_id')} WHERE r.worker_id = %s AND {those} "
        f"AND NOT EXISTS (SELECT 1 FROM {{PendingCompletion}} c WHERE c.work_id = r.work_id {PROBE}) ORDER BY r.id LIMIT {FETCH_MAX}",
        [worker_id, param],
    )
    if not rows:
        return []
    started = dict(RunningWork.objects.using(using).filter(id__in=[row[0] for row in rows]).values_list("id", "started"))
    return [
        Run(
            token=row[0],
            work_id=db.read_uuid(row[1]),
            pool=row[2],
            fn_type=FnType(row[3]),
            func_path=row[4],
            name=row[5],
            arguments=row[6],
            attempts=row[7],
            has_callback=row[8] != "",
            retryable=row[9] != "",
            started=started[row[0]],
            timeout_ms=row[10],
            trace=row[11],
            lag_ms=max(0, round(started[row[0]].timestamp() * 1000 - row[12] * 100)),
        )
        for row in rows
        if row[0] in started
    ]


def learn(paths: Iterable[str]) -> None:
    """Try to import functions that others could not place."""
    for path in paths:
        if path not in functions.known():
            try:
                functions.resolve(path, functions.WORK_KINDS | functions.CALLBACK_KINDS)
            except Exception:  # noqa: S112 - whatever an import does: the work stays held, and fails with its reason
                continue
