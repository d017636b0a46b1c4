"""Imports and their files in the admin: to look at."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from .models import Import, ImportedFile

if TYPE_CHECKING:
    ImportBase = admin.ModelAdmin[Import]
    FileBase = admin.ModelAdmin[ImportedFile]
else:
    ImportBase = FileBase = admin.ModelAdmin


class ReadOnly:
    """No adding, changing or deleting."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say no."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say no."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say no."""
        return False


@admin.register(Import)
class ImportAdmin(ReadOnly, ImportBase):
    """The imports, newest first."""

    list_display = ("folder", "created", "total", "unlisted")
    search_fields = ("folder",)


@admin.register(ImportedFile)
class ImportedFileAdmin(ReadOnly, FileBase):
    """The files, newest first."""

    list_display = ("path", "parent", "ok", "size", "lines", "sha256", "error")
    list_filter = ("ok",)
    list_select_related = ("parent",)
    search_fields = ("path", "sha256", "error")
    ordering = ("-id",)
    show_full_result_count = False
