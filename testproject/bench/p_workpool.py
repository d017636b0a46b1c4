"""This project as one of several systems that a benchmark harness compares; ``manage.py bench`` needs none of it.

The harness imports this file by name, in an environment without this package: the checkout that holds the file is what is measured.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import common  # type: ignore[import-not-found]  # noqa: E402 - the harness's own module

import django_workpool  # noqa: E402
from testproject.bench import best  # noqa: E402

if Path(django_workpool.__file__).resolve().parents[1] != ROOT:
    raise RuntimeError(f"django_workpool is {django_workpool.__file__}, not that of {ROOT}")

#: Written by ``setup``, as asking git would count as the worker's start-up.
COMMIT = Path(common.WORK, "commit")
#: A finished work of this pool is kept for ever: what ``growth`` multiplies, whatever the variant keeps.
KEPT = "kept"
#: Works at once for each variant; None: the pool's default.
LIMITS = {"fast": best.LIMIT, "mutations": best.LIMIT, "day": best.LIMIT, "default": None, "limit10": 10}
#: Options of the worker.
FAST = ("--threads", str(best.THREADS), *best.OPTIONS)
MUTATIONS = ("--threads", str(best.MUTATION_THREADS), *best.OPTIONS)
OPTIONS = {"fast": FAST, "mutations": MUTATIONS, "day": FAST, "default": (), "limit10": FAST}
#: Variants that keep finished work as long as the default says.
KEEPING = ("day", "default")


def _pool(variant: str) -> dict[str, Any]:
    limit = LIMITS[variant]
    retention = {} if variant in KEEPING else {"RETENTION": timedelta(0)}
    return {"FUNCTIONS": [__name__], **({} if limit is None else {"MAX_PARALLELISM": limit}), **retention}


Result = common.django(
    apps=["django_workpool"],
    WORKPOOLS={"default": _pool(common.VARIANT), KEPT: {"RETENTION": None}},
)

from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from django_workpool import Workpool, action, call, mutation  # noqa: E402
from django_workpool import enqueue as enqueue_one  # noqa: E402
from django_workpool.ids import new_work_id  # noqa: E402
from django_workpool.models import Archive, PendingStart, Work  # noqa: E402

# As the manual advises where no pooler is in the way: statements that come again and again are planned once.
settings.DATABASES["default"].setdefault("OPTIONS", {})["prepare_threshold"] = 5


@action
def noop(i: int) -> None:
    """Do nothing but leave a stamp."""
    common.stamp(i)


@mutation(batch=50)
def insert(i: int) -> None:
    """Insert a row, in the transaction that ends the work."""
    Result.objects.create(n=i)
    common.stamp(i)


@action(retry=True)
def sleep(i: int) -> None:
    """Take long; run again if the process dies meanwhile."""
    common.sleep(i)


FUNCTIONS: dict[str, Callable[[int], None]] = {"noop": noop, "insert": insert, "sleep": sleep}


def setup() -> None:
    """Make the tables, and what ``growth`` multiplies: a finished work, and a view of works with their starts."""
    COMMIT.write_text(commit())
    call_command("migrate", verbosity=0)
    now = timezone.now()
    Archive.objects.create(
        id=new_work_id(),
        pool=KEPT,
        fn_type="action",
        func_path=f"{__name__}.noop",
        name=f"{__name__}.noop",
        arguments="[[0], {}]",
        priority=0,
        attempts=1,
        kind="success",
        created=now,
        started=now,
        finished=now,
    )
    with connection.cursor() as cursor:
        cursor.execute(_later())


def _later() -> str:
    """Return statements that make ``bench_later``: a row inserted there becomes a work and its start, as ``enqueue`` makes them."""
    columns = [str(field.column) for field in Work._meta.concrete_fields]
    work, start = Work._meta.db_table, PendingStart._meta.db_table
    return f"""
        CREATE VIEW bench_later AS SELECT w.*, s.segment FROM {work} w JOIN {start} s ON s.work_id = w.id;
        CREATE FUNCTION bench_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'DELETE' THEN
                DELETE FROM {start} WHERE work_id = OLD.id;
                DELETE FROM {work} WHERE id = OLD.id;
                RETURN OLD;
            END IF;
            INSERT INTO {work} ({", ".join(columns)}) VALUES ({", ".join(f"NEW.{column}" for column in columns)});
            INSERT INTO {start} (work_id, pool, lane, priority, segment) VALUES (NEW.id, NEW.pool, 0, NEW.priority, NEW.segment);
            RETURN NEW;
        END $$;
        CREATE TRIGGER bench_later INSTEAD OF INSERT OR DELETE ON bench_later FOR EACH ROW EXECUTE FUNCTION bench_later();
    """


def enqueue(kind: str, i: int) -> None:
    """Enqueue one work in a transaction of its own."""
    enqueue_one(FUNCTIONS[kind], i)


def bulk(kind: str, ids: Iterable[int]) -> None:
    """Enqueue many works in one transaction."""
    Workpool().enqueue_many(FUNCTIONS[kind], [call(i) for i in ids])


def worker(variant: str) -> None:
    """Run a worker until it is stopped."""
    print(f"workpool {COMMIT.read_text()}", flush=True)  # noqa: T201 - the harness keeps it in the worker's log
    call_command("workpool_main", *OPTIONS[variant])


def commit() -> str:
    """Return the commit of the checkout, with a + if files differ from it."""

    def git(*arguments: str) -> str:
        # safe.directory: the checkout may be another user's.
        command = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return (git("rev-parse", "HEAD") or "unknown") + ("+" if git("status", "--porcelain") else "")
