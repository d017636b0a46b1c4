"""Step 1 of a work's way: insert it, ask for its cancelation, look where it is.

Everything happens in the caller's transaction, in a fixed number of statements: rows are inserted, nothing is locked,
nothing is notified. The kick comes after the commit.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from django.db import transaction

from . import conf, eventlog, functions, keys, serialization, tracing
from .database import Database, NewWork, database
from .database.rows import STANDS
from .exceptions import InvalidWork, WorkExists
from .functions import Registered
from .ids import new_work_id, parse_work_id, parse_work_ids
from .kick import Source, kick_after_commit
from .models import Archive
from .options import CheckedOptions
from .progress_values import Progress
from .signals import is_heard, work_enqueued
from .types import Call, Follow, Lane, ResultKind, RunResult, Status, WorkState

#: Works inserted by one statement: arrays of this size are quick, and a statement stays small.
CHUNK = 1000
#: Works looked at by one statement of ``status_many``.
STATUS_CHUNK = 1000


def enqueue_calls(pool: str, options: CheckedOptions, function: object, calls: Iterable[Call[Any]]) -> list[uuid.UUID]:
    """Insert one work for each call, all or none.

    Returns:
        The ids, in the order of the calls; where a unique key is kept, that of the work that has it.

    Raises:
        UnknownPool: the settings do not name the pool.
        UnregisteredFunction: the function is not a registered action, mutation or query.
        InvalidWork: an argument or option cannot be taken, or the options are those of a batch whose block is over.
        WorkExists: the unique key is taken. Nothing has been written in any of these cases.
    """
    settings = conf.pool(pool)
    registered = functions.registered(function, functions.WORK_KINDS)
    new = NewWork(
        pool=pool,
        lane=Lane.WORK,
        fn_type=registered.fn_type.value,
        func_path=registered.path,
        name=options.name or registered.path,
        priority=options.priority,
        on_complete=options.on_complete,
        on_complete_context=options.on_complete_context,
        retry=options.retry_text(registered, settings),
        timeout_ms=options.timeout_ms(registered, settings),
        batch_id=None if options.batch is None else options.batch.check(),
    )
    arguments = _encode(calls, registered)
    ids = [new_work_id() for _ in arguments]
    if options.unique:
        return _insert_unique(conf.database_alias(pool), new, ids, arguments, options)
    if ids:
        _insert_and_tell(conf.database_alias(pool), new, ids, arguments, options)
    return ids


def _insert_and_tell(using: str, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], options: CheckedOptions) -> None:
    # Read once: another thread may stop the tracing.
    if (tracer := tracing.tracer) is None:
        _insert_told(using, new, ids, arguments, options)
        return
    with tracer.sending(new.pool, new.func_path, ids) as trace:
        _insert_told(using, replace(new, trace=trace), ids, arguments, options)


def _insert_told(using: str, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], options: CheckedOptions) -> None:
    if not is_heard(work_enqueued):
        _insert(using, new, ids, arguments, options)
        return
    # What a receiver raises takes the works back, and nothing else of the caller's transaction.
    with transaction.atomic(using=using):
        _insert(using, new, ids, arguments, options)
        told = {"pool": new.pool, "work_ids": tuple(ids), "name": new.name, "function": new.func_path, "kind": new.fn_type, "using": using}
        work_enqueued.send(None, **told)


def _encode(calls: Iterable[Call[Any]], function: Registered) -> list[str]:
    texts = []
    for index, one in enumerate(calls):
        if not isinstance(one, Call):
            raise InvalidWork(f"item {index} is not a call(...): {type(one).__name__}.")
        if one.func is not None and one.func is not function.func:
            raise InvalidWork(f"item {index} is a call of {one.func.__qualname__}, not of {function.path}.")
        try:
            texts.append(serialization.encode_call(one.args, one.kwargs))
        except InvalidWork as error:
            if index:
                error.args = (f"item {index}: {error}",)
            raise
    return texts


def _insert(using: str, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], options: CheckedOptions) -> None:
    db = database(using)
    starts = range(0, len(ids), CHUNK)
    with db.all_or_nothing(len(starts)):
        segment = min(db.insert_work(new, ids[i : i + CHUNK], arguments[i : i + CHUNK], options.due()) for i in starts)
        kick_after_commit(using, new.pool, Source.ENQUEUE, segment)
        eventlog.enqueued(using, new, ids)


def _insert_unique(
    using: str, new: NewWork, ids: Sequence[uuid.UUID], arguments: Sequence[str], options: CheckedOptions
) -> list[uuid.UUID]:
    if len(ids) != 1:
        raise InvalidWork(f"unique is for one work, not for {len(ids)}: enqueue each with a key of its own.")
    # A savepoint in the caller's transaction: the key, the cancelation and the work, or nothing of it, even if an error is caught.
    with transaction.atomic(using=using):
        holder = keys.claim(database(using), new.pool, options.unique, ids[0])
        if holder is not None:
            if options.if_taken == "keep":
                return [holder]
            if options.if_taken == "raise":
                raise WorkExists(options.unique, holder)
            cancel(new.pool, holder)
            keys.give(database(using), new.pool, options.unique, ids[0])
        _insert_and_tell(using, new, ids, arguments, options)
    return list(ids)


def cancel(pool: str, work_id: object) -> bool:
    """Ask that a work is not started, retried or returned any more.

    Returns:
        False if there is nothing to cancel: the work is gone, unknown, of another pool, or already being canceled.
    """
    conf.pool(pool)
    parsed = parse_work_id(work_id)
    return parsed is not None and bool(cancel_many(pool, [parsed]))


def cancel_many(pool: str, work_ids: Iterable[object]) -> int:
    """Ask the same for many works, a thousand a statement, all or none; return for how many of them there was something to cancel.

    Raises:
        InvalidWork: something is not the id of a work. Nothing has been written.
    """
    conf.pool(pool)
    ids, using, asked = parse_work_ids(work_ids), conf.database_alias(pool), 0
    db = database(using)
    with transaction.atomic(using=using, savepoint=len(ids) > CHUNK):
        segment = f"floor(({db.clock_ms_sql}) / 100)" if db.leases else str(db.segment())
        for start in range(0, len(ids), CHUNK):
            among, param = db.among("w.id", ids[start : start + CHUNK])
            asked += db.execute(
                f"INSERT INTO {{PendingCancelation}} (pool, segment, work_id) SELECT w.pool, {segment}, w.id FROM {{Work}} w "
                f"WHERE {among} AND w.pool = %s AND {STANDS}",
                [param, pool],
            )
        if asked:
            kick_after_commit(using, pool, Source.CANCEL)
    return asked


def cancel_all(pool: str) -> None:
    """Ask for the cancelation of all works of the pool created up to now that are visible when the loop works it off."""
    conf.pool(pool)
    using = conf.database_alias(pool)
    db = database(using)
    now = db.clock_ms()
    with transaction.atomic(using=using, savepoint=False):
        db.execute(
            "INSERT INTO {PendingCancelation} (pool, segment, created_up_to) VALUES (%s, %s, %s)",
            [pool, int(now // 100), db.moment_param(now)],
        )
        kick_after_commit(using, pool, Source.CANCEL)


def status_many(pool: str, work_ids: Iterable[object]) -> dict[uuid.UUID, Status]:
    """Return where each of the works is.

    A work that is gone, or was never there, is *finished*; its result is given as long as the pool keeps it.

    Raises:
        InvalidWork: something is not the id of a work.
    """
    conf.pool(pool)
    ids = parse_work_ids(work_ids)
    found: dict[uuid.UUID, Status] = {}
    for start in range(0, len(ids), STATUS_CHUNK):
        found |= _status_chunk(pool, ids[start : start + STATUS_CHUNK])
    return {work_id: found[work_id] for work_id in ids}


def _status_chunk(pool: str, ids: list[uuid.UUID]) -> dict[uuid.UUID, Status]:
    using = conf.database_alias(pool)
    db = database(using)
    among, param = db.among("w.id", ids)
    rows = db.fetch(
        "SELECT w.id, w.attempts, s.id, c.follow, p.done, p.total, p.said FROM {Work} w LEFT JOIN {PendingStart} s ON s.work_id = w.id "
        "LEFT JOIN {PendingCompletion} c ON c.work_id = w.id LEFT JOIN {RunningWork} r ON r.work_id = w.id "
        f"LEFT JOIN {{Progress}} p ON p.work_id = w.id AND p.token = r.id WHERE w.pool = %s AND {among}",
        [pool, param],
    )
    found = {}
    for work_id, attempts, start, follow, *said in rows:
        waits = start is not None or follow in (Follow.RETRY, Follow.RETURN)
        state = WorkState.PENDING if waits else WorkState.RUNNING
        found[db.read_uuid(work_id)] = Status(state=state, previous_attempts=attempts, progress=None if waits else _progress(db, *said))
    gone = [work_id for work_id in ids if work_id not in found]
    kept = Archive.objects.using(using).filter(pool=pool, id__in=gone) if gone else Archive.objects.none()
    results: dict[uuid.UUID, RunResult] = {
        work_id: stored_result(kind, value, error) for work_id, kind, value, error in kept.values_list("id", "kind", "value", "error")
    }
    return found | {work_id: Status(state=WorkState.FINISHED, result=results.get(work_id)) for work_id in gone}


def _progress(db: Database, done: float | None, total: float | None, said: Any) -> Progress | None:
    if done is None or total is None:
        return None
    return Progress(done=done, total=total, said=db.read_moment(said, db.connection.timezone))


def stored_result(kind: str, value: str, error: str) -> RunResult:
    """Return a result from its stored form."""
    decoded: Any = serialization.decode(value) if kind == ResultKind.SUCCESS else None
    return RunResult(kind=ResultKind(kind), value=decoded, error=error)
