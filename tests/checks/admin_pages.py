"""Each page of the admin in a full database: a million finished works (results of 50 kB), 100,000 waiting; at most 15 queries and a second.

Results are 50 kB of JSON that compresses well (an inline value of some 600 bytes), but for the first ``--large`` of them: these do not
compress, and are stored out of line.
"""

import argparse
import time
import uuid
from collections.abc import Iterator
from typing import Any

from .base import Check, run

#: What a page may take. The first time it is opened does not count: it reads what is not in memory yet. And as the machine may do other
#: things, which makes some times longer and none shorter, a page that takes too long is opened again.
QUERIES_MAX, SECONDS_MAX, TRIES = 15, 1.0, 5
#: Of so many finished works one failed, was canceled, has a callback.
FAILED, CANCELED, CALLBACK = 97, 1009, 53


def options(parser: argparse.ArgumentParser) -> None:
    """Declare how many."""
    parser.add_argument("--finished", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=10_000, help="of these, with results that do not compress")
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--verbose", action="store_true", help="print each query that takes 100 ms")


def check(check: Check) -> None:
    """Fill the tables, open each page."""
    began = time.monotonic()
    _fill(check.options.finished, min(check.options.large, check.options.finished), check.options.waiting)
    check.figures.update(finished=check.options.finished, waiting=check.options.waiting, filled_s=f"{time.monotonic() - began:.0f}")
    client = _client()
    worst, most, pages = 0.0, 0, 0
    for name, address in _pages():
        client.get(address)
        for _ in range(TRIES):
            seconds, queries, status = _opened(client, address, check.options.verbose)
            if seconds <= SECONDS_MAX:
                break
        pages += 1
        worst, most = max(worst, seconds), max(most, queries)
        print(f"{seconds * 1000:7.0f} ms {queries:3d} queries  {name}", flush=True)
        check.expect(status == 200, f"{name}: {status}")
        check.expect(queries <= QUERIES_MAX, f"{name}: {queries} queries")
        check.expect(seconds <= SECONDS_MAX, f"{name}: {seconds:.2f} s")
    check.figures.update(pages=pages, slowest_ms=f"{worst * 1000:.0f}", most_queries=most)


def _client() -> Any:
    """Return a browser of somebody who has each permission, but is no superuser: these cost queries, too."""
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Permission
    from django.test import Client

    user = get_user_model()._default_manager.create_user("operator", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="workpool"))
    client = Client(SERVER_NAME="localhost")
    client.force_login(user)
    return client


