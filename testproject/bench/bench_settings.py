"""Settings of the bench's worker processes: those of the project, on the bench's own database, with pools as the case wants them."""

from datetime import timedelta
from typing import Any

import environ  # type: ignore[import-untyped]

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES

_env = environ.Env()

DATABASES["default"]["NAME"] = _env.str("BENCH_DATABASE")

_options: dict[str, Any] = {"MAX_PARALLELISM": _env.int("BENCH_LIMIT")}
if not _env.bool("BENCH_RETENTION_DAY"):
    _options["RETENTION"] = timedelta(0)

WORKPOOLS = {"default": _options, **{f"pool{number}": _options for number in range(1, _env.int("BENCH_POOLS"))}}
