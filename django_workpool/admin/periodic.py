"""Periodic works in the admin: the one table that people edit there. What they enter is checked as ``schedule`` checks it."""

import json
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from .. import conf, functions, periodic
from ..exceptions import InvalidWork, WorkpoolError
from ..models import Periodic
from ..ticks import zone
from .databases import ShowsDatabase
from .shown import LOADED_MAX, shown

if TYPE_CHECKING:
    AnyModelForm = forms.ModelForm[Any]
else:
    AnyModelForm = forms.ModelForm

#: Ticks that the page of a periodic work shows.
SHOWN = 5


class PeriodicForm(AnyModelForm):
    """One periodic work. After ``is_valid`` its columns are in ``columns``."""

    class Meta:
        model = Periodic
        fields = ("name", "pool", "func_path", "arguments", "priority", "cron", "time_zone", "missed", "enabled")
        labels = {"func_path": "function"}
        help_texts = {
            "func_path": "The dotted path of a registered action, mutation or query.",
            "arguments": 'JSON: {"args": [...], "kwargs": {...}}.',
            "priority": "-100 to 100, higher first.",
            "cron": "Minute, hour, day of the month, month, day of the week; with six fields, seconds come first.",
            "missed": "What becomes of ticks that could not be enqueued within a minute.",
        }

    columns: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Whoever may only look is shown no fields.
        if "pool" in self.fields:
            names = sorted({*conf.pools(), *([self.instance.pool] if self.instance.pool else [])})
            self.fields["pool"] = forms.ChoiceField(choices=[(name, name) for name in names])

    def clean_func_path(self) -> str:
        """Refuse what is no registered function."""
        path = str(self.cleaned_data["func_path"])
        try:
            return functions.registered(path, functions.WORK_KINDS).path
        except WorkpoolError as error:
            raise ValidationError(str(error)) from error

    def clean_arguments(self) -> str:
        """Refuse what is no call, or what JSON cannot carry."""
        try:
            call = json.loads(self.cleaned_data["arguments"])
            if not isinstance(call, dict) or set(call) != {"args", "kwargs"}:
                raise InvalidWork('It must be an object with "args" and "kwargs".')
            return periodic.encode_arguments(call["args"], call["kwargs"])
        # A reader of JSON fails in more than one way, at what is too deep, for instance.
        except (ValueError, RecursionError) as error:
            raise ValidationError(str(error)) from error

    def clean_time_zone(self) -> str:
        """Refuse what is no time zone."""
        name = str(self.cleaned_data["time_zone"])
        try:
            zone(name)
        except InvalidWork as error:
            raise ValidationError(str(error)) from error
        return name

    def clean(self) -> dict[str, Any]:
        """Check what is left, as ``schedule`` does."""
        cleaned = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        call = json.loads(cleaned["arguments"])
        names = ("name", "cron", "pool", "time_zone", "missed", "priority", "enabled")
        try:
            self.columns = periodic.check(function=cleaned["func_path"], **call, **{name: cleaned[name] for name in names})
        except WorkpoolError as error:
            text = str(error)
            self.add_error("priority" if text.startswith("priority") else "name" if text.startswith("name") else "cron", text)
        return cleaned


class PeriodicAdmin(ShowsDatabase):
    """What is enqueued again and again: add, change, enable, disable, delete, as Django's permissions say."""

    form = PeriodicForm
    list_display = ("name", "pool", "func_path", "cron", "time_zone", "missed", "enabled", "next_tick", "last_tick", "error")
    list_filter = ("pool", "enabled")
    search_fields = ("name", "func_path")
    readonly_fields = ("shown_arguments", "next_ticks", "last_tick", "error")
    actions = ("enable", "disable")
    ordering = ("name",)
    show_full_result_count = False
    list_per_page = 50

    def get_fields(self, request: HttpRequest, obj: Periodic | None = None) -> Any:
        """Show whoever may only look what the mask leaves of the arguments; whoever edits them must see them."""
        edits = obj is None or self.has_change_permission(request, obj)
        arguments = "arguments" if edits else "shown_arguments"
        names = [arguments if name == "arguments" else name for name in PeriodicForm.Meta.fields]
        return [*names, *(name for name in self.readonly_fields if name != "shown_arguments")]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Begin with the project's own time zone."""
        from django.conf import settings

        return {"time_zone": settings.TIME_ZONE, **super().get_changeform_initial_data(request)}

    def save_model(self, request: HttpRequest, obj: Periodic, form: Any, change: bool) -> None:
        """Write the columns that were checked: the row's place in time is the leader's."""
        using, old = conf.database_alias(form.columns["pool"]), obj._state.db
        if change and old == using:
            periodic.change(using, form.columns, pk=obj.pk)
            return
        old_pk = obj.pk
        obj.pk, obj._state.db = periodic.create(using, form.columns).pk, using
        if change and old is not None:
            # The new pool is in another database, which has taken the row by now.
            periodic.remove(old, pk=old_pk)

    def delete_model(self, request: HttpRequest, obj: Periodic) -> None:
        """Delete one."""
        periodic.remove(obj._state.db or conf.database_alias(obj.pool), pk=obj.pk)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Periodic]) -> None:
        """Delete those chosen."""
        periodic.remove(queryset.db, pk__in=_ids(queryset))

    @admin.action(permissions=["change"], description="Enable the chosen")
    def enable(self, request: HttpRequest, queryset: QuerySet[Periodic]) -> None:
        """Enable those chosen."""
        self.message_user(request, f"{periodic.enable(queryset.db, _ids(queryset), enabled=True)} enabled.")

    @admin.action(permissions=["change"], description="Disable the chosen")
    def disable(self, request: HttpRequest, queryset: QuerySet[Periodic]) -> None:
        """Disable those chosen."""
        self.message_user(request, f"{periodic.enable(queryset.db, _ids(queryset), enabled=False)} disabled.")

    @admin.display(description="arguments")
    def shown_arguments(self, row: Periodic) -> SafeString | str:
        """The arguments, masked."""
        return shown(row.pool, row.func_path, "arguments", row.arguments[:LOADED_MAX], len(row.arguments))

    @admin.display(description="next tick", ordering="next_ms")
    def next_tick(self, row: Periodic) -> str:
        """The next tick that the leader knows."""
        return _shown(row, row.next_ms) if row.enabled and not row.error else "-"

    @admin.display(description="last tick", ordering="last_ms")
    def last_tick(self, row: Periodic) -> str:
        """The last tick that was enqueued."""
        return _shown(row, row.last_ms)

    @admin.display(description="next ticks")
    def next_ticks(self, row: Periodic) -> str:
        """The next ticks from now on, as far as they can be worked out here."""
        if not row.cron:
            return "-"
        try:
            times = periodic.next_times(row.cron, row.time_zone, SHOWN)
        except WorkpoolError as error:
            return str(error)
        return format_html_join("", "{}<br>", ((one.isoformat(sep=" "),) for one in times))


def _ids(queryset: QuerySet[Periodic]) -> list[int]:
    return list(queryset.values_list("pk", flat=True))


def _shown(row: Periodic, ms: int | None) -> str:
    if ms is None:
        return "-"
    try:
        return periodic.moment(ms, zone(row.time_zone)).isoformat(sep=" ")
    except (WorkpoolError, OverflowError, ValueError, OSError):
        return f"{ms} ms"


admin.site.register(Periodic, PeriodicAdmin)
