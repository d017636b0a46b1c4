"""A site whose users see its works."""

from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import include, path
from django.views.decorators.http import require_GET

#: Of pages: nothing inline may run, and nothing of others.
POLICY = "default-src 'self'"

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>works</title>{% load workpool %}{% workpool_media %}</head>
<body>{% for one in works %}<p>{% workpool_progress one pool=pool label=label stream=stream %}</p>{% endfor %}</body></html>"""


def page(request: HttpRequest, **context: Any) -> HttpResponse:
    """Show the works of a template's context."""
    response = HttpResponse(engines["django"].from_string(PAGE).render({"stream": None, **context}, request))
    response.headers["Content-Security-Policy"] = POLICY
    return response


@require_GET
def works(request: HttpRequest) -> HttpResponse:
    """Show the works of the query, with its label, and by a stream or not."""
    return page(
        request,
        works=[UUID(one) for one in request.GET.getlist("work")],
        pool=request.GET.get("pool", "default"),
        label=request.GET.get("label", ""),
        stream={"yes": True, "no": False}.get(request.GET.get("stream", "")),
    )


async def aworks(request: HttpRequest) -> HttpResponse:
    """Do the same in a coroutine."""
    return works(request)


urlpatterns = [path("works", works), path("aworks", aworks), path("work/", include("django_workpool.site.urls"))]
