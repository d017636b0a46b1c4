"""The admin: every page opens, shows payloads as text, and offers no way to change anything."""

import re
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_workpool.ids import new_work_id
from django_workpool.models import Archive, Periodic, Work

pytestmark = pytest.mark.django_db

XSS = '<img src=x onerror=alert(1)></script><script>{{7*7}}" autofocus onfocus='
REGISTERED = [model for model in apps.get_app_config("workpool").get_models() if admin.site.is_registered(model) and model is not Periodic]


@pytest.fixture
def finished() -> Archive:
    now = timezone.now()
    return Archive.objects.create(
        id=new_work_id(), pool="default", fn_type="action", func_path="a.b", name=XSS, arguments=f'{{"args": ["{XSS}"]}}',
        priority=0, attempts=1, kind="failed", error=XSS, created=now, finished=now,
    )  # fmt: skip


def a_row(model: Any) -> Any:
    """Return one stored row of any of the models."""
    now = timezone.now()
    kinds = {field.name: field.get_internal_type() for field in model._meta.fields if not field.has_default() and not field.null}
    examples: dict[str, Any] = {"UUIDField": new_work_id(), "DateTimeField": now, "AutoField": None, "BigAutoField": None}
    values = {name: examples.get(kind, 1) for name, kind in kinds.items()}
    return model.objects.filter().first() or model.objects.create(**values)


@pytest.mark.parametrize("model", REGISTERED, ids=lambda model: model.__name__)
def test_list_and_detail_open_and_offer_no_change(model: Any, admin_client: Client) -> None:
    row = a_row(model)
    name = f"admin:workpool_{model._meta.model_name}"
    with CaptureQueriesContext(
        connection,
    ) as queries:
        listed = admin_client.get(reverse(f"{name}_changelist"))
    detail = admin_client.get(reverse(f"{name}_change", args=[row.pk]))
    assert (listed.status_code, detail.status_code) == (200, 200)
    assert len(queries) <= 15
    assert b'name="_save"' not in detail.content
    assert admin_client.get(reverse(f"{name}_add")).status_code == 403
    assert admin_client.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert model.objects.filter(pk=row.pk).exists()


def test_payloads_are_shown_as_text(admin_client: Client, finished: Archive) -> None:
    pages = [reverse("admin:workpool_archive_changelist"), reverse("admin:workpool_archive_change", args=[finished.pk])]
    for page in pages:
        text = admin_client.get(page).content.decode()
        assert "onerror=alert" in text
        assert not re.search(r"<img src=x", text)
        assert "49" not in re.findall(r"\{\{.*?\}\}|49\"", text)


def test_lists_do_not_load_payloads(admin_client: Client, finished: Archive) -> None:
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(reverse("admin:workpool_archive_changelist"))
    assert not [query for query in queries if '"arguments"' in query["sql"] or '"value"' in query["sql"]]


@pytest.mark.parametrize("pk", ["9" * 40, "-1", "x", "0' OR 1=1"])
def test_an_id_that_is_none_is_not_an_error(admin_client: Client, pk: str) -> None:
    for model in ("work", "attempt", "worker"):
        assert admin_client.get(reverse(f"admin:workpool_{model}_change", args=[pk])).status_code in (302, 404)


def test_anonymous_and_staff_without_permission_see_nothing(client: Client, django_user_model: Any) -> None:
    page = reverse("admin:workpool_work_changelist")
    assert client.get(page).status_code == 302
    client.force_login(django_user_model.objects.create_user("staff", password="x", is_staff=True))
    assert client.get(page).status_code == 403
    assert Work.objects.count() == 0
