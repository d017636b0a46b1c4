"""What makes a history cheap: nothing here changes what the package decides.

Most of a history's time goes into Django's making of the same few statements, and into looks of idle processes.
"""

from functools import lru_cache
from typing import Any

from django.db import connection, connections
from django.db.backends.sqlite3.base import FORMAT_QMARK_REGEX, SQLiteCursorWrapper

from django_workpool import archive
from django_workpool.database.base import lock_rows
from django_workpool.execution import liveness
from django_workpool.loop import due, fence, state
from django_workpool.runner import lead, leader

#: The priorities that callers use: a probe of each of 201 would be most of an iteration.
PRIORITIES = (-1, 0, 1)


def install() -> None:
    """Spare what costs."""
    due._PRIORITIES = ", ".join(f"({priority})" for priority in PRIORITIES)
    # Standbys try less often, and counters are written less often.
    leader.STANDBY_EVERY, state.SAVE_EVERY = 3.0, 5.0
    # A death is seen sooner, and a lease is shorter: in between nothing happens.
    # The watch looks only every two seconds or so: the lease is renewed each time.
    lead.LEASE, lead.RENEW_EVERY, lead.UNCHANGED, liveness.WINDOW = 6.0, 1.0, 3.0, 3.0
    # No history is as long as finished work is kept: prunings find nothing, but there are some.
    archive.overdue = lambda using: ["default"]
    setattr(fence, "lock_rows", _Fence)  # noqa: B010 - what it imports
    # One thread has one connection, and there are few statements.
    type(connections).__getitem__ = lambda self, alias, only=connections["default"]: only  # type: ignore[method-assign,misc]
    SQLiteCursorWrapper.convert_query = lambda self, query, *, param_names=None: _converted(query)  # type: ignore[method-assign]


@lru_cache(maxsize=10_000)
def _converted(query: str) -> str:
    return FORMAT_QMARK_REGEX.sub("?", query).replace("%%", "%")


class _Fence:
    """The fence's query, made by the package once for each pool, then repeated as it is."""

    made: dict[str, tuple[str, Any, Any, Any]] = {}

    def __init__(self, model: Any, using: str, *, nowait: bool) -> None:
        self.real = lock_rows(model, using, nowait=nowait)
        self.pool = ""
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def filter(self, *, pool: str) -> "_Fence":
        self.pool = pool
        return self._note("filter", pool=pool)

    def annotate(self, **annotations: Any) -> "_Fence":
        return self._note("annotate", **annotations)

    def values_list(self, *names: str) -> "_Fence":
        return self._note("values_list", *names)

    def _note(self, name: str, *args: Any, **kwargs: Any) -> "_Fence":
        self.calls.append((name, args, kwargs))
        return self

    def first(self) -> Any:
        if self.pool not in self.made:
            queryset = self.real
            for name, args, kwargs in self.calls:
                queryset = getattr(queryset, name)(*args, **kwargs)
            compiler = queryset[:1].query.get_compiler(using="default")
            sql, params = compiler.as_sql()
            converters = compiler.get_converters([column[0] for column in compiler.select])
            self.made[self.pool] = sql, params, compiler, converters
        sql, params, compiler, converters = self.made[self.pool]
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            rows = cursor.fetchall()
        return next((tuple(row) for row in compiler.apply_converters(rows, converters)), None)
