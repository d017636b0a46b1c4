"""The pools: how each of them is, and what an operator may change: its limit, its pause, its level of events."""

from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from .. import conf
from ..events import LEVELS
from ..models import Globals, InternalState, RunStatus
from ..permissions import may_cancel, may_configure
from ..pools import Workpool
from . import dashboard
from .acts import Act, perform, tell
from .base import Listed
from .filters import PoolFilter
from .shown import EMPTY, ago, link, moment, segment_moment
from .workers import looked


class ConfigureForm(forms.Form):
    """A pool's live configuration; what is left empty stays as it is."""

    max_parallelism = forms.IntegerField(
        label="Limit", required=False, min_value=0, max_value=conf.MAX_LIMIT, help_text="Works that may run at once; 0 pauses the pool."
    )
    log_level = forms.ChoiceField(label="Level of events", required=False, choices=[("", "as it is"), *((one, one) for one in LEVELS)])


def _asked(model_admin: Any, request: HttpRequest, row: Any, act: Act, **context: Any) -> TemplateResponse:
    """Return the page that asks before something is done."""
    meta = model_admin.model._meta
    request.current_app = model_admin.admin_site.name
    shown = {**model_admin.admin_site.each_context(request), "opts": meta, "title": act.label, "pool": row, "act": act, **context}
    return TemplateResponse(request, "admin/workpool/ask.html", {**shown, "back": model_admin.page_of(request, row.pk)})


def _ask_for_values(model_admin: Any, request: HttpRequest, row: Any) -> HttpResponse:
    confirmed = "confirm" in request.POST
    initial = {"max_parallelism": row.max_parallelism, "log_level": row.log_level}
    form = ConfigureForm(request.POST if confirmed else None, initial=initial)
    if not (confirmed and form.is_valid()):
        return _asked(model_admin, request, row, CONFIGURE, form=form)
    given = {name: value for name, value in form.cleaned_data.items() if value not in ("", None) and value != getattr(row, name)}
    told = ", ".join(f"{name} {value}" for name, value in given.items()) or "nothing"
    act = replace(CONFIGURE, done=f"Changed ({told})", do=lambda pool, _: bool(given) and _configure(pool, given))
    tell(model_admin, request, act, perform(model_admin, request, act, [row]))
    return HttpResponseRedirect(model_admin.page_of(request, row.pk))


def _configure(pool: str, given: dict[str, Any]) -> bool:
    Workpool(pool).configure(**given)
    return True


def _ask_to_cancel_all(model_admin: Any, request: HttpRequest, row: Any) -> HttpResponse | None:
    return None if "confirm" in request.POST else _asked(model_admin, request, row, CANCEL_ALL, warning=_CANCEL_ALL)


def _cancel_all(pool: str, _: Any) -> bool:
    Workpool(pool).cancel_all()
    return True


def _wake(pool: str, _: Any) -> bool:
    Workpool(pool).wake()
    return True


_CANCEL_ALL = "All works that this pool has now are canceled: none of them is started any more, those that run are told to stop."
CONFIGURE = Act(
    name="configure",
    label="Change limit or level of events",
    done="Changed",
    refused="there is nothing to change",
    allowed=may_configure,
    do=lambda pool, _: False,
    in_lists=False,
    ask=_ask_for_values,
)
PAUSE = Act(
    name="pause",
    label="Pause",
    done="Paused",
    refused="paused already",
    allowed=may_configure,
    do=lambda pool, _: Workpool(pool).pause(),
    fits=lambda row: row.max_parallelism > 0,
)
RESUME = Act(
    name="resume",
    label="Go on",
    done="Goes on",
    refused="not paused",
    allowed=may_configure,
    do=lambda pool, _: Workpool(pool).resume(),
    fits=lambda row: row.max_parallelism == 0,
)
WAKE = Act(
    name="wake",
    label="Wake the main loop",
    done="Woken",
    refused="not woken",
    allowed=may_configure,
    do=_wake,
)
CANCEL_ALL = Act(
    name="cancel_all",
    label="Cancel all works",
    done="Asked to cancel all works",
    refused="not canceled",
    allowed=may_cancel,
    do=_cancel_all,
    in_lists=False,
    ask=_ask_to_cancel_all,
)


