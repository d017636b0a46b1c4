"""Template tags: a progress bar that follows a work, and the files that make it do so."""

from datetime import timedelta
from typing import Any

from django import template
from django.core.handlers.asgi import ASGIRequest
from django.template import Context
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..site.answers import told
from ..site.links import WEEK, sign
from ..types import Status

register = template.Library()


@register.simple_tag
def workpool_media() -> SafeString:
    """Return the style sheet and the script; once for a page, in its head."""
    return format_html(
        '<link rel="stylesheet" href="{}"><script src="{}" defer></script>',
        static("django_workpool/progress.css"),
        static("django_workpool/progress.js"),
    )


@register.inclusion_tag("django_workpool/progress.html", takes_context=True)
def workpool_progress(
    context: Context,
    work_id: object,
    pool: str = "default",
    *,
    label: str = "",
    status: Status | None = None,
    max_age: timedelta | None = WEEK,
    stream: bool | None = None,
) -> dict[str, Any]:
    """Show how far a work is, and go on showing it. Asks the database nothing: the browser does.

    Args:
        context: The template's.
        work_id: The id of the work.
        pool: Its pool.
        label: What the work is, for people.
        status: What ``Workpool.status`` has told of it, to be shown before the browser has asked.
        max_age: How long the page may ask.
        stream: Whether it listens to events, else it asks every other second; if it is left out, where the page comes by ASGI.
    """
    text = sign(work_id, pool, max_age=max_age)
    if stream is None:
        stream = isinstance(context.get("request"), ASGIRequest)
    found = None if status is None else told(status)
    fraction = None
    if found is not None and found["progress"]:
        fraction = found["progress"]["fraction"]
    elif found is not None and found["state"] == "finished":
        fraction = 1.0 if found["kind"] in ("success", None) else 0.0
    return {
        "label": label,
        "status_url": reverse("workpool:status", args=[text]),
        "events_url": reverse("workpool:events", args=[text]) if stream else "",
        "state": "" if found is None else found["kind"] or found["state"],
        "value": None if fraction is None else f"{fraction:.4f}",
        "percent": f"{int(fraction * 100)} %" if found is not None and found["progress"] and fraction is not None else "",
    }
