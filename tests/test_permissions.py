"""Who may do what: permissions of the pool's own, and the pages of the admin, which ask for that to view and for nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.test import Client
from django.urls import reverse

from django_workpool import permissions

from .test_admin import REGISTERED, a_row

pytestmark = pytest.mark.django_db

MAY = {"cancel_work": permissions.may_cancel, "retry_work": permissions.may_retry, "configure_pool": permissions.may_configure}
Staff = Callable[..., User]


@pytest.fixture
def staff() -> Staff:
    """Return a function that makes a member of the staff who has the given permissions, and no others."""

    def make(*codenames: str, **fields: Any) -> User:
        user = User.objects.create_user(f"staff{User.objects.count()}", password="x", is_staff=True, **fields)
        found = Permission.objects.filter(content_type__app_label="workpool", codename__in=codenames)
        assert found.count() == len(codenames)
        user.user_permissions.set(found)
        return user

    return make


@pytest.mark.parametrize("codename", MAY)
def test_each_permission_allows_one_thing(staff: Staff, codename: str) -> None:
    user = staff(codename)
    assert {name for name, may in MAY.items() if may(user)} == {codename}
    assert not any(permissions.may_view(user, model) for model in REGISTERED)
    away = staff(codename, is_active=False)
    assert not any(may(away) for may in MAY.values())


def test_superusers_may_do_all_and_anonymous_ones_nothing(admin_user: User) -> None:
    nobody = AnonymousUser()
    assert [(may(admin_user), may(nobody)) for may in MAY.values()] == [(True, False)] * 3
    assert [(permissions.may_view(admin_user, model), permissions.may_view(nobody, model)) for model in REGISTERED] == [
        (True, False)
    ] * len(REGISTERED)


def test_the_permissions_to_change_tables_allow_none_of_it(staff: Staff) -> None:
    user = staff("view_work", "add_work", "change_work", "delete_work", "view_globals", "change_globals")
    assert not any(may(user) for may in MAY.values())


def pages(model: Any) -> list[str]:
    """Return a table's pages that only show something."""
    name, row = f"admin:workpool_{model._meta.model_name}", a_row(model)
    return [reverse(f"{name}_changelist"), reverse(f"{name}_change", args=[row.pk]), reverse(f"{name}_history", args=[row.pk])]


@pytest.mark.parametrize("model", REGISTERED, ids=lambda model: model.__name__)
def test_a_page_opens_for_who_may_view_its_table_and_for_nobody_else(staff: Staff, client: Client, model: Any) -> None:
    own = f"view_{model._meta.model_name}"
    others = [f"view_{other._meta.model_name}" for other in REGISTERED if other is not model]
    changes = [f"{act}_{model._meta.model_name}" for act in ("add", "change", "delete")]
    opened = {}
    for who, codenames in {"viewer": [own], "changer": changes, "operator": list(MAY), "of others": others, "nobody": []}.items():
        client.force_login(staff(*codenames))
        opened[who] = [client.get(page).status_code for page in pages(model)]
    assert opened == {"viewer": [200] * 3} | dict.fromkeys(("changer", "operator", "of others", "nobody"), [403] * 3)


@pytest.mark.parametrize("model", REGISTERED, ids=lambda model: model.__name__)
def test_whoever_may_only_view_can_change_nothing(staff: Staff, client: Client, model: Any) -> None:
    """Not with all permissions of the table either: rows belong to the rooms that write them."""
    client.force_login(staff(*[f"{act}_{model._meta.model_name}" for act in ("view", "add", "change", "delete")]))
    row, name = a_row(model), f"admin:workpool_{model._meta.model_name}"
    before = model.objects.filter(pk=row.pk).values().get()
    listed = reverse(f"{name}_changelist")
    assert b'name="action"' not in client.get(listed).content
    selected = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}
    posts = {reverse(f"{name}_add"): {}, reverse(f"{name}_change", args=[row.pk]): {}, reverse(f"{name}_delete", args=[row.pk]): {}}
    assert {client.post(page, {**data, "post": "yes"}).status_code for page, data in posts.items()} == {403}
    client.post(listed, selected)
    assert model.objects.filter(pk=row.pk).values().get() == before


def test_the_index_of_the_admin_names_what_one_may_view(staff: Staff, client: Client) -> None:
    client.force_login(staff("view_archive", "cancel_work"))
    (app,) = [app for app in client.get(reverse("admin:index")).context["app_list"] if app["app_label"] == "workpool"]
    assert [model["object_name"] for model in app["models"]] == ["Archive"]


def test_the_permissions_are_made_by_migrate_under_the_label_of_the_app() -> None:
    made = set(Permission.objects.filter(content_type__app_label="workpool", codename__in=MAY).values_list("codename", flat=True))
    assert made == set(MAY)
    assert all(admin.site.is_registered(model) for model in REGISTERED) and apps.get_app_config("workpool").label == "workpool"
