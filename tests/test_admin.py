"""The admin's pages: all open, whatever the rows hold; they tell what is known of a work, and show what is stored as text, or hide it."""

import json
import re
import uuid
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_workpool import masks
from django_workpool.admin import shown
from django_workpool.exceptions import WorkpoolSettingsError
from django_workpool.ids import new_work_id
from django_workpool.models import (
    Archive,
    Attempt,
    Batch,
    BatchFailure,
    Globals,
    PendingStart,
    Periodic,
    Progress,
    RunningWork,
    UniqueKey,
    Work,
    Worker,
)

pytestmark = pytest.mark.django_db

XSS = '<img src=x onerror=alert(1)></script><script>alert(1)</script>{{7*7}}" autofocus onfocus=alert(1) x="'
REGISTERED = [model for model in apps.get_app_config("workpool").get_models() if admin.site.is_registered(model) and model is not Periodic]


def a_row(model: Any) -> Any:
    """Return one stored row of any of the models."""
    now = timezone.now()
    kinds = {field.name: field.get_internal_type() for field in model._meta.fields if not field.has_default() and not field.null}
    examples: dict[str, Any] = {"UUIDField": new_work_id(), "DateTimeField": now, "AutoField": None, "BigAutoField": None}
    values = {name: examples.get(kind, 1) for name, kind in kinds.items()}
    return model.objects.filter().first() or model.objects.create(**values)


def finished(**columns: Any) -> Archive:
    now = timezone.now()
    row = {
        "id": new_work_id(), "pool": "default", "fn_type": "action", "func_path": "a.b", "name": "finished", "arguments": "{}",
        "priority": 0, "attempts": 1, "kind": "success", "created": now, "started": now, "finished": now,
    }  # fmt: skip
    return Archive.objects.create(**{**row, **columns})


def waiting(**columns: Any) -> Work:
    row = {"id": new_work_id(), "pool": "default", "fn_type": "action", "func_path": "a.b", "name": "waiting", "arguments": "{}"}
    work = Work.objects.create(**{**row, "created": timezone.now(), **columns})
    PendingStart.objects.create(work_id=work.pk, pool=work.pool, segment=10)
    return work


def failed_attempt(work_id: uuid.UUID, **columns: Any) -> Attempt:
    row = {"work_id": work_id, "number": 1, "worker": "host:1", "ended": timezone.now(), "class_path": "builtins.ValueError", "text": "no"}
    return Attempt.objects.create(**{**row, **columns})


def page_of(row: Any) -> str:
    return reverse(f"admin:workpool_{row._meta.model_name}_change", args=[quote(row.pk)])


def text_of(client: Client, row: Any) -> str:
    response = client.get(page_of(row))
    assert response.status_code == 200
    return str(response.content.decode())


@pytest.mark.parametrize("model", REGISTERED, ids=lambda model: model.__name__)
def test_list_and_detail_open_and_offer_no_change(model: Any, admin_client: Client) -> None:
    row = a_row(model)
    name = f"admin:workpool_{model._meta.model_name}"
    for address in (reverse(f"{name}_changelist"), page_of(row)):
        with CaptureQueriesContext(connection) as queries:
            response = admin_client.get(address)
        assert response.status_code == 200
        assert len(queries) <= 15
    assert b'name="_save"' not in response.content
    assert admin_client.get(reverse(f"{name}_add")).status_code == 403
    assert admin_client.post(page_of(row), {}).status_code == 403
    assert admin_client.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert model.objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize("pk", ["9" * 40, "-1", "x", "0' OR 1=1"])
def test_an_id_that_is_none_is_not_an_error(admin_client: Client, pk: str) -> None:
    for model in ("work", "attempt", "worker", "archive", "globals", "lead", "batch"):
        assert admin_client.get(reverse(f"admin:workpool_{model}_change", args=[pk])).status_code in (302, 404)


def test_anonymous_and_staff_without_permission_see_nothing(client: Client, django_user_model: Any) -> None:
    page = reverse("admin:workpool_work_changelist")
    assert client.get(page).status_code == 302
    client.force_login(django_user_model.objects.create_user("staff", password="x", is_staff=True))
    assert client.get(page).status_code == 403
    assert Work.objects.count() == 0


# What pages tell --------------------------------------------------------------------------------------------------------


