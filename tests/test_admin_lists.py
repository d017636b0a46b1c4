"""The admin's lists: what they show of many rows, what they find, and that a page costs as many queries for 500 rows as for five."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_workpool.admin import lists
from django_workpool.database import database
from django_workpool.ids import new_work_id
from django_workpool.models import Archive, Attempt, Batch, PendingCancelation, PendingStart, RunningWork, UniqueKey, Work, Worker

pytestmark = pytest.mark.django_db


def add_finished(number: int, **columns: Any) -> list[Archive]:
    now = timezone.now()
    common = {
        "pool": "default", "fn_type": "action", "func_path": "a.b", "arguments": "{}", "priority": 0, "attempts": 1, "kind": "success",
        "created": now, "finished": now,
    }  # fmt: skip
    rows = [Archive(**{"id": new_work_id(), "name": f"n{one}", **common, **columns}) for one in range(number)]
    Archive.objects.bulk_create(rows)
    return rows


def add_waiting(number: int, *, segment: int | None = None, **columns: Any) -> list[Work]:
    common = {"pool": "default", "fn_type": "action", "func_path": "a.b", "arguments": "{}", "created": timezone.now()}
    rows = [Work(**{"id": new_work_id(), "name": f"n{one}", **common, **columns}) for one in range(number)]
    Work.objects.bulk_create(rows)
    due = database("default").segment() if segment is None else segment
    PendingStart.objects.bulk_create(PendingStart(work_id=row.pk, pool=row.pool, segment=due) for row in rows)
    return rows


def add_worker() -> Worker:
    now = timezone.now()
    return Worker.objects.create(process=uuid.uuid4(), host="h", pid=7, capacity=1, async_capacity=1, started=now, beat=now)


def run(rows: list[Work], worker: Worker) -> None:
    PendingStart.objects.filter(work_id__in=[row.pk for row in rows]).delete()
    RunningWork.objects.bulk_create(
        RunningWork(work_id=row.pk, pool=row.pool, worker_id=worker.pk, due=0, started=timezone.now()) for row in rows
    )


def listed(model: str) -> str:
    return reverse(f"admin:workpool_{model}_changelist")


def shown(client: Client, model: str, query: str = "") -> list[Any]:
    """Return the keys of the rows that a page shows."""
    response = client.get(f"{listed(model)}?{query}")
    assert response.status_code == 200, response
    return [row.pk for row in response.context["cl"].result_list]


# How much is read -----------------------------------------------------------------------------------------------------


def fill(number: int) -> None:
    """Add so many rows to each table that a list shows, of all states in turn."""
    for _ in range(0, number, 5):
        fill_with(5)


def fill_with(number: int) -> None:
    worker = add_worker()
    add_finished(number, kind="failed", error="it failed", callback="failed")
    run(add_waiting(number), worker)
    waiting = add_waiting(number) + add_waiting(number, segment=10**12)
    now = timezone.now()
    Attempt.objects.bulk_create(Attempt(work_id=row.pk, number=1, worker="w", ended=now, class_path="a.B", text="t") for row in waiting)
    PendingCancelation.objects.bulk_create(PendingCancelation(pool="default", segment=1, work_id=row.pk) for row in waiting[number::2])
    Batch.objects.bulk_create(Batch(id=new_work_id(), pool="default", total=1, created=now) for _ in range(number))
    UniqueKey.objects.bulk_create(UniqueKey(digest=row.pk.hex, pool="default", key="k", work_id=row.pk) for row in waiting)


MODELS = sorted(
    str(model._meta.model_name) for model, site in admin.site._registry.items() if model._meta.app_label == "workpool" and site is not None
)
PAGES = [*MODELS, "work?state=due", "work?state=running", "work?q=n1", "archive?kind=failed", "archive?pool=default", "archive?q=n1"]


def queries_of(client: Client) -> dict[str, int]:
    counts = {}
    for page in PAGES:
        model, _, query = page.partition("?")
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"{listed(model)}?{query}").status_code == 200
        counts[page] = len(queries)
    return counts


def test_a_page_takes_as_many_queries_for_500_rows_as_for_five(admin_client: Client) -> None:
    fill(5)
    few = queries_of(admin_client)
    fill(495)
    assert queries_of(admin_client) == few
    assert max(few.values()) <= 15


def test_no_list_loads_a_payload(admin_client: Client) -> None:
    fill(5)
    for model in set(MODELS) - {"periodic"}:
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(listed(model))
        sql = " ".join(query["sql"] for query in queries)
        table = f"workpool_{model}"
        for name in ("arguments", "value", "on_complete_context", "traceback", "text", "callback_error"):
            assert f'"{table}"."{name}"' not in sql and f"`{table}`.`{name}`" not in sql, (model, name)


def test_the_beginning_of_an_error_is_shown_and_no_more_of_it_is_loaded(admin_client: Client) -> None:
    add_finished(1, kind="failed", error="it broke\n" + "x" * 5000 + "the end")
    page = admin_client.get(listed("archive")).content.decode()
    assert "it broke xxx" in page and "the end" not in page and "x" * 200 not in page


def column(name: str) -> int:
    """Return a column's number in the addresses of whoever may act on rows: the boxes are the first one."""
    return 1 + list(admin.site._registry[Archive].list_display).index(name)


