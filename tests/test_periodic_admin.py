"""Periodic works in the admin: people add, change, enable, disable and delete them there, as Django's permissions allow."""

import json
import sys
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from django_workpool.models import Periodic
from django_workpool.periodic import schedule

from .states import functions

pytestmark = pytest.mark.django_db

LIST, ADD = "admin:workpool_periodic_changelist", "admin:workpool_periodic_add"
GOOD: dict[str, Any] = {
    "name": "nightly",
    "pool": "default",
    "func_path": "tests.states.functions.act",
    "arguments": '{"args": [1], "kwargs": {}}',
    "priority": "5",
    "cron": "30 1 * * *",
    "time_zone": "Europe/London",
    "missed": "skip",
    "enabled": "on",
}


def page(row: Periodic, act: str = "change") -> str:
    return reverse(f"admin:workpool_periodic_{act}", args=[row.pk])


@pytest.fixture
def row() -> Periodic:
    schedule("nightly", functions.act, cron="30 1 * * *", time_zone="Europe/London", args=[1])
    Periodic.objects.update(next_ms=1_806_197_400_000, last_ms=1_806_111_000_000)
    return Periodic.objects.get()


def test_adding_makes_the_row_that_schedule_makes(admin_client: Client) -> None:
    assert admin_client.get(reverse(ADD)).status_code == 200
    response = admin_client.post(reverse(ADD), GOOD)
    assert response.status_code == 302, response.context["errors"]
    added = Periodic.objects.values().get()
    Periodic.objects.all().delete()
    schedule("nightly", functions.act, cron="30 1 * * *", time_zone="Europe/London", args=[1], missed="skip", priority=5)
    said = Periodic.objects.values().get()
    assert {**added, "id": 0} == {**said, "id": 0}


def test_changing_keeps_its_place_unless_the_times_change(admin_client: Client, row: Periodic) -> None:
    Periodic.objects.update(error="it could not")
    assert admin_client.post(page(row), {**GOOD, "name": "renamed", "priority": "-3"}).status_code == 302
    changed = Periodic.objects.get()
    assert (changed.pk, changed.name, changed.priority, changed.error) == (row.pk, "renamed", -3, "")
    assert (changed.next_ms, changed.last_ms) == (row.next_ms, row.last_ms)
    assert admin_client.post(page(row), {**GOOD, "cron": "0 2 * * *"}).status_code == 302
    changed = Periodic.objects.get()
    assert (changed.cron, changed.next_ms, changed.last_ms) == ("0 2 * * *", None, row.last_ms)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("name", "", "required"),
        ("name", "x" * 201, "at most 200"),
        ("pool", "nowhere", "not one of the available choices"),
        ("func_path", "os.system", "outside the installed apps"),
        ("func_path", "tests.states.functions.told", "on_complete function"),
        ("func_path", "tests.states.functions.nothing", "nothing"),
        ("arguments", "{", "Expecting"),
        ("arguments", "[1]", "args"),
        ("arguments", '{"args": [], "kwargs": {}, "more": 1}', "args"),
        ("arguments", '{"args": {}, "kwargs": {}}', "args must be a list"),
        ("arguments", '{"args": [NaN], "kwargs": {}}', "nan is not JSON"),
        ("arguments", '{"args": ' + "[" * 20_000 + "]" * 20_000 + ', "kwargs": {}}', ""),
        ("cron", "* * *", "not a cron expression"),
        ("cron", "* * */20 * 1L", "never ticks"),
        ("time_zone", "Europe/Nowhere", "no time zone"),
        ("missed", "some", "not one of the available choices"),
        ("priority", "101", "from -100 to 100"),
        ("priority", "x", "whole number"),
    ],
)
def test_what_schedule_refuses_is_an_error_of_its_field(admin_client: Client, field: str, value: str, text: str) -> None:
    response = admin_client.post(reverse(ADD), {**GOOD, field: value})
    assert response.status_code == 200
    errors = response.context["adminform"].form.errors
    assert list(errors) == [field]
    assert text in errors[field].as_text()
    assert not Periodic.objects.exists()


def test_a_name_that_is_taken_is_refused(admin_client: Client, row: Periodic) -> None:
    response = admin_client.post(reverse(ADD), GOOD)
    assert list(response.context["adminform"].form.errors) == ["name"]
    assert Periodic.objects.count() == 1


def test_the_pages_show_the_ticks_in_their_zone(admin_client: Client, row: Periodic) -> None:
    listed = admin_client.get(reverse(LIST)).content.decode()
    # 2027-03-28: the tick of the hour that is skipped.
    Periodic.objects.update(next_ms=1_806_195_600_000)
    spring = admin_client.get(reverse(LIST)).content.decode()
    assert "2027-03-28 02:30:00+01:00" in listed
    assert "2027-03-28 02:00:00+01:00" in spring
    detail = admin_client.get(page(row)).content.decode()
    assert detail.count("01:30:00") >= 4