def test_the_page_of_a_running_work_tells_where_how_far_and_since_when(admin_client: Client) -> None:
    now = timezone.now()
    worker = Worker.objects.create(process=uuid.uuid4(), host="far", pid=7, capacity=1, async_capacity=1, started=now, beat=now)
    work, batch = waiting(batch_id=uuid.uuid4(), attempts=1, timeout_ms=1500), uuid.uuid4()
    Work.objects.filter(pk=work.pk).update(batch_id=batch)
    PendingStart.objects.all().delete()
    run = RunningWork.objects.create(work_id=work.pk, pool="default", worker_id=worker.pk, due=0, started=now)
    attempt = failed_attempt(
        work.pk, traceback="Traceback: in line 7", started=now - timedelta(minutes=2), ended=now - timedelta(minutes=1)
    )
    Progress.objects.create(work_id=work.pk, token=run.pk, done=3, total=8, said=now)
    page = text_of(admin_client, work)
    assert f"far:7 ({worker.pk})" in page and page_of(worker) in page
    assert "3 of 8" in page and "1.5 s" in page
    assert reverse("admin:workpool_batch_change", args=[batch]) in page
    assert "Traceback: in line 7" in page and "attempt 2 started on far:7" in page
    assert page.index("attempt 1 started") < page.index("attempt 1 failed: builtins.ValueError") < page.index("attempt 2 started")
    assert page_of(work) in text_of(admin_client, attempt)
    assert page_of(work) in text_of(admin_client, worker)
    # What an earlier run has said means nothing.
    Progress.objects.update(token=run.pk + 1)
    assert "3 of 8" not in text_of(admin_client, work)


def test_the_page_of_a_finished_work_tells_its_story_and_its_callback(admin_client: Client) -> None:
    broken = finished(kind="failed", error="it broke", callback="pending", callback_error="so did this", on_complete="a.done")
    callback = waiting(fn_type="callback", callback_of=broken.pk)
    page = text_of(admin_client, broken)
    assert "it broke" in page and "so did this" in page and page_of(callback) in page
    assert "finished: failed; its callback is pending" in page
    assert page_of(broken) in text_of(admin_client, callback)


def test_the_page_of_a_waiting_work_says_why_it_does_not_run(admin_client: Client) -> None:
    page = text_of(admin_client, waiting())
    assert "no process leads" in page or "no live worker serves the pool default" in page or "the pool default has no rows" in page


def test_the_page_of_an_attempt_of_work_that_is_gone_opens(admin_client: Client) -> None:
    assert "in line 7" in text_of(admin_client, failed_attempt(uuid.uuid4(), traceback="in line 7"))


def test_the_works_of_functions_that_are_gone_have_pages(admin_client: Client) -> None:
    for path in ("gone.module.function", "not a path", "tests.works.tasks.gone", "os.system"):
        assert path in text_of(admin_client, waiting(func_path=path))
        assert path in text_of(admin_client, finished(func_path=path))


# Payloads ----------------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Collects the elements of a page, with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.injected: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = tuple(name for name, _ in attrs)
        self.found.append((tag, names))
        if {"onerror", "onfocus"} & set(names) or (tag == "img" and ("src", "x") in attrs):
            self.injected.append(self.get_starttag_text() or tag)

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and "alert(1)" in data and not self.rawdata:
            self.injected.append(data)


def hostile_rows() -> list[Any]:
    """Store rows with markup wherever anybody but an operator has a say."""
    now, name = timezone.now(), XSS[:90]
    call = json.dumps({"args": [XSS], "kwargs": {XSS: XSS}})
    work = waiting(name=XSS, pool=name, func_path=XSS, arguments=call, on_complete=XSS, on_complete_context=call, held_since=now)
    ended = finished(
        name=XSS, pool=name, func_path=XSS, arguments=call, on_complete=XSS, on_complete_context=call, kind="failed", error=XSS, value=call,
        callback="failed", callback_error=XSS, worker=XSS,
    )  # fmt: skip
    worker = Worker.objects.create(
        process=uuid.uuid4(), host=XSS, pid=1, capacity=1, async_capacity=1, started=now, beat=now, pools=json.dumps([XSS])
    )
    RunningWork.objects.create(work_id=work.pk, pool=name, worker_id=worker.pk, due=0, started=now)
    batch = Batch.objects.create(id=uuid.uuid4(), pool=name, name=XSS, on_complete=XSS, on_complete_context=call, total=1, created=now)
    return [
        work,
        ended,
        worker,
        batch,
        failed_attempt(ended.pk, class_path=XSS, text=XSS, traceback=XSS, worker=XSS),
        Globals.objects.create(pool=name, max_parallelism=1, log_level=XSS[:10]),
        UniqueKey.objects.create(digest="d", pool=name, key=XSS, work_id=work.pk),
        BatchFailure.objects.create(batch_id=batch.pk, work_id=ended.pk, kind="failed"),
        PendingStart.objects.get(work_id=work.pk),
        RunningWork.objects.get(),
    ]