# Windows --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "SHOWN_MAX", 10)
    monkeypatch.setattr(lists, "EXAMINED_MAX", 20)


def walk(client: Client, model: str, query: str = "") -> list[list[Any]]:
    """Go through all windows of a list by its links; return what each shows."""
    windows, address = [], f"?{query}"
    while address:
        response = client.get(listed(model) + address)
        assert response.status_code == 200
        changes = response.context["cl"]
        windows.append([row.pk for row in changes.result_list])
        address = changes.further_query if changes.further else ""
        assert len(windows) < 20
    return windows


def test_windows_follow_each_other_and_leave_nothing_out(small: None, admin_client: Client) -> None:
    ids = [row.pk for row in add_finished(25)]
    newest = ids[::-1]
    assert walk(admin_client, "archive") == [newest[:10], newest[10:20], newest[20:]]
    assert walk(admin_client, "archive", f"o={column('created_at')}") == [ids[:10], ids[10:20], ids[20:]]
    page = admin_client.get(listed("archive")).content.decode()
    assert "10+ finished work" in page and "These are 10 rows: there are more." in page
    last = admin_client.get(listed("archive") + f"?past={newest[19]}").content.decode()
    assert "5 finished work" in last and "there are more" not in last and "From the beginning" in last


def test_a_window_that_holds_all_says_so(small: None, admin_client: Client) -> None:
    ids = [row.pk for row in add_finished(10)]
    assert walk(admin_client, "archive") == [ids[::-1]]
    assert "10 finished work" in admin_client.get(listed("archive")).content.decode()


def test_those_of_a_pool_come_by_their_end_and_ties_are_left_out_nowhere(small: None, admin_client: Client) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for second in (3, 1, 2):
        add_finished(9, pool="imports", finished=at + timedelta(seconds=second))
    add_finished(5)
    expected = [row.pk for row in Archive.objects.filter(pool="imports").order_by("-finished", "-id")]
    windows = walk(admin_client, "archive", "pool=imports")
    assert windows == [expected[:10], expected[10:20], expected[20:]]
    assert walk(admin_client, "archive", f"pool=imports&o={column('finished_at')}")[0] == expected[::-1][:10]


def test_what_no_index_serves_is_looked_for_in_the_window(small: None, admin_client: Client) -> None:
    old = add_finished(1, name="needle")[0].pk
    add_finished(25)
    page = admin_client.get(listed("archive") + "?q=needle")
    assert [row.pk for row in page.context["cl"].result_list] == []
    assert "Looked through 20 rows: there are more." in page.content.decode()
    assert walk(admin_client, "archive", "q=needle") == [[], [old]]


def test_a_filter_that_changes_begins_anew(small: None, admin_client: Client) -> None:
    rows = add_finished(25)
    page = admin_client.get(listed("archive") + f"?past={rows[15].pk}").content.decode()
    assert f"past={rows[15].pk}&" not in page.replace("&amp;", "&").partition("changelist-filter")[2].replace("Further back", "")


@pytest.mark.parametrize("past", ["x", "~", "9" * 50, "%00", "0192~x", "null", "2026-01-01~" + str(uuid.UUID(int=7, version=4))])
def test_a_place_that_is_none_is_the_beginning(admin_client: Client, past: str) -> None:
    ids = [row.pk for row in add_finished(3)]
    assert shown(admin_client, "archive", f"past={past}") == ids[::-1]


# What is found ----------------------------------------------------------------------------------------------------------


def test_works_are_found_by_their_state(admin_client: Client) -> None:
    (due,), (later,), (held,), (canceled,), (runs,), (callback,) = (
        add_waiting(1),
        add_waiting(1, segment=10**12),
        add_waiting(1, held_since=timezone.now()),
        add_waiting(1, canceled=True),
        add_waiting(1),
        add_waiting(1, callback_of=uuid.uuid4(), fn_type="callback"),
    )
    run([runs], add_worker())
    found = {state: shown(admin_client, "work", f"state={state}") for state in ("later", "running", "held", "canceled", "callback")}
    assert found == {
        "later": [later.pk], "running": [runs.pk], "held": [held.pk], "canceled": [canceled.pk], "callback": [callback.pk],
    }  # fmt: skip
    assert set(shown(admin_client, "work", "state=due")) == {due.pk, held.pk, canceled.pk, callback.pk}
    page = admin_client.get(listed("work")).context["cl"].result_list
    assert {row.pk: row.state for row in page} == {
        due.pk: "due", later.pk: "due later", held.pk: "held", canceled.pk: "being canceled", runs.pk: "running", callback.pk: "due",
    }  # fmt: skip


