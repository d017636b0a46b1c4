"""Lists of tables that may hold millions of rows. What a page reads is bounded, whatever it is asked for.

A list shows a *window*: the first rows, in an order that an index has, of those that the index can find. All else that it was asked for
(a text, a state) is looked for in the window alone, counts and numbered pages included. The page says where the window ends, and links
to the next one.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from .filters import PastFilter

if TYPE_CHECKING:
    from .base import Listed

#: Rows of a window that is shown as it is, and of one in which something is looked for.
SHOWN_MAX, EXAMINED_MAX = 10_000, 50_000
#: Filters that ask for no rows.
PASSIVE = ("database", "past")
_SEPARATOR = "~"


class Capped(int):
    """A number of rows of which there are more than were counted."""

    def __str__(self) -> str:
        return f"{int(self)}+"


def reach(order: Sequence[str], values: Sequence[Any], *, beyond: bool) -> Q:
    """Return what holds for the rows behind the one with these values (``beyond``), or for those up to it and itself.

    Args:
        order: One or two columns, both with a minus or both without.
        values: Those of the row, in that order.
        beyond: Which of both.
    """
    way = "lt" if order[0].startswith("-") == beyond else "gt"
    names, end = [name.lstrip("-") for name in order], "" if beyond else "e"
    if len(names) == 1:
        return Q(**{f"{names[0]}__{way}{end}": values[0]})
    first, last = names
    # The first condition says nothing new: it is the one that an index takes.
    return Q(**{f"{first}__{way}e": values[0]}) & (
        Q(**{f"{first}__{way}": values[0]}) | Q(**{first: values[0], f"{last}__{way}{end}": values[1]})
    )


class WindowedList(ChangeList):
    """A list of a ``Listed`` admin that never reads more than a window of its table."""

    model_admin: "Listed"
    #: What the next window begins behind; None if this one reaches the end.
    further: str | None = None
    #: Rows that the window may hold, and whether something was looked for in it.
    window_size = SHOWN_MAX
    looks = False

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the rows of the window that fit all that was asked."""
        self.filter_specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        specs = {str(getattr(spec, "parameter_name", "")): spec for spec in self.filter_specs}
        chosen = {name: str(value) for name, spec in specs.items() if (value := spec.value()) and name not in PASSIVE}  # type: ignore[attr-defined]
        names, served = self.model_admin.window(chosen)
        order, found = self._order(request, names), self.root_queryset
        for name in chosen.keys() & served:
            found = _applied(specs[name], request, found)
        exact = self.model_admin.by_id(found, self.query) if self.query else None
        texts = bool(self.query) and exact is None
        self.looks = texts or bool(chosen.keys() - served)
        found = self._window(found if exact is None else exact, order)
        for name in sorted(chosen.keys() - served):
            found = _applied(specs[name], request, found)
        if texts:
            found = self.model_admin.by_text(found, self.query)
        return found.order_by(*order)

    def _order(self, request: HttpRequest, names: Sequence[str]) -> list[str]:
        """Return the window's order: the newest first, unless the other way round was asked for."""
        ascends = self.get_ordering(request, self.root_queryset)[:1] == [names[0]]
        return [name if ascends else f"-{name}" for name in names]

    def _window(self, found: QuerySet[Any], order: Sequence[str]) -> QuerySet[Any]:
        """Cut the window out of the rows; note what the next one begins behind."""
        begins = self._read(order, self.params.get(PastFilter.parameter_name, ""))
        if begins is not None:
            found = found.filter(reach(order, begins, beyond=True))
        size = EXAMINED_MAX if self.looks else SHOWN_MAX
        names = [name.lstrip("-") for name in order]
        edge = list(found.order_by(*order).values_list(*names)[size - 1 : size + 1])
        self.window_size = size
        if len(edge) < 2:
            self.further = None
            return found
        self.further = _SEPARATOR.join(one.isoformat() if isinstance(one, datetime) else str(one) for one in edge[0])
        return found.filter(reach(order, edge[0], beyond=False))

    def _read(self, order: Sequence[str], text: str) -> list[Any] | None:
        """Return the values that an address says the window begins behind; None if it says nothing that fits."""
        parts = text.split(_SEPARATOR)
        # PostgreSQL takes no NUL in a text.
        if len(parts) != len(order) or "\0" in text:
            return None
        try:
            fields: list[Any] = [self.lookup_opts.get_field(name.lstrip("-")) for name in order]
            return [field.to_python(part) for field, part in zip(fields, parts, strict=True)]
        except (ValidationError, ValueError, OverflowError):
            return None

    def get_results(self, request: HttpRequest) -> None:
        """Read one page, and with it what its columns show from other tables."""
        super().get_results(request)
        if self.further is not None and not self.looks:
            self.result_count = Capped(self.result_count)
        self.result_list = list(self.result_list)
        self.model_admin.enrich(request, self.result_list)

    def get_query_string(self, new_params: dict[str, Any] | None = None, remove: Iterable[str] | None = None) -> str:
        """Return an address's query; one that asks for something else begins at the first window again."""
        if new_params and not new_params.keys() <= {PAGE_VAR, PastFilter.parameter_name}:
            remove = [*(remove or []), PastFilter.parameter_name]
        return super().get_query_string(new_params, remove)

    @property
    def note(self) -> str:
        """What the page says of the window; empty if that is all there is."""
        if self.further is None:
            return ""
        among = f"Looked through {self.window_size:,} rows" if self.looks else f"These are {self.window_size:,} rows"
        return f"{among}: there are more."

    @property
    def further_query(self) -> str:
        """The query of the next window's address."""
        return self.get_query_string({PastFilter.parameter_name: self.further})


def _applied(spec: Any, request: HttpRequest, found: QuerySet[Any]) -> QuerySet[Any]:
    fitting: QuerySet[Any] | None = spec.queryset(request, found)
    return found if fitting is None else fitting
