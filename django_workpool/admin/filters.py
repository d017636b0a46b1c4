"""What lists are narrowed by. No filter reads a table of works to find out what it could offer."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from .. import conf
from ..ids import parse_work_id
from ..models import Globals
from ..types import CallbackState, FnType, Lane, ResultKind
from .databases import AnyModelAdmin, shown_database

#: Spans of the filters by time, as they stand in addresses.
SPANS = {
    "15m": ("last 15 minutes", timedelta(minutes=15)),
    "1h": ("last hour", timedelta(hours=1)),
    "24h": ("last 24 hours", timedelta(hours=24)),
    "7d": ("last 7 days", timedelta(days=7)),
}


def pool_names(using: str) -> list[str]:
    """Return the pools of a database: those of the settings, and those that have been there before."""
    return sorted({*conf.pools_in(using), *Globals.objects.using(using).values_list("pool", flat=True)})


def least_id(seconds: float) -> uuid.UUID:
    """Return the least identifier that can have been made at a time (seconds since 1970)."""
    return uuid.UUID(int=max(0, int(seconds * 1000)) << 80)


class Narrowing(admin.SimpleListFilter):
    """A filter of a fixed choice. A value that it does not offer matches nothing."""

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows that fit a value it offers."""
        return queryset.filter(**{self.parameter_name or "": value})

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that fit what is chosen."""
        value = self.value()
        if value is None:
            return queryset
        return self.narrow(queryset, value) if value in {str(offered) for offered, _ in self.lookup_choices} else queryset.none()


class PoolFilter(Narrowing):
    """One pool."""

    title = "pool"
    parameter_name = "pool"

    def lookups(self, request: HttpRequest, model_admin: AnyModelAdmin) -> Sequence[tuple[str, str]]:
        """Offer the pools of the database that is shown."""
        return [(name, name) for name in pool_names(shown_database(request))]


def choice(name: str, values: Sequence[tuple[str, str]], *, title: str = "") -> type[Narrowing]:
    """Return a filter of a column that has one of a few values: what stands in addresses, and what is shown."""

    class Choice(Narrowing):
        parameter_name = name

        def lookups(self, request: HttpRequest, model_admin: AnyModelAdmin) -> Sequence[tuple[str, str]]:
            return values

    Choice.title = title or name
    return Choice


def _same(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(str(name), str(name)) for name in names]


KindFilter = choice("kind", _same(list(ResultKind)), title="result")
FunctionTypeFilter = choice("fn_type", _same(list(FnType)), title="function type")
LaneFilter = choice("lane", [(str(lane.value), lane.name.lower()) for lane in Lane])
CallbackFilter = choice("callback", _same([state for state in CallbackState if state]))


class CreatedFilter(Narrowing):
    """Created lately. Identifiers begin with their time, so the primary key serves it."""

    title = "created"
    parameter_name = "created"

    def lookups(self, request: HttpRequest, model_admin: AnyModelAdmin) -> Sequence[tuple[str, str]]:
        """Offer the spans."""
        return [(name, title) for name, (title, _) in SPANS.items()]

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return what has been created since."""
        return queryset.filter(id__gte=least_id((timezone.now() - SPANS[value][1]).timestamp()))


class FinishedFilter(CreatedFilter):
    """Finished lately."""

    title = "finished"
    parameter_name = "finished"

    def narrow(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return what has finished since."""
        return queryset.filter(finished__gte=timezone.now() - SPANS[value][1])


class _Linked(admin.SimpleListFilter):
    """A value that only links set: offered only to be taken back."""

    def lookups(self, request: HttpRequest, model_admin: AnyModelAdmin) -> Sequence[tuple[str, str]]:
        value = self.value()
        return [(value, value)] if value else []

    def value(self) -> str | None:
        value = super().value()
        return str(value) if value else None


class BatchFilter(_Linked):
    """The works of one batch."""

    title = "batch"
    parameter_name = "batch"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return its works."""
        value = self.value()
        if value is None:
            return queryset
        batch_id = parse_work_id(value)
        return queryset.none() if batch_id is None else queryset.filter(batch_id=batch_id)


class WorkerFilter(_Linked):
    """What one worker runs."""

    title = "worker"
    parameter_name = "worker"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return its runs."""
        value = self.value()
        if value is None:
            return queryset
        fits = value.isascii() and value.isdigit() and int(value[:11]) < 2**31
        return queryset.filter(worker_id=int(value)) if fits and len(value) <= 10 else queryset.none()


class PastFilter(_Linked):
    """Where a list goes on behind the rows that it has looked through. It is the list itself that reads it."""

    title = "place"
    parameter_name = "past"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return it as it is."""
        return queryset

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Offer the way back to the beginning."""
        yield {"selected": False, "query_string": changelist.get_query_string(remove=["past"]), "display": "From the beginning"}
        yield {"selected": True, "query_string": changelist.get_query_string(), "display": "Further back"}
