"""The runnable project's app: files, the view, the pages, and what the pool runs."""

import os
import re
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_workpool.models import PendingStart, Work
from django_workpool.testing import run_work
from django_workpool.types import OnCompleteArgs, ResultKind, RunResult
from testproject.imports import files, intake
from testproject.imports.intake import take_in
from testproject.imports.models import FoundFile, Import, ImportedFile
from testproject.imports.progress import NEXT, progress
from testproject.imports.tasks import file_done

from .odd_files import ODD_NAMES, digest, expected, make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "in")


@pytest.mark.parametrize("name", [os.fsdecode(name) for name in ODD_NAMES] + ["plain", "a/b", "raw:/x", os.fsdecode(b"a/\xff%41")])
def test_a_path_becomes_text_that_utf8_carries_and_comes_back(name: str) -> None:
    text = files.to_text(name)

    assert text.encode().decode() == text
    assert files.from_text(text) == name


def test_a_path_that_is_utf8_stays_as_it_is() -> None:
    assert files.to_text("naïve ☃/100%") == "naïve ☃/100%"


def test_find_lists_regular_files_and_links_to_them_but_no_dot_folders_links_to_folders_or_pipes(folder: Path) -> None:
    found = files.find(str(folder))

    assert sorted(found.files) == sorted(expected(folder))
    assert found.unlisted == []


def test_find_raises_if_the_folder_itself_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.find(str(tmp_path / "gone"))


def test_find_names_folders_below_that_cannot_be_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if path.endswith("deeper"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)

    found = files.find(str(folder))

    assert found.unlisted == ["sub/deeper"]
    assert "sub/deeper/large.bin" not in found.files


def test_read_gives_sha256_size_and_lines(folder: Path) -> None:
    content = b"one\ntwo\nno end"
    (folder / "three").write_bytes(content)

    assert files.read(str(folder), "three") == {"path": "three", "sha256": digest(content), "size": len(content), "lines": 2}
    assert files.read(str(folder), "sub/deeper/large.bin")["lines"] == 500_000


@pytest.mark.parametrize("name", ["gone", "pipe", "sub"])
def test_read_raises_at_once_for_what_is_not_a_regular_file(folder: Path, name: str) -> None:
    with pytest.raises(OSError, match=name):
        files.read(str(folder), name)


def test_the_projects_own_sqlite_database_is_neither_found_nor_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("db", "db-wal", "db-shm", "db-other"):
        (tmp_path / name).touch()
    os.link(tmp_path / "db-shm", tmp_path / "hard-link")
    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "db"}}
    monkeypatch.setattr(files, "settings", SimpleNamespace(DATABASES=databases))

    assert files.find(str(tmp_path)).files == ["db-other"]
    with pytest.raises(files.OwnDatabase):
        files.read(str(tmp_path), "hard-link")


