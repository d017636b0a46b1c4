"""What may be done from the admin: by whom, with what effect, noted in its log; by nobody else, and never by a GET."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_workpool import Workpool
from django_workpool.admin import acts
from django_workpool.ids import new_work_id
from django_workpool.models import Archive, Globals, PendingCancelation, PendingStart, Work

from .works import tasks

pytestmark = pytest.mark.django_db

VIEWS = ("view_work", "view_archive", "view_globals", "view_batch")
Log = list[tuple[str, str, str]]


@pytest.fixture
def login(client: Client) -> Callable[..., Client]:
    """Return a function that logs a member of the staff in who may view all, and has the given permissions."""

    def make(*codenames: str) -> Client:
        user = User.objects.create_user(f"staff{User.objects.count()}", password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="workpool", codename__in=[*VIEWS, *codenames]))
        client.force_login(user)
        return client

    return make


def finished(kind: str = "failed", **columns: Any) -> Archive:
    now = timezone.now()
    row = {
        "id": new_work_id(), "pool": "default", "fn_type": "action", "func_path": "tests.works.tasks.note", "name": "finished",
        "priority": 0, "arguments": '{"args": ["again"], "kwargs": {}}', "attempts": 1, "kind": kind,
        "created": now, "started": now, "finished": now,
    }  # fmt: skip
    return Archive.objects.create(**{**row, **columns})


def pool_row(name: str = "default", limit: int = 10) -> Globals:
    return Globals.objects.update_or_create(pool=name, defaults={"max_parallelism": limit, "paused_limit": None})[0]


def address(page: str, *args: object) -> str:
    return reverse(f"admin:workpool_{page}", args=[str(one) for one in args])


def button(model: str, pk: object, act: str) -> str:
    return address(f"{model}_act", pk, act)


def do(client: Client, model: str, act: str, *pks: object, **data: Any) -> str:
    """Post an act from a list; return what the user was told."""
    response = client.post(address(f"{model}_changelist"), {"action": act, "index": 0, "_selected_action": [str(pk) for pk in pks], **data})
    assert response.status_code == 302
    return told(response)


def told(response: Any) -> str:
    return str(list(get_messages(response.wsgi_request))[-1])


def log() -> Log:
    return [
        (entry.content_type.model, entry.object_id, entry.change_message)
        for entry in LogEntry.objects.select_related("content_type").order_by("id")
        if entry.content_type is not None
    ]


# Works --------------------------------------------------------------------------------------------------------------


def test_the_chosen_are_canceled_and_noted(login: Callable[..., Client]) -> None:
    first, second, third = (Workpool().enqueue(tasks.note, key) for key in "abc")
    client = login("cancel_work")
    assert do(client, "work", "cancel", first, second) == "Asked to cancel: 2."
    assert set(PendingCancelation.objects.values_list("work_id", flat=True)) == {first, second}
    assert sorted(log()) == sorted(("work", str(one), "Asked to cancel") for one in (first, second))
    assert do(client, "work", "cancel", first, third) == "Asked to cancel: 1. 1 not: ended, or being canceled already."
    assert len(log()) == 3 and LogEntry.objects.latest("id").object_repr == f"tests.works.tasks.note ({third})"


def test_the_button_of_a_work_cancels_it(login: Callable[..., Client]) -> None:
    work_id = Workpool().enqueue(tasks.note, "a")
    client = login("cancel_work")
    page = client.get(address("work_change", work_id)).content.decode()
    assert button("work", work_id, "cancel") in page and button("work", work_id, "run_now") not in page
    response = client.post(button("work", work_id, "cancel"))
    assert (response.status_code, response["Location"]) == (302, address("work_change", work_id))
    assert PendingCancelation.objects.get().work_id == work_id
    assert log() == [("work", str(work_id), "Asked to cancel")]
    # What is being canceled cannot be canceled again.
    assert button("work", work_id, "cancel") not in client.get(address("work_change", work_id)).content.decode()


def test_what_is_due_later_runs_now(login: Callable[..., Client]) -> None:
    work_id = Workpool().using(delay=timedelta(hours=1)).enqueue(tasks.note, "later")
    before = PendingStart.objects.get().segment
    client = login("retry_work")
    assert do(client, "work", "run_now", work_id) == "Due now: 1."
    assert PendingStart.objects.get().segment < before - 30_000
    assert log() == [("work", str(work_id), "Due now")]
    assert client.post(button("work", work_id, "run_now")).status_code == 302


def test_failed_works_run_again_and_others_do_not(login: Callable[..., Client]) -> None:
    failed, canceled, success = finished(), finished("canceled"), finished("success")
    client = login("retry_work")
    assert do(client, "archive", "retry", failed.pk, canceled.pk, success.pk).startswith("Enqueued again: 2. 1 not: succeeded")
    assert set(Work.objects.values_list("id", flat=True)) == {failed.pk, canceled.pk}
    assert list(Archive.objects.values_list("id", flat=True)) == [success.pk]
    assert {one[1:] for one in log()} == {(str(failed.pk), "Enqueued again"), (str(canceled.pk), "Enqueued again")}
    # The page of what runs again leads to where it is now.
    assert client.get(address("archive_change", failed.pk))["Location"] == address("work_change", failed.pk)
    assert client.get(address("work_change", success.pk))["Location"] == address("archive_change", success.pk)


def test_the_button_of_a_finished_work_lets_it_run_again(login: Callable[..., Client]) -> None:
    failed, success = finished(), finished("success")
    client = login("retry_work")
    assert button("archive", failed.pk, "retry") in client.get(address("archive_change", failed.pk)).content.decode()
    assert button("archive", success.pk, "retry") not in client.get(address("archive_change", success.pk)).content.decode()
    client.post(button("archive", failed.pk, "retry"))
    assert Work.objects.get().pk == failed.pk
    assert log() == [("archive", str(failed.pk), "Enqueued again")]


def test_a_callback_that_is_exhausted_is_called_again(login: Callable[..., Client]) -> None:
    ended = finished("success", on_complete="tests.works.tasks.ended", callback="failed", callback_error="it broke")
    callback = finished("failed", fn_type="callback", func_path="tests.works.tasks.ended", callback_of=ended.pk, retry="")
    client = login("retry_work")
    page = client.get(address("archive_change", ended.pk)).content.decode()
    assert address("archive_change", callback.pk) in page and "it broke" in page
    assert do(client, "archive", "retry_callback", ended.pk) == "Callbacks enqueued again: 1."
    assert Work.objects.get().pk == callback.pk
    assert log() == [("archive", str(ended.pk), "Callbacks enqueued again")]


def test_all_pages_are_acted_on_in_portions_and_the_answer_tells_how_many(
    login: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acts, "CHUNK", 7)
    monkeypatch.setattr(acts, "ROWS_MAX", 20)
    ids = [finished().pk for _ in range(25)]
    client = login("retry_work")
    said = do(client, "archive", "retry", ids[0], select_across=1)
    assert said == "Enqueued again: 20. There are more that were not tried: do it again for them."
    assert (Work.objects.count(), Archive.objects.count(), LogEntry.objects.count()) == (20, 5, 20)
    assert do(client, "archive", "retry", ids[0], select_across=1) == "Enqueued again: 5."
    assert Archive.objects.count() == 0


def test_all_pages_are_those_of_the_filter(login: Callable[..., Client]) -> None:
    kept, wanted = finished("failed"), finished("canceled")
    client = login("retry_work")
    page = address("archive_changelist") + "?kind=canceled"
    client.post(page, {"action": "retry", "index": 0, "_selected_action": [str(wanted.pk)], "select_across": 1})
    assert (Work.objects.get().pk, Archive.objects.get().pk) == (wanted.pk, kept.pk)


def test_what_takes_too_long_is_left(login: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "SECONDS_MAX", -1.0)
    work_id = Workpool().enqueue(tasks.note, "a")
    said = do(login("cancel_work"), "work", "cancel", work_id)
    assert said == "Asked to cancel: 0. There are more that were not tried: do it again for them."
    assert not PendingCancelation.objects.exists() and log() == []


def test_a_pool_that_the_settings_do_not_name_any_more_is_told_of(login: Callable[..., Client]) -> None:
    work_id = Workpool().enqueue(tasks.note, "a")
    Work.objects.update(pool="gone")
    gone = pool_row("gone")
    client = login("cancel_work", "configure_pool")
    assert "the settings do not name the pool 'gone' any more" in do(client, "work", "cancel", work_id)
    assert client.get(address("work_change", work_id)).status_code == 200
    assert "the settings do not name it any more" in client.get(address("globals_change", gone.pk)).content.decode()
    said = told(client.post(button("globals", "gone", "pause")))
    assert said == "Paused: 0. 1 not: the settings do not name the pool 'gone' any more."
    assert log() == [] and Globals.objects.get(pool="gone").paused_limit is None


# Pools --------------------------------------------------------------------------------------------------------------


def test_a_pool_is_paused_and_goes_on(login: Callable[..., Client]) -> None:
    pool_row(limit=7)
    client = login("configure_pool")
    assert do(client, "globals", "pause", "default") == "Paused: 1."
    row = Globals.objects.get(pool="default")
    assert (row.max_parallelism, row.paused_limit) == (0, 7)
    assert "paused; goes on with 7" in client.get(address("globals_change", "default")).content.decode()
    assert told(client.post(button("globals", "default", "resume"))) == "Goes on: 1."
    assert Globals.objects.get(pool="default").max_parallelism == 7
    assert told(client.post(button("globals", "default", "wake"))) == "Woken: 1."
    assert log() == [("globals", "default", text) for text in ("Paused", "Goes on", "Woken")]


def test_limit_and_level_are_asked_for_and_changed(login: Callable[..., Client]) -> None:
    pool_row(limit=7)
    client, page = login("configure_pool"), button("globals", "default", "configure")
    asked = client.post(page)
    assert asked.status_code == 200 and 'value="7"' in asked.content.decode() and log() == []
    wrong = client.post(page, {"confirm": 1, "max_parallelism": "-1", "log_level": "LOUD"})
    assert wrong.status_code == 200 and set(wrong.context["form"].errors) == {"max_parallelism", "log_level"}
    assert Globals.objects.get(pool="default").max_parallelism == 7
    said = told(client.post(page, {"confirm": 1, "max_parallelism": "12", "log_level": "DEBUG"}))
    row = Globals.objects.get(pool="default")
    assert (row.max_parallelism, row.log_level) == (12, "DEBUG")
    assert said == "Changed (max_parallelism 12, log_level DEBUG): 1."
    assert log() == [("globals", "default", "Changed (max_parallelism 12, log_level DEBUG)")]
    assert "there is nothing to change" in told(client.post(page, {"confirm": 1, "max_parallelism": "12"}))


def test_all_works_of_a_pool_are_canceled_after_a_question(login: Callable[..., Client]) -> None:
    pool_row()
    client, page = login("cancel_work"), button("globals", "default", "cancel_all")
    asked = client.post(page)
    assert asked.status_code == 200 and "All works that this pool has now are canceled" in asked.content.decode()
    assert not PendingCancelation.objects.exists() and log() == []
    assert told(client.post(page, {"confirm": 1})) == "Asked to cancel all works: 1."
    assert PendingCancelation.objects.get().created_up_to is not None
    assert log() == [("globals", "default", "Asked to cancel all works")]


def test_a_batch_is_canceled(login: Callable[..., Client]) -> None:
    with Workpool().batch(name="mine") as filled:
        filled.enqueue(tasks.note, "a")
    client = login("cancel_work")
    assert "1 unfinished" in client.get(address("batch_change", filled.id)).content.decode()
    assert told(client.post(button("batch", filled.id, "cancel_batch"))) == "Asked to cancel the works of batches: 1."
    assert PendingCancelation.objects.count() == 1
    assert log() == [("batch", str(filled.id), "Asked to cancel the works of batches")]


# Who may do what ----------------------------------------------------------------------------------------------------

#: Each act: the table of its rows, the permission it takes.
ACTS = {
    "cancel": ("work", "cancel_work"),
    "run_now": ("work", "retry_work"),
    "retry": ("archive", "retry_work"),
    "retry_callback": ("archive", "retry_work"),
    "cancel_batch": ("batch", "cancel_work"),
    "configure": ("globals", "configure_pool"),
    "pause": ("globals", "configure_pool"),
    "resume": ("globals", "configure_pool"),
    "wake": ("globals", "configure_pool"),
    "cancel_all": ("globals", "cancel_work"),
}
OFFERED_IN_LISTS = set(ACTS) - {"configure", "cancel_all"}


@pytest.fixture
def rows() -> dict[str, object]:
    """Return the key of a row of each table."""
    with Workpool().batch() as filled:
        work_id = filled.enqueue(tasks.note, "a")
    return {"work": work_id, "archive": finished().pk, "globals": pool_row().pk, "batch": filled.id}


def state() -> list[list[Any]]:
    models = (Work, PendingStart, PendingCancelation, Archive, Globals, LogEntry)
    return [list(model._default_manager.order_by("pk").values()) for model in models]


def test_each_act_is_known() -> None:
    from django.contrib import admin

    known = {act.name: site.model._meta.model_name for site in admin.site._registry.values() for act in getattr(site, "acts", ())}
    known["retry_callback"] = "archive"
    assert known == {name: model for name, (model, _) in ACTS.items()}


@pytest.mark.parametrize("act", ACTS)
def test_an_act_takes_its_permission(login: Callable[..., Client], rows: dict[str, object], act: str) -> None:
    """Without it nothing is offered, and whoever posts it all the same is refused; with it alone the page of the row is needed, too."""
    model, permission = ACTS[act]
    others = {one for _, one in ACTS.values()} - {permission}
    client, before = login(*others), state()
    listed, pk = address(f"{model}_changelist"), rows[model]
    assert f'value="{act}"' not in client.get(listed).content.decode()
    assert button(model, pk, act) not in client.get(address(f"{model}_change", pk)).content.decode()
    posted = {"action": act, "index": 0, "_selected_action": [str(pk)]}
    assert client.post(listed, posted).status_code == 403
    assert client.post(button(model, pk, act), {"confirm": 1}).status_code == 403
    assert state() == before
    client = login(permission)
    assert (f'value="{act}"' in client.get(listed).content.decode()) == (act in OFFERED_IN_LISTS)
    User.objects.latest("id").user_permissions.remove(*Permission.objects.filter(codename__startswith="view_"))
    assert client.post(button(model, pk, act), {"confirm": 1}).status_code == 403
    assert client.post(listed, posted).status_code == 403
    assert state() == before


@pytest.mark.parametrize("act", ACTS)
def test_only_a_post_with_a_token_does_anything(admin_user: User, client: Client, rows: dict[str, object], act: str) -> None:
    model, _ = ACTS[act]
    page, before = button(model, rows[model], act), state()
    assert client.post(page, {"confirm": 1})["Location"].startswith(reverse("admin:login"))
    client.force_login(admin_user)
    assert {client.get(page).status_code, client.head(page).status_code, client.put(page).status_code} == {405}
    listed = address(f"{model}_changelist")
    client.get(listed, {"action": act, "_selected_action": str(rows[model]), "index": 0})
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    assert strict.post(page, {"confirm": 1}).status_code == 403
    assert strict.post(listed, {"action": act, "index": 0, "_selected_action": [str(rows[model])]}).status_code == 403
    assert state() == before


def test_an_act_that_is_none_and_a_row_that_is_none(admin_client: Client, rows: dict[str, object]) -> None:
    assert admin_client.post(button("work", rows["work"], "drop")).status_code == 403
    for odd in (uuid.uuid4(), "x", "9" * 40):
        assert admin_client.post(button("work", odd, "cancel")).status_code == 302
    assert log() == []
