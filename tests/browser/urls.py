"""The site that the browser visits: the project's, and a page that does what the tests have to notice."""

from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def icon(request: HttpRequest) -> HttpResponse:
    """Answer what each browser asks for: a missing one would be an error of the page."""
    return HttpResponse(status=204)


def hostile(request: HttpRequest) -> HttpResponse:
    """Break the policy, and load what is not there."""
    return HttpResponse("<!doctype html><title>hostile</title><script>window.__xss = 1</script><img src='/missing.png'>")


urlpatterns = [
    path("favicon.ico", icon),
    path("hostile/", hostile),
    path("site/", include("tests.works.site")),
    path("", include("testproject.urls")),
]
