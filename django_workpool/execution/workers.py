"""This process's row among the workers: what it can run, that it lives, and which runs are assigned to it."""

import hashlib
import os
import socket
import uuid
from collections.abc import Iterable
from contextlib import nullcontext

from django.db import transaction

from .. import functions, serialization
from ..database import database
from ..models import FunctionSet, RunningWork, Work, Worker
from ..types import FnType, Run

#: Running rows fetched by one statement: more are fetched at the next look.
FETCH_MAX = 2_000


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
        return Worker.objects.using(using).bulk_create([row])[0]


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


def is_published(using: str, worker_id: int) -> bool:
    """Return whether the list of functions that the worker's row names is there: another worker's end may have taken it along."""
    named = Worker.objects.using(using).filter(id=worker_id).values("function_set")
    return FunctionSet.objects.using(using).filter(digest__in=named).exists()


def beat(using: str, worker_id: int, *, lockless: bool = False, accepting: bool = True) -> bool:
    """Renew the beat; return False if the row is gone: the fleet has given this worker up.

    Args:
        using: The database.
        worker_id: The worker.
        lockless: Whether it can hold no lock: then others wait longer before they take it for dead.
        accepting: Whether it takes works.
    """
    db = database(using)
    # In a transaction behind a pooler: only there the session's time-outs are set.
    with db.write() if db.is_pooled else nullcontext():
        row = Worker.objects.using(using).filter(id=worker_id)
        return bool(row.update(beat=db.moment(db.clock_ms()), lockless=lockless, accepting=accepting))


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
        db.execute("DELETE FROM {FunctionSet} WHERE digest NOT IN (SELECT function_set FROM {Worker})")
    db.forget_worker(worker_id)


def assigned(using: str, worker_id: int, after: int = 0) -> list[Run]:
    """Return the runs assigned to a worker whose tokens are greater than ``after``, oldest first; completing ones are left out."""
    db = database(using)
    rows = db.fetch(
        "SELECT r.id, w.id, w.pool, w.fn_type, w.func_path, w.name, w.arguments, w.attempts, w.on_complete, w.retry "
        "FROM {RunningWork} r JOIN {Work} w ON w.id = r.work_id LEFT JOIN {PendingCompletion} c ON c.work_id = r.work_id "
        f"WHERE r.worker_id = %s AND r.id > %s AND c.id IS NULL ORDER BY r.id LIMIT {FETCH_MAX}",
        [worker_id, after],
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
        )
        for row in rows
        if row[0] in started
    ]


def unknown_paths(using: str) -> list[str]:
    """Return the functions of works that are held because no live worker knows them."""
    held = Work.objects.using(using).filter(held_since__isnull=False).values_list("func_path", flat=True).distinct()
    return list(held[:100])


def learn(paths: Iterable[str]) -> None:
    """Try to import functions that others could not place."""
    for path in paths:
        if path not in functions.known():
            try:
                functions.resolve(path, functions.WORK_KINDS | functions.CALLBACK_KINDS)
            except Exception:  # noqa: S112 - whatever an import does: the work stays held, and fails with its reason
                continue