def _opened(client: Any, address: str, verbose: bool) -> tuple[float, int, int]:
    """Open a page; return the seconds, the queries and the status."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        began = time.perf_counter()
        response = client.get(address)
        seconds = time.perf_counter() - began
    for query in queries.captured_queries if verbose else ():
        if float(query["time"]) >= 0.1:
            print(f"    {query['time']} s: {query['sql'][:1500]}", flush=True)
    return seconds, len(queries), response.status_code


def _pages() -> Iterator[tuple[str, str]]:
    """Yield each page: its name and its address."""
    from django.contrib import admin
    from django.urls import reverse

    from django_workpool.models import Archive, Work

    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label != "workpool":
            continue
        name = model._meta.model_name
        listed = reverse(f"admin:workpool_{name}_changelist")
        yield f"{name} list", listed
        for number, column in enumerate(model_admin.list_display):
            for sign in ("", "-"):
                yield f"{name} sorted by {sign}{column}", f"{listed}?o={sign}{number}"
        for query in QUERIES.get(str(name), ()):
            yield f"{name} {query}", f"{listed}?{query}"
        row = model._default_manager.order_by("pk").first()
        if row is not None:
            yield f"{name} details", reverse(f"admin:workpool_{name}_change", args=[row.pk])
    found = {"archive": Archive, "work": Work}
    for name, model in found.items():
        listed = reverse(f"admin:workpool_{name}_changelist")
        middle = model._default_manager.order_by("pk")[model._default_manager.count() // 2]
        yield f"{name} an id", f"{listed}?q={middle.pk}"
        yield f"{name} the beginning of an id", f"{listed}?q={str(middle.pk)[:13]}"
        yield f"{name} from the middle on", f"{listed}?past={middle.pk}"
        yield f"{name} details of the middle", reverse(f"admin:workpool_{name}_change", args=[middle.pk])
        yield f"{name} an id that is none", f"{listed}?q={uuid.uuid4()}"
    yield "dashboard", reverse("admin:workpool_dashboard")
    for window in ("hour", "day", "week"):
        yield f"dashboard data of a {window}", reverse("admin:workpool_dashboard_data") + f"?window={window}"
    for pool in ("default", "imports"):
        yield f"dashboard why, {pool}", reverse("admin:workpool_dashboard_waiting") + f"?pool={pool}"
    for query in ("worker=1", "worker=99", "pool=imports", "q=nothing"):
        yield f"runs {query}", reverse("admin:workpool_runningwork_changelist") + f"?{query}"
    yield "the worker that runs most", reverse("admin:workpool_worker_change", args=[1])
    failed = Archive.objects.filter(kind="failed").order_by("id").first()
    if failed is not None:
        yield "archive details of a failed one", reverse("admin:workpool_archive_change", args=[failed.pk])
        yield "attempts of a work", reverse("admin:workpool_attempt_changelist") + f"?q={failed.pk}"


_TEXTS = ("q=number+77", "q=nothing+is+called+so", "q=tests.works", "p=2", "p=200")
_SPANS = tuple(f"{name}={span}" for name in ("created", "finished") for span in ("15m", "24h", "7d"))
#: What each list is asked for.
QUERIES = {
    "archive": (
        *_TEXTS, *_SPANS, "pool=default", "pool=imports", "pool=default&p=200", "kind=failed", "kind=success", "kind=canceled",
        "kind=failed&pool=imports", "kind=failed&q=nothing+is+called+so", "pool=imports&q=nothing+is+called+so", "fn_type=query",
        "callback=failed", "callback=pending", "pool=imports&finished=24h", "pool=default&finished=15m&callback=failed",
        f"batch={uuid.uuid4()}",
    ),
    "work": (
        *_TEXTS, "pool=default", "pool=imports", "state=due", "state=later", "state=running", "state=held", "state=canceled",
        "state=callback", "state=due&pool=imports&q=nothing+is+called+so", "created=15m", "fn_type=query", f"batch={uuid.uuid4()}",
    ),
    "attempt": ("q=ValueError", "q=nothing", "p=2"),
    "pendingstart": ("pool=imports", "lane=1", "p=200", "q=0192"),
    "runningwork": ("worker=1", "pool=default"),
    "globals": ("pool=default", "q=imp"),
    "batch": ("q=nothing", "pool=default"),
}  # fmt: skip


def _fill(finished: int, large: int, waiting: int) -> None:
    """Insert the rows by statements: what matters is how many there are, and how large."""
    from django.db import connection

    from django_workpool import Workpool

    from ..works.tasks import note

    # One of each as it is really written, to be repeated.
    Workpool().enqueue(note, "first")
    # An identifier begins with its time: the works were made one each 50 ms, up to now.
    ms = "(extract(epoch FROM now()) * 1000)::bigint - ({all} - n) * {step}"
    made = f"(lpad(to_hex({ms}), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid"
    at = "now() - ({all} - n) * interval '{step} milliseconds'"
    archived = {"all": finished, "step": 50}
    statements = [
        # Copied as it is stored: to compress it anew for each row takes minutes.
        "CREATE TEMPORARY TABLE sample AS SELECT '\"' || repeat('0123456789', 5120) || '\"' AS value",
        "INSERT INTO workpool_archive (id, pool, fn_type, func_path, name, arguments, priority, attempts, kind, value, error, worker, "
        "created, started, finished, on_complete, on_complete_context, callback, callback_error, retry) SELECT "
        f"{made.format(**archived)}, CASE WHEN n %% 5000 = 0 THEN 'imports' ELSE 'default' END, "
        "CASE WHEN n %% 7 = 0 THEN 'query' ELSE 'action' END, 'tests.works.tasks.note', 'number ' || n, "
        '\'{"args": ["\' || n || \'"], "kwargs": {}}\', 0, 1, '
        f"CASE WHEN n %% {FAILED} = 0 THEN 'failed' WHEN n %% {CANCELED} = 0 THEN 'canceled' ELSE 'success' END, "
        f"CASE WHEN n <= {large} THEN (SELECT '\"' || string_agg(md5(n::text || i::text), '') || '\"' FROM generate_series(1, 1600) i) "
        "ELSE (SELECT value FROM sample) END, "
        f"CASE WHEN n %% {FAILED} = 0 THEN repeat('it failed ', 200) ELSE '' END, 'host:1', {at.format(**archived)}, "
        f"{at.format(**archived)} + interval '1 second', {at.format(**archived)} + interval '2 seconds', "
        f"CASE WHEN n %% {CALLBACK} = 0 THEN 'tests.works.tasks.ended' ELSE '' END, 'null', "
        f"CASE WHEN n %% {CALLBACK * 1000} = 0 THEN 'failed' WHEN n %% {CALLBACK} = 0 THEN 'done' ELSE '' END, '', '' "
        f"FROM generate_series(1, {finished}) n",
        "INSERT INTO workpool_attempt (work_id, number, worker, started, ended, class_path, text, traceback) SELECT id, 1, worker, "
        "started, finished, 'builtins.ValueError', error, repeat('File x, line 1 ', 300) FROM workpool_archive WHERE kind = 'failed'",
        "INSERT INTO workpool_worker (process, host, pid, capacity, async_capacity, pools, function_set, accepting, started, beat) SELECT "
        "gen_random_uuid(), 'host' || n, n, 10, 10, 'null', '', true, now(), now() FROM generate_series(1, 20) n",
    ]
    others = ", ".join(name for name in _columns("Work") if name not in ("id", "name", "pool", "created", "canceled"))
    pending = {"all": waiting, "step": 40}
    statements += [
        f"INSERT INTO workpool_work (id, name, pool, created, canceled, {others}) SELECT {made.format(**pending)}, 'number ' || n, "
        f"CASE WHEN n %% 5000 = 0 THEN 'imports' ELSE 'default' END, {at.format(**pending)}, n %% 9973 = 0, {others} "
        f"FROM workpool_work, generate_series(1, {waiting}) n",
        "INSERT INTO workpool_pendingstart (work_id, pool, lane, priority, segment) SELECT w.id, w.pool, 0, 0, s.segment + "
        "CASE WHEN w.name LIKE '%%7' THEN 1000000 ELSE 0 END FROM workpool_work w, workpool_pendingstart s WHERE w.id <> s.work_id",
        "INSERT INTO workpool_runningwork (work_id, pool, lane, worker_id, due, started) SELECT work_id, pool, lane, 1 + id %% 20, "
        "segment, now() FROM workpool_pendingstart WHERE id %% 500 = 0",
        "DELETE FROM workpool_pendingstart WHERE id %% 500 = 0",
        # One of them runs most of 2,000.
        "INSERT INTO workpool_runningwork (work_id, pool, lane, worker_id, due, started) SELECT work_id, pool, lane, 1, segment, now() "
        "FROM workpool_pendingstart WHERE id %% 55 = 1",
        "DELETE FROM workpool_pendingstart WHERE id %% 55 = 1",
        "INSERT INTO workpool_batch (id, pool, name, on_complete, on_complete_context, total, created) SELECT gen_random_uuid(), "
        "'default', 'batch ' || n, '', 'null', 10, now() FROM generate_series(1, 20000) n",
    ]
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement, [])
        cursor.execute("ANALYZE")


def _columns(model: str) -> list[str]:
    from django.apps import apps

    return [field.column for field in apps.get_model("workpool", model)._meta.concrete_fields]


if __name__ == "__main__":
    run("admin_pages", check, add_options=options)
