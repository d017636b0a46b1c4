"""The admin's pages on a site of the project's own, and on one that leaves tables out."""

import re
from typing import Any
from urllib.parse import quote as quoted

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import clear_url_caches, path

from django_workpool.ids import new_work_id
from django_workpool.models import Archive, Batch, Globals, PendingStart, RunningWork, Work, Worker

from .test_admin import REGISTERED, finished, hostile_rows, page_of, waiting

#: It has no pages of these, to which the pages of others link.
LEFT_OUT = {"Worker", "Archive", "Batch", "Attempt", "RunningWork", "BatchFailure"}

own, few = admin.AdminSite(name="own"), admin.AdminSite(name="few")
for model, model_admin in list(admin.site._registry.items()):
    own.register(model, type(model_admin))
    if model.__name__ not in LEFT_OUT:
        few.register(model, type(model_admin))
urlpatterns = [path("admin/", admin.site.urls), path("own/", own.urls), path("few/", few.urls)]

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


def links(content: str) -> set[str]:
    return set(re.findall(r'(?:href|action|data-[a-z-]*url)="(/[^"?]*)', content))


def test_no_page_of_a_site_links_to_another_one(admin_client: Client) -> None:
    rows, found = hostile_rows(), set()
    pages = ["/own/workpool/", "/own/workpool/globals/dashboard/"]
    for row in rows:
        listed = f"/own/workpool/{row._meta.model_name}/"
        pages += [listed, f"{listed}{quote(row.pk)}/change/", f"{listed}{quote(row.pk)}/history/"]
    for page in pages:
        response = admin_client.get(page)
        assert response.status_code == 200, page
        found |= links(response.content.decode())
    for act in ("configure", "cancel_all"):
        pool = next(row for row in rows if isinstance(row, Globals)).pk
        response = admin_client.post(f"/own/workpool/globals/{quoted(quote(pool))}/act/{act}/")
        assert response.status_code == 200
        found |= links(response.content.decode())
    for name in ("work", "archive"):
        found.add(admin_client.get(f"/own/workpool/{name}/{new_work_id()}/change/")["Location"])
    ended = finished()
    found.add(admin_client.get(f"/own/workpool/work/{ended.pk}/change/")["Location"])
    assert {one for one in found if not one.startswith(("/own/", "/static/"))} <= {"/"} and len(found) > 20
    assert f"/own/workpool/archive/{ended.pk}/change/" in found


def test_a_table_without_pages_is_not_linked_to(admin_client: Client) -> None:
    rows = hostile_rows()
    clear_url_caches()
    for row in rows:
        if type(row).__name__ not in LEFT_OUT:
            listed = f"/few/workpool/{row._meta.model_name}/"
            for page in (listed, f"{listed}{quote(row.pk)}/change/"):
                response = admin_client.get(page)
                assert response.status_code == 200, page
                assert not any(f"/{name.lower()}/" in one for one in links(response.content.decode()) for name in LEFT_OUT)
    ended = finished()
    response = admin_client.get(f"/few/workpool/work/{ended.pk}/change/")
    assert response["Location"] == "/few/workpool/work/"
    assert {type(row) for row in rows} >= {Work, Worker, Archive, Batch, Globals, PendingStart, RunningWork}


@pytest.mark.parametrize("key", ["%00", "x%00y"])
def test_a_key_with_a_nul_names_no_row(admin_client: Client, key: str) -> None:
    waiting()
    for model in REGISTERED:
        listed = f"/admin/workpool/{model._meta.model_name}/"
        # What is no list of windows asks nothing by that name, and says so.
        assert admin_client.get(f"{listed}?past={key}", follow=True).status_code == 200, listed
        for page in ("change", "history"):
            answer: Any = admin_client.get(f"{listed}{key}/{page}/")
            assert answer.status_code == 302 and answer["Location"].startswith(listed), listed
        assert admin_client.post(f"{listed}{key}/act/pause/").status_code in (302, 403, 404)
    assert admin_client.get(page_of(Globals.objects.first())).status_code == 200
