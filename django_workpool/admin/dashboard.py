"""The dashboard: a page of the admin that shows without a reload what all pools do, and what it asks for every two seconds."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_GET

from .. import conf
from ..health import Unasked
from ..models import Globals, Work
from ..permissions import may_view
from . import overview
from .databases import address, shown_database

if TYPE_CHECKING:
    AnyModelAdmin = admin.ModelAdmin[Any]
else:
    AnyModelAdmin = admin.ModelAdmin

View = Callable[[HttpRequest], HttpResponse]

TITLE = "Workpool dashboard"


def urls(model_admin: AnyModelAdmin) -> list[URLPattern]:
    """Return the dashboard's addresses, to stand before those of a table's own pages: for staff who may view the pools, by GET only."""
    dashboard = _Dashboard(model_admin)

    def page(route: str, view: View, name: str) -> URLPattern:
        return path(route, model_admin.admin_site.admin_view(_guarded(view)), name=name)

    return [
        page("dashboard/", dashboard.page, "workpool_dashboard"),
        page("dashboard/data/", dashboard.data, "workpool_dashboard_data"),
        page("dashboard/waiting/", dashboard.waiting, "workpool_dashboard_waiting"),
    ]


def _guarded(view: View) -> View:
    @require_GET
    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        if not may_view(request.user, Globals):
            raise PermissionDenied
        return view(request)

    return guarded


class _Dashboard:
    """The pages."""

    def __init__(self, model_admin: AnyModelAdmin) -> None:
        self.site = model_admin.admin_site
        self.opts = model_admin.model._meta

    def page(self, request: HttpRequest) -> HttpResponse:
        """The page itself: it asks for all that it shows."""
        request.current_app = self.site.name
        aliases = conf.database_aliases()
        context = {
            **self.site.each_context(request),
            "title": TITLE,
            "opts": self.opts,
            "windows": list(overview.WINDOWS),
            "databases": aliases if len(aliases) > 1 else (),
            "database": shown_database(request),
            "may_view_work": may_view(request.user, Work),
        }
        return TemplateResponse(request, "admin/workpool/dashboard.html", context)

    def data(self, request: HttpRequest) -> HttpResponse:
        """What there is now, and what was done in a window, of one pool or of all."""
        window = request.GET.get("window", next(iter(overview.WINDOWS)))
        if window not in overview.WINDOWS:
            return _error(400, f"There is no window {window!r}: it is one of {', '.join(overview.WINDOWS)}.")
        return _answer(lambda: overview.data(shown_database(request), window, request.GET.get("pool") or None))

    def waiting(self, request: HttpRequest) -> HttpResponse:
        """The oldest works of a pool that wait, and why; for those who may view works."""
        if not may_view(request.user, Work):
            raise PermissionDenied
        using, pool = shown_database(request), request.GET.get("pool", "")
        return _answer(
            lambda: {
                "works": [{**one, "url": address(self.site.name, using, "work_change", one["id"])} for one in overview.waiting(using, pool)]
            }
        )


def _answer(ask: Callable[[], dict[str, Any]]) -> JsonResponse:
    try:
        return JsonResponse(ask())
    except overview.NoPool as error:
        return _error(404, str(error))
    except Unasked as error:
        return _error(503, str(error))
    except Error as error:
        return _error(503, f"The database cannot be asked: {' '.join(str(error).split())}")


def _error(status: int, text: str) -> JsonResponse:
    return JsonResponse({"error": text}, status=status)