@pytest.mark.django_db
class TestView:
    """The page with the form, and what its POST does."""

    def test_get_shows_the_form(self, client: Client) -> None:
        response = client.get("/")

        assert response.status_code == 200
        assert b'name="folder"' in response.content

    def test_post_records_the_import_and_enqueues_one_work_a_file(self, client: Client, folder: Path) -> None:
        response = client.post("/", {"folder": str(folder)})

        made = Import.objects.get()
        assert response.status_code == 302
        assert response["Location"] == reverse("imports:detail", args=[made.pk])
        assert (made.folder, made.total, made.unlisted) == (str(folder), len(expected(folder)), 0)
        assert Work.objects.filter(pool="imports", func_path="testproject.imports.tasks.read_file").count() == made.total
        assert PendingStart.objects.count() == made.total
        assert {files.from_text(path) for path in made.found.values_list("path", flat=True)} == set(expected(folder))

    def test_post_needs_a_csrf_token(self, folder: Path) -> None:
        response = Client(enforce_csrf_checks=True).post("/", {"folder": str(folder)})

        assert response.status_code == 403
        assert not Import.objects.exists()

    @pytest.mark.parametrize(
        ("told", "error"),
        [
            ("", "This field is required."),
            ("/no/such/folder", "There is no folder /no/such/folder."),
            (__file__, f"{__file__} is not a folder."),
            ("nul\0byte", "Null characters are not allowed."),
            ("x" * 4097, "Ensure this value has at most 4096 characters (it has 4097)."),
            ("/" + "x" * 3000, f"There is no folder /{'x' * 3000}."),
        ],
    )
    def test_a_folder_that_cannot_be_taken_is_an_error_of_the_form(self, client: Client, told: str, error: str) -> None:
        page = client.post("/", {"folder": told})
        answer = client.post("/", {"folder": told}, headers={"accept": "application/json"})

        assert (page.status_code, answer.status_code) == (400, 400)
        assert answer.json() == {"errors": {"folder": [error]}}
        assert not Import.objects.exists()
        assert not Work.objects.exists()

    def test_nothing_is_left_if_enqueueing_fails(self, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: object) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr(FoundFile.objects, "bulk_create", refuse)
        with pytest.raises(RuntimeError):
            client.post("/", {"folder": str(folder)})

        assert not Import.objects.exists()
        assert not Work.objects.exists()

    def test_the_pages_escape_names_and_errors(self, client: Client, folder: Path) -> None:
        made = intake.take_in(str(folder))
        for found in made.found.all():
            file_done(done(found, RunResult(kind=ResultKind.FAILED, error="<b>error</b>")))

        page = client.get(reverse("imports:detail", args=[made.pk]))

        assert b"<script>alert" not in page.content
        assert b"&lt;script&gt;alert" in page.content
        assert b"&lt;b&gt;error" in page.content

    def test_the_detail_page_shows_counts_and_pages(self, client: Client, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("testproject.imports.views.PAGE_SIZE", 2)
        made = intake.take_in(str(folder))
        first, second, third = made.found.order_by("path")[:3]
        value = {"path": first.path, "sha256": "a" * 64, "size": 7, "lines": 1}
        file_done(done(first, RunResult(kind=ResultKind.SUCCESS, value=value)))
        file_done(done(second, RunResult(kind=ResultKind.FAILED, error="gone")))
        file_done(done(third, RunResult(kind=ResultKind.CANCELED, error="canceled")))

        address = reverse("imports:detail", args=[made.pk])
        content = client.get(address).content.decode()

        assert f"3 of {made.total} files" in content
        assert "1 succeeded, 0 retried, 2 failed" in content
        assert "Page 1 of 2" in content
        assert "Page 1 of 1" in client.get(address, {"failed": "1"}).content.decode()
        assert client.get(address, {"page": "none"}).status_code == 200
        assert client.get(reverse("imports:detail", args=[made.pk + 1])).status_code == 404

    @pytest.mark.parametrize("model", ["import", "importedfile"])
    def test_the_admin_shows_the_rows_and_changes_none(self, client: Client, folder: Path, model: str) -> None:
        client.force_login(User.objects.create_superuser("root"))
        made = intake.take_in(str(folder))
        file_done(done(made.found.all()[0], RunResult(kind=ResultKind.FAILED, error="gone")))
        row = Import.objects.get() if model == "import" else ImportedFile.objects.get()

        assert client.get(reverse(f"admin:imports_{model}_changelist")).status_code == 200
        change = reverse(f"admin:imports_{model}_change", args=[row.pk])
        assert client.get(change).status_code == 200
        assert client.post(change, {"folder": "x", "path": "x"}).status_code == 403
        assert client.get(reverse(f"admin:imports_{model}_add")).status_code == 403


def done(found: FoundFile, result: RunResult) -> OnCompleteArgs:
    return OnCompleteArgs(work_id=found.work_id, context=None, result=result)


@pytest.mark.django_db
def test_file_done_writes_the_row_of_its_file(folder: Path) -> None:
    made = intake.take_in(str(folder))
    found = made.found.get(path="sub/deeper/large.bin")

    file_done(done(found, RunResult(kind=ResultKind.SUCCESS, value=files.read(made.folder, found.path))))

    row = ImportedFile.objects.get()
    assert (row.parent, row.work_id, row.path, row.ok) == (made, found.work_id, found.path, True)
    assert (row.sha256, row.size, row.lines, row.error) == (digest(b"line\n" * 500_000), 2_500_000, 500_000, "")
    assert (progress(made).succeeded, progress(made).failed, progress(made).waiting) == (1, 0, made.total - 1)


@pytest.mark.django_db
def test_a_path_longer_than_an_index_takes_has_its_row() -> None:
    made = Import.objects.create(folder="/x", total=1)
    # Random, so that no database compresses it below its limit.
    path = os.urandom(2000).hex()
    found = FoundFile.objects.create(work_id=uuid.uuid4(), parent=made, path=path)

    file_done(done(found, RunResult(kind=ResultKind.FAILED, error="gone")))

    assert ImportedFile.objects.get().path == path


@pytest.mark.django_db
def test_the_detail_page_follows_the_files_that_are_not_read_yet(client: Client, folder: Path) -> None:
    made = take_in(str(folder))
    page = client.get(reverse("imports:detail", args=[made.pk])).content.decode()
    shown = re.findall(r'data-status="([^"]+)"', page)
    assert len(shown) == NEXT < made.total and "django_workpool/progress.js" in page
    assert client.get(shown[0]).json() == {"state": "pending", "kind": None, "progress": None}
    run_work("imports")
    page = client.get(reverse("imports:detail", args=[made.pk])).content.decode()
    assert "data-status" not in page and "progress.js" not in page


@pytest.mark.django_db
def test_reading_a_file_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 4)
    (tmp_path / "a").write_bytes(b"ten bytes!")
    (tmp_path / "b").write_bytes(b"")
    take_in(str(tmp_path))
    assert [one.progress for one in run_work("imports")] == [((4, 10), (8, 10), (10, 10)), ()]