def test_markup_in_stored_values_is_text_on_every_page(admin_client: Client) -> None:
    for row in hostile_rows():
        name = f"admin:workpool_{row._meta.model_name}"
        listed, history = reverse(f"{name}_changelist"), reverse(f"{name}_history", args=[quote(row.pk)])
        pages = [listed, page_of(row), history]
        for page in (*pages, *(f"{listed}?{key}={XSS}" for key in ("q", "pool", "past", "worker", "batch"))):
            response = admin_client.get(page)
            if response.status_code == 302:
                response = admin_client.get(response["Location"])
            content = response.content.decode()
            assert response.status_code == 200, page
            assert Elements(content).injected == [], page
            assert "<img src=x" not in content and "<script>alert" not in content and '" autofocus' not in content, page
    assert "onerror=alert" in content or "onerror%3Dalert" in content


def test_the_check_itself_finds_what_is_not_escaped() -> None:
    assert Elements(f"<p>{XSS}</p>").injected != []
    assert Elements('<input value="' + '" autofocus onfocus=alert(1) x="">').injected != []


def test_markup_in_messages_and_questions_is_text(admin_client: Client) -> None:
    *_, globals_row = [row for row in hostile_rows() if isinstance(row, Globals)]
    for act in ("pause", "configure", "cancel_all"):
        address = reverse("admin:workpool_globals_act", args=[quote(globals_row.pk), act])
        response = admin_client.post(address, follow=True)
        content = response.content.decode()
        assert response.status_code == 200 and Elements(content).injected == []
        assert "<img src=x" not in content and "&lt;img src=x" in content


ODD = {
    "NUL and a lone surrogate": '"\\u0000 \\ud800"',
    "too many digits": "9" * 5000,
    "no JSON": '{"args": [',
    "deep": "[" * 20_000 + "]" * 20_000,
    "nearly as deep": "[" * 900 + "]" * 900,
    "no value": "",
    "NaN": "NaN",
    "large number": "1e400",
}


@pytest.mark.parametrize("stored", ODD.values(), ids=ODD)
def test_whatever_is_stored_is_shown(admin_client: Client, stored: str) -> None:
    ended = finished(arguments=stored, value=stored, on_complete_context=stored, error=stored, callback_error=stored, kind="failed")
    work = waiting(arguments=stored, on_complete_context=stored)
    attempt = failed_attempt(ended.pk, text=stored, traceback=stored)
    for row in (ended, work, attempt):
        page = text_of(admin_client, row)
        if stored and "\\u" not in stored and len(stored) < 10_000:
            assert stored[:50].replace('"', "&quot;").split("[")[0] in page
    assert admin_client.get(reverse("admin:workpool_archive_changelist")).status_code == 200


def test_json_is_indented(admin_client: Client) -> None:
    page = text_of(admin_client, finished(arguments='{"args":[1,"ä"],"kwargs":{"b":{"c":null}}}'))
    assert "{\n  &quot;args&quot;: [\n    1,\n    &quot;ä&quot;\n  ]," in page


def test_of_a_large_payload_only_the_beginning_is_loaded_and_shown(admin_client: Client) -> None:
    large = '["' + "x" * (3 * shown.LOADED_MAX) + '"]'
    row = finished(value=large, error="e" * 200_000)
    with CaptureQueriesContext(connection) as queries:
        page = text_of(admin_client, row)
    assert f"The first {shown.LOADED_MAX:,} of {len(large):,} characters." in page
    assert len(page) < 2.5 * shown.LOADED_MAX
    sql = " ".join(query["sql"] for query in queries)
    assert not re.search(r"""[ ,]["`]workpool_archive["`].["`]value["`]""", sql)


