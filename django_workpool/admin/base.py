"""What all pages of the pool's tables share: they show rows of one database, change none, and read a bounded number of them."""

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from ..ids import parse_work_id
from ..permissions import may_view
from ..serialization import clean
from .acts import Act, perform, tell
from .databases import ShowsDatabase, shown_database
from .filters import PastFilter, least_id
from .lists import WindowedList

#: Columns that may be large: neither lists nor pages load them as they are.
PAYLOADS = ("arguments", "on_complete_context", "value", "error", "callback_error", "traceback", "text", "functions")
#: Hexadecimal digits from which on a text may be the beginning of an identifier: they are its time, to the minute.
PREFIX_LEAST = 8
#: Times between which identifiers are taken to be made: 2020, and ten years from now.
_FIRST_MADE, _AHEAD = 1_577_836_800, 10 * 365 * 86_400
_HEX = frozenset("0123456789abcdef")


class ReadOnly(ShowsDatabase):
    """A list and a page of details, without a way to change a row by hand; what ``acts`` names may be done with rows."""

    show_full_result_count = False
    actions = ()
    list_per_page = 50
    list_filter: ClassVar[Any] = ()

    #: What may be done with rows, on lists and on their own pages.
    acts: Sequence[Act] = ()

    class Media:
        css = {"all": ("django_workpool/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Leave payloads out."""
        queryset = super().get_queryset(request)
        names = {field.name for field in self.model._meta.get_fields()}
        return queryset.defer(*(name for name in PAYLOADS if name in names))

    def is_details(self, request: HttpRequest) -> bool:
        """Return whether a page shows one row."""
        match = request.resolver_match
        return match is not None and (match.url_name or "").endswith("_change")

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Only the permission to view lets anybody see rows: that to change them has no meaning here."""
        return may_view(request.user, self.model)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds rows by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody changes rows by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes rows by hand."""
        return False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Read one; None also for a key that PostgreSQL does not even take as a text."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    # Acts ---------------------------------------------------------------------------------------------------------

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Offer the acts that the user may do, in lists: a row's own page has buttons. Django tells the place from 6.1 on."""
        if action_location is not None and action_location.name != "CHANGE_LIST":
            return {}
        offered = [act for act in self.acts if act.in_lists and act.allowed(request.user)]
        return {act.name: (_action(act), act.name, act.label) for act in offered}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Refuse an act that was not offered, where Django would only pass it over."""
        named = set(request.POST.getlist("action")) if request.method == "POST" else set()
        if any(act.name in named and not act.allowed(request.user) for act in self.acts):
            raise PermissionDenied
        return super().changelist_view(request, extra_context)

    def get_urls(self) -> list[URLPattern]:
        """Add the address to which the buttons of a row's page post."""
        info = self.model._meta.app_label, self.model._meta.model_name
        view = self.admin_site.admin_view(self.act_view)
        own = [path("<path:object_id>/act/<slug:act>/", view, name="{}_{}_act".format(*info))] if self.acts else []
        return [*own, *super().get_urls()]

    @method_decorator(require_POST)
    def act_view(self, request: HttpRequest, object_id: str, act: str) -> HttpResponse:
        """Do one act with one row: only by POST, with a token, for who may view the row and may do that."""
        chosen = next((one for one in self.acts if one.name == act), None)
        row = self.get_object(request, unquote(object_id))
        if chosen is None or not self.has_view_permission(request, row) or not chosen.allowed(request.user):
            raise PermissionDenied
        if row is None:
            return self.gone(request, unquote(object_id))
        answer = chosen.ask(self, request, row) if chosen.ask else None
        if answer is None:
            tell(self, request, chosen, perform(self, request, chosen, [row]))
        return answer or HttpResponseRedirect(self.page_of(request, object_id))

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Answer for a row that is not there, or not any more: with the list."""
        self.message_user(request, f"{clean(object_id, 100)} is not there any more.", messages.WARNING)
        return HttpResponseRedirect(self.address(shown_database(request), f"{self.model._meta.model_name}_changelist"))

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        return self.gone(request, unquote(object_id))

    def page_of(self, request: HttpRequest, object_id: str) -> str:
        """Return the address of a row's page, with what its list was filtered by."""
        meta = self.model._meta
        address = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[object_id], current_app=self.admin_site.name)
        return f"{address}?{request.GET.urlencode()}" if request.GET else address

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> HttpResponse:
        """Offer the acts that make sense for this row."""
        row, query = context["original"], request.GET.urlencode()
        offered = [act for act in self.acts if row is not None and act.allowed(request.user) and act.fits(row)]
        buttons = [(act, self._act_address(row, act) + (f"?{query}" if query else "")) for act in offered]
        return super().render_change_form(request, {**context, "buttons": buttons}, *args, **kwargs)

    def _act_address(self, row: Model, act: Act) -> str:
        meta = self.model._meta
        return reverse(f"admin:{meta.app_label}_{meta.model_name}_act", args=[quote(row.pk), act.name], current_app=self.admin_site.name)


class Listed(ReadOnly):
    """A table that may be large: see ``lists``."""

    ordering = ("-id",)
    sortable_by: ClassVar[Any] = ()
    #: Columns that a search by identifier compares: the first one also by its beginning, if it is one of works.
    id_fields: ClassVar[tuple[str, ...]] = ()
    #: Columns in which a search looks for a text.
    text_fields: tuple[str, ...] = ()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Show no more than a window."""
        return WindowedList

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Take the place where a list goes on."""
        return [*super().get_list_filter(request), PastFilter]

    def window(self, chosen: Mapping[str, str]) -> tuple[tuple[str, ...], Collection[str]]:
        """Return the columns by which a list is ordered, and the filters that an index serves together with that order."""
        return ("id",), ()

    def enrich(self, request: HttpRequest, rows: list[Any]) -> None:  # noqa: B027 - most have nothing to add
        """Read what the columns of a page show from other tables, for all its rows at once."""

    def by_id(self, queryset: QuerySet[Any], text: str) -> QuerySet[Any] | None:
        """Return the rows that an identifier, or the beginning of one, names; None if the text is none of both."""
        digits = text.strip().lower().replace("-", "")
        whole = parse_work_id(text.strip())
        if whole is not None:
            wanted = Q()
            for name in self.id_fields:
                wanted |= Q(**{name: whole})
            return queryset.filter(wanted) if self.id_fields else None
        if not self.id_fields or not PREFIX_LEAST <= len(digits) < 32 or not set(digits) <= _HEX:
            return None
        first, last = uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f"))
        if not least_id(_FIRST_MADE) <= first < least_id(time.time() + _AHEAD):
            return None
        return queryset.filter(**{f"{self.id_fields[0]}__gte": first, f"{self.id_fields[0]}__lte": last})

    def by_text(self, queryset: QuerySet[Any], text: str) -> QuerySet[Any]:
        """Return the rows in which a text occurs."""
        wanted = Q()
        for name in self.text_fields:
            wanted |= Q(**{f"{name}__icontains": text.strip()})
        return queryset.filter(wanted) if self.text_fields else queryset.none()


def _action(act: Act) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]:
    def run(model_admin: ReadOnly, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        tell(model_admin, request, act, perform(model_admin, request, act, queryset))
        return None

    return run
