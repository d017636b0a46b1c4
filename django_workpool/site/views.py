"""The two views behind a signed link: where a work is, and a stream of what changes."""

from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from .answers import answer
from .links import DeadLink, Link, read
from .streams import FINISHED, async_events, events_in_thread

STREAM = "text/event-stream"


def _link(text: str) -> Link:
    try:
        return read(text)
    except DeadLink:
        raise Http404 from None


@require_safe
@never_cache
def status(request: HttpRequest, text: str) -> HttpResponse:
    """Tell where a work is, as JSON: two statements at most."""
    return JsonResponse(answer(_link(text)))


@require_safe
@never_cache
def events(request: HttpRequest, text: str) -> HttpResponseBase:
    """Send an event whenever what ``status`` tells has changed, until the work has ended or a time is over; browsers then come again.

    Under ASGI nothing is held meanwhile but a coroutine and the thread that Django gives each request; under WSGI it is one of the
    server's threads, so that such a stream is short.
    """
    link = _link(text)
    if request.headers.get("Last-Event-ID") == FINISHED:
        # What a browser understands as: do not come again.
        return HttpResponse(status=204)
    response: HttpResponseBase
    if request.method == "HEAD":
        response = HttpResponse(content_type=STREAM)
    elif isinstance(request, ASGIRequest):
        response = StreamingHttpResponse(async_events(link), content_type=STREAM)
    else:
        response = StreamingHttpResponse(events_in_thread(link), content_type=STREAM)
    # Proxies that collect an answer before they pass it on.
    response.headers["X-Accel-Buffering"] = "no"
    return response
