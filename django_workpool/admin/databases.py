"""Which database the admin's pages show, where pools are in several."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from .. import conf
from ..models import Work

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin


def shown_database(request: HttpRequest) -> str:
    """Return the database whose rows a page shows: what the list's filter says, else where the router writes if pools are there."""
    chosen = request.GET.get(DatabaseFilter.parameter_name)
    if chosen is None:
        # A page of details keeps what its list was filtered by.
        kept = parse_qs(request.GET.get("_changelist_filters", ""))
        chosen = kept.get(DatabaseFilter.parameter_name, [""])[0]
    return chosen if chosen in conf.database_aliases() else _home()


def _home() -> str:
    home, aliases = conf.database_alias(), conf.database_aliases()
    return home if home in aliases else aliases[0]


def address(site: str, using: str, name: str, *args: object, **query: object) -> str:
    """Return an address of the admin that shows the same database; empty where the site has no such page.

    Args:
        site: The name of the admin's site: a project may have one of its own, or leave tables out of it.
        using: The database's alias.
        name: What stands behind ``admin:workpool_``.
        *args: The row's key, for a page of details.
        **query: What a list is filtered by.
    """
    try:
        found = reverse(f"admin:{Work._meta.app_label}_{name}", args=[quote(str(one)) for one in args], current_app=site)
    except NoReverseMatch:
        return ""
    if len(conf.database_aliases()) > 1:
        query = {"_changelist_filters": urlencode({"database": using})} if args else {"database": using, **query}
    return f"{found}?{urlencode(query)}" if query else found


class DatabaseFilter(admin.SimpleListFilter):
    """Chooses the database whose rows are shown, where pools are in several."""

    title = "database"
    parameter_name = "database"

    def lookups(self, request: HttpRequest, model_admin: AnyModelAdmin) -> list[tuple[str, str]]:
        """Return the databases that hold pools."""
        return [(alias, alias) for alias in conf.database_aliases()]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield them: there is no list of all."""
        shown = self.value() or _home()
        for alias, _ in self.lookup_choices:
            yield {"selected": alias == shown, "query_string": changelist.get_query_string({"database": alias}), "display": alias}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return it as it is: its rows are of that database already."""
        return queryset


class ShowsDatabase(AnyModelAdmin):
    """Shows the rows of one database of pools: of the chosen one, where there is a choice."""

    def address(self, using: str, name: str, *args: object, **query: object) -> str:
        """Return an address of this site that shows the same database: see the function of this name."""
        return address(self.admin_site.name, using, name, *args, **query)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Name the database: a router may send reads to a replica that is late."""
        return super().get_queryset(request).using(shown_database(request))

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Offer the databases."""
        own = super().get_list_filter(request)
        return [DatabaseFilter, *own] if len(conf.database_aliases()) > 1 else own