class ByPool(Listed):
    """A table with a row for each pool."""

    ordering = ("pool",)

    def window(self, chosen: Any) -> tuple[tuple[str, ...], Any]:
        """By name."""
        return ("pool",), ()


@admin.register(Globals)
class GlobalsAdmin(ByPool):
    """Each pool's live configuration, and how it is."""

    list_display = ("pool", "limit", "state", "advice", "running", "waiting", "lag", "log_level")
    list_filter = (PoolFilter,)
    search_fields = ("pool",)
    search_help_text = "A part of a pool's name."
    text_fields = ("pool",)
    acts = (CONFIGURE, PAUSE, RESUME, WAKE, CANCEL_ALL)
    fields = ("pool", "limit", "log_level", "state", "advice", "running", "waiting", "lag", "works")

    def get_urls(self) -> list[URLPattern]:
        """Put the dashboard before them."""
        return [*dashboard.urls(self), *super().get_urls()]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read one, and how it is."""
        row = super().get_object(request, object_id, from_field)
        if row is not None and self.is_details(request):
            self.enrich(request, [row])
        return row

    def enrich(self, request: HttpRequest, rows: list[Any]) -> None:
        """Ask once how all of them are."""
        found = looked(self, request, [row.pool for row in rows]) if rows else None
        by_name = {one.pool: one for one in found.pools} if found else {}
        for row in rows:
            row.health, row.health_max = by_name.get(row.pool), found.count_max if found else 0

    @admin.display(description="limit", ordering="max_parallelism")
    def limit(self, row: Any) -> str:
        """Works that may run at once."""
        if row.max_parallelism:
            return str(row.max_parallelism)
        return "paused" if row.paused_limit is None else f"paused; goes on with {row.paused_limit}"

    @admin.display
    def state(self, row: Any) -> str:
        """Why due works do not start, if they do not."""
        if row.pool not in conf.pools():
            return "the settings do not name it any more"
        return EMPTY if row.health is None else str(row.health.reason)

    @admin.display
    def advice(self, row: Any) -> str:
        """What to do, or what to know."""
        return (row.health.advice if row.health is not None else "") or EMPTY

    @admin.display
    def running(self, row: Any) -> SafeString | str:
        """Works and callbacks that run."""
        return self._number(row, "running", state="running")

    @admin.display
    def waiting(self, row: Any) -> SafeString | str:
        """Works and callbacks that wait, whether they are due or not."""
        return self._number(row, "waiting")

    @admin.display(description="oldest due since")
    def lag(self, row: Any) -> str:
        """How long the oldest due work has been due."""
        return EMPTY if row.health is None or not row.health.lag_s else ago(row.health.lag_s)

    @admin.display
    def works(self, row: Any) -> SafeString:
        """Lists of its works."""
        using = row._state.db
        every: dict[str, str] = {}
        pages = (("work", every, "not ended"), ("archive", every, "finished"), ("archive", {"kind": "failed"}, "failed"))
        links = ((link(self.address(using, f"{page}_changelist", pool=row.pool, **query), text),) for page, query, text in pages)
        return format_html_join(", ", "{}", links)

    def _number(self, row: Any, name: str, **query: str) -> SafeString | str:
        if row.health is None:
            return EMPTY
        number, most = getattr(row.health, name), row.health_max
        text = f"{number:,}" + ("+" if number >= most else "")
        return link(self.address(row._state.db, "work_changelist", pool=row.pool, **query), text)


@admin.register(InternalState)
class InternalStateAdmin(ByPool):
    """Each pool's fence and counters."""

    list_display = ("pool", "generation", "completed", "succeeded", "failed", "retries", "canceled")


@admin.register(RunStatus)
class RunStatusAdmin(ByPool):
    """What the main loop does with each pool."""

    list_display = ("pool", "state", "saturated", "back_at", "generation")

    @admin.display(description="comes back at")
    def back_at(self, row: Any) -> str:
        """When the loop comes back by itself."""
        return moment(segment_moment(row.segment)) if row.state == "scheduled" else EMPTY