def test_the_list_says_why_works_do_not_run(admin_client: Client) -> None:
    add_waiting(1)
    add_waiting(1, segment=10**11)
    page = admin_client.get(listed("work")).content.decode()
    assert "it is not due before 2286-11-20" in page or "it is not due before" in page
    assert "no process leads" in page or "no live worker serves" in page


def test_finished_works_are_found_by_result_callback_type_pool_and_time(admin_client: Client) -> None:
    long_ago = timezone.now() - timedelta(days=30)
    (plain,), (failed,), (broken,), (asking,), (other,) = (
        add_finished(1),
        add_finished(1, kind="failed"),
        add_finished(1, callback="failed"),
        add_finished(1, fn_type="query"),
        add_finished(1, pool="imports"),
    )
    old_id = uuid.UUID(int=int(long_ago.timestamp() * 1000) << 80)
    (old,) = add_finished(1, id=old_id, created=long_ago, finished=long_ago)
    assert shown(admin_client, "archive", "kind=failed") == [failed.pk]
    assert shown(admin_client, "archive", "kind=canceled") == []
    assert shown(admin_client, "archive", "callback=failed") == [broken.pk]
    assert shown(admin_client, "archive", "fn_type=query") == [asking.pk]
    assert shown(admin_client, "archive", "pool=imports") == [other.pk]
    recent = [one.pk for one in (other, asking, broken, failed, plain)]
    assert shown(admin_client, "archive", "created=7d") == shown(admin_client, "archive", "finished=1h") == recent
    assert shown(admin_client, "archive") == [*recent, old.pk]
    assert shown(admin_client, "archive", "pool=default&finished=1h&kind=failed") == [failed.pk]


def test_works_are_found_by_id_its_beginning_and_texts(admin_client: Client) -> None:
    rows = add_finished(3, func_path="shop.tasks.charge")
    one = rows[1].pk
    for text in (str(one), one.hex, str(one).upper(), f" {one} ", one.hex[:31], str(one)[:35]):
        assert shown(admin_client, "archive", f"q={text}") == [one], text
    assert shown(admin_client, "archive", "q=n2") == [rows[2].pk]
    # Texts are compared byte by byte on MariaDB.
    assert len(shown(admin_client, "archive", "q=shop.tasks" if connection.vendor == "mysql" else "q=SHOP.tasks")) == 3
    (named,) = add_finished(1, name="order deadbeef99")
    assert shown(admin_client, "archive", "q=deadbeef99") == [named.pk]
    assert shown(admin_client, "archive", f"q={uuid.uuid4()}") == shown(admin_client, "archive", "q=nothing") == []


def test_rows_of_the_queues_are_found_by_their_work(admin_client: Client) -> None:
    rows = add_waiting(3)
    start = PendingStart.objects.get(work_id=rows[1].pk)
    assert shown(admin_client, "pendingstart", f"q={rows[1].pk}") == [start.pk]
    worker = add_worker()
    run(rows[:1], worker)
    assert len(shown(admin_client, "runningwork", f"worker={worker.pk}")) == 1
    for odd in (worker.pk + 1, "x", "9" * 40, "-1"):
        assert shown(admin_client, "runningwork", f"worker={odd}") == []


def test_the_works_of_a_batch_are_found(admin_client: Client) -> None:
    batch = uuid.uuid4()
    (mine,), _ = add_finished(1, batch_id=batch), add_finished(1)
    assert shown(admin_client, "archive", f"batch={batch}") == [mine.pk]
    assert shown(admin_client, "archive", "batch=x") == []


@pytest.mark.parametrize(
    "query", ["q=%00", "q=%ED%A0%80", "q=" + "9" * 5000, "pool=%00", "kind=x", "state=%27", "p=x", "p=-1", "o=99.-x", "created=x"]
)
def test_odd_questions_are_answered(admin_client: Client, query: str) -> None:
    add_finished(1)
    for model in ("archive", "work"):
        assert admin_client.get(f"{listed(model)}?{query}").status_code in (200, 302)


@pytest.mark.parametrize("query", ["name__regex=(a%2B)%2B", "arguments__contains=x", "nothing=1"])
def test_a_list_takes_no_other_questions(admin_client: Client, query: str) -> None:
    """Django's own would let addresses ask for anything, such as a pattern for each of a million rows."""
    response = admin_client.get(f"{listed('archive')}?{query}")
    assert (response.status_code, response["Location"]) == (302, f"{listed('archive')}?e=1")