def test_pages_of_a_row_that_makes_no_sense_open(admin_client: Client, row: Periodic) -> None:
    Periodic.objects.update(cron="nonsense", time_zone="Europe/Nowhere", next_ms=10**18, pool="gone", error="<b>no</b>")
    assert "&lt;b&gt;no&lt;/b&gt;" in admin_client.get(reverse(LIST)).content.decode()
    detail = admin_client.get(page(row))
    assert detail.status_code == 200
    assert "no time zone" in detail.content.decode()


def test_without_the_library_the_pages_open_and_the_form_says_what_to_install(
    admin_client: Client, row: Periodic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert "pip install" in admin_client.get(page(row)).content.decode()
    response = admin_client.post(page(row), GOOD)
    assert "pip install" in response.context["adminform"].form.errors["cron"].as_text()


def test_several_are_enabled_disabled_and_deleted(admin_client: Client, row: Periodic) -> None:
    schedule("other", functions.act, cron="* * * * *")
    chosen: dict[str, Any] = {"_selected_action": [one.pk for one in Periodic.objects.all()]}
    for action, enabled in (("disable", False), ("enable", True)):
        assert admin_client.post(reverse(LIST), {"action": action, **chosen}).status_code == 302
        assert set(Periodic.objects.values_list("enabled", flat=True)) == {enabled}
    assert Periodic.objects.get(pk=row.pk).next_ms == row.next_ms
    assert admin_client.post(reverse(LIST), {"action": "delete_selected", "post": "yes", **chosen}).status_code == 302
    assert not Periodic.objects.exists()


def test_one_is_deleted(admin_client: Client, row: Periodic) -> None:
    assert admin_client.post(page(row, "delete"), {"post": "yes"}).status_code == 302
    assert not Periodic.objects.exists()


def staff(client: Client, users: Any, *permissions: str) -> Client:
    user = users.objects.create_user("staff", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions, content_type__app_label="workpool"))
    client.force_login(user)
    return client


def test_without_permission_there_is_nothing(client: Client, django_user_model: Any, row: Periodic) -> None:
    staff(client, django_user_model)
    for url in (reverse(LIST), reverse(ADD), page(row), page(row, "delete")):
        assert client.get(url).status_code == 403


def test_whoever_may_look_may_not_change(client: Client, django_user_model: Any, row: Periodic) -> None:
    staff(client, django_user_model, "view_periodic")
    assert client.get(reverse(LIST)).status_code == 200
    detail = client.get(page(row))
    assert (detail.status_code, b'name="_save"' in detail.content) == (200, False)
    assert client.post(page(row), {**GOOD, "name": "other"}).status_code == 403
    assert client.post(reverse(ADD), {**GOOD, "name": "other"}).status_code == 403
    client.post(reverse(LIST), {"action": "disable", "_selected_action": [row.pk]})
    assert list(Periodic.objects.values_list("name", "enabled")) == [("nightly", True)]


def test_whoever_may_change_may_not_add_or_delete(client: Client, django_user_model: Any, row: Periodic) -> None:
    staff(client, django_user_model, "view_periodic", "change_periodic")
    assert client.post(page(row), {**GOOD, "arguments": '{"args": [2], "kwargs": {}}'}).status_code == 302
    assert json.loads(Periodic.objects.get().arguments)["args"] == [2]
    assert client.post(reverse(ADD), {**GOOD, "name": "other"}).status_code == 403
    assert client.post(page(row, "delete"), {"post": "yes"}).status_code == 403
    assert Periodic.objects.count() == 1


@pytest.mark.parametrize(("rights", "mask", "seen"), [("view", None, True), ("view", "all", False), ("change", "all", True)])
def test_whoever_may_only_look_sees_what_the_mask_leaves(
    client: Client, django_user_model: Any, settings: Any, rights: str, mask: str | None, seen: bool
) -> None:
    settings.WORKPOOL_ADMIN_MASK = mask
    schedule("nightly", functions.act, cron="30 1 * * *", args=["top secret"])
    staff(client, django_user_model, "view_periodic", f"{rights}_periodic")
    shown = client.get(page(Periodic.objects.get())).content.decode()
    assert ("30 1 * * *" in shown, "top secret" in shown, "(hidden)" in shown) == (True, seen, not seen)
    assert "top secret" not in client.get(reverse(LIST)).content.decode()
