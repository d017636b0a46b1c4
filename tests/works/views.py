"""Views of a site under ASGI that enqueue."""

import time

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from django_workpool import Workpool, aenqueue, call, enqueue

from .models import Event
from .tasks import get_row, note


async def plain(request: HttpRequest, key: str) -> JsonResponse:
    """Enqueue, and look where it is."""
    work_id = await aenqueue(note, key)
    return JsonResponse({"id": work_id, "state": (await Workpool().astatus(work_id)).state})


async def with_row(request: HttpRequest, key: str) -> JsonResponse:
    """Insert a row and enqueue its reader, both or neither."""

    def both() -> str:
        with transaction.atomic():
            row = Event.objects.create(name="row", key=key, at=time.time())
            work_id = enqueue(get_row, row.pk)
            if key == "fails":
                raise ValueError("the view fails")
        return str(work_id)

    try:
        return JsonResponse({"id": await sync_to_async(both)()})
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=409)


async def twins(request: HttpRequest) -> JsonResponse:
    """Do all that can be done with works and pools."""
    pool = Workpool("imports")
    await pool.aconfigure(max_parallelism=0, log_level="INFO")
    first, *others = await pool.aenqueue_many(note, [call(str(number)) for number in range(3)])
    canceled = [await pool.acancel(first), await pool.acancel(first)]
    states = await pool.astatus_many([first, *others])
    await pool.acancel_all()
    return JsonResponse({"ids": [first, *others], "canceled": canceled, "states": [states[one].state for one in [first, *others]]})


urlpatterns = [path("plain/<key>", plain), path("row/<key>", with_row), path("twins", twins)]