def test_what_indentation_makes_long_is_cut(admin_client: Client) -> None:
    nested = "[" * 500 + "[]," * 30_000 + "[]" + "]" * 500
    page = text_of(admin_client, finished(value=nested))
    assert len(page) < shown.SHOWN_MAX + 100_000


def test_a_stored_error_is_text_and_nothing_of_it_is_called(admin_client: Client, tmp_path: Any) -> None:
    target = tmp_path / "touched"
    stored = json.dumps({"exc_type": "system", "exc_module": "os", "exc_message": [f"touch {target}"]})
    ended = finished(kind="failed", error=stored, value=stored)
    failed_attempt(ended.pk, class_path="os.system", text=f"touch {target}")
    assert "exc_module" in text_of(admin_client, ended)
    assert not target.exists()


# Hiding -------------------------------------------------------------------------------------------------------------------

SECRET = "hunter2"
calls: list[tuple[str, str, str, Any]] = []


def mask(pool: str, func_path: str, name: str, value: Any) -> Any:
    """A project's own: hides what is under "password", and texts."""
    calls.append((pool, func_path, name, value))
    return {**value, "kwargs": {"password": "***"}} if isinstance(value, dict) else "hidden here"


def breaks(pool: str, func_path: str, name: str, value: Any) -> Any:
    raise RuntimeError(value)


def secrets() -> list[Any]:
    call = json.dumps({"args": [1], "kwargs": {"password": SECRET}})
    ended = finished(arguments=call, value=call, on_complete_context=call, error=SECRET, callback_error=SECRET, kind="failed")
    batch = Batch.objects.create(id=uuid.uuid4(), pool="default", on_complete_context=call, total=1, created=timezone.now())
    return [ended, waiting(arguments=call, on_complete_context=call), failed_attempt(ended.pk, text=SECRET, traceback=SECRET), batch]


def everything(client: Client, rows: list[Any]) -> str:
    lists = [client.get(reverse(f"admin:workpool_{row._meta.model_name}_changelist")).content.decode() for row in rows]
    return "".join([text_of(client, row) for row in rows] + lists)


@pytest.mark.parametrize("named", [None, "all", f"{__name__}.mask", f"{__name__}.breaks", "nowhere.mask", "os.path", 7, "no path"])
def test_payloads_are_shown_as_the_setting_says_and_hidden_where_it_fails(admin_client: Client, settings: Any, named: Any) -> None:
    settings.WORKPOOL_ADMIN_MASK = named
    rows = secrets()
    assert (SECRET in everything(admin_client, rows)) == (named is None)


def test_a_mask_is_told_what_it_masks(admin_client: Client, settings: Any) -> None:
    settings.WORKPOOL_ADMIN_MASK = f"{__name__}.mask"
    rows = secrets()
    calls.clear()
    page = everything(admin_client, rows)
    names = {"arguments", "value", "on_complete_context", "error", "callback_error", "text", "traceback"}
    assert {name for _, _, name, _ in calls} == names
    assert ("default", "a.b", "arguments", {"args": [1], "kwargs": {"password": SECRET}}) in calls
    assert ("default", "a.b", "traceback", SECRET) in calls
    assert "&quot;password&quot;: &quot;***&quot;" in page and "hidden here" in page


def test_what_is_too_large_for_the_mask_is_not_shown(admin_client: Client, settings: Any) -> None:
    settings.WORKPOOL_ADMIN_MASK = f"{__name__}.mask"
    page = text_of(admin_client, finished(value=json.dumps({"kwargs": SECRET + "x" * shown.LOADED_MAX})))
    assert "too large to be masked" in page and SECRET not in page


def test_a_mask_that_cannot_be_used_is_said(settings: Any) -> None:
    settings.WORKPOOL_ADMIN_MASK = "nowhere.mask"
    with pytest.raises(
        WorkpoolSettingsError, match="WORKPOOL_ADMIN_MASK names 'nowhere.mask', which cannot be imported: ModuleNotFoundError"
    ):
        masks.mask()
    settings.WORKPOOL_ADMIN_MASK = "django_workpool.masks.ALL"
    with pytest.raises(WorkpoolSettingsError, match='must be "all" or the dotted path of a function'):
        masks.mask()
