"""What people are shown of payloads: arguments, contexts, results, errors and tracebacks may hold what not everybody may read."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from .exceptions import WorkpoolSettingsError

SETTING = "WORKPOOL_ADMIN_MASK"
#: The value of the setting that hides all payloads.
ALL = "all"
HIDDEN = "(hidden)"

#: Given a pool, a function's path, the name of a column and the value in it, returns what is shown in the place of the value.
Mask = Callable[[str, str, str, Any], object]


def mask() -> Mask | None:
    """Return what WORKPOOL_ADMIN_MASK names; None if payloads are shown as they are.

    Raises:
        WorkpoolSettingsError: it is neither "all" nor the dotted path of a function that can be imported.
    """
    named = getattr(settings, SETTING, None)
    if named is None:
        return None
    if named == ALL:
        return _hide
    try:
        found = import_string(named) if isinstance(named, str) else None
    # The module may fail at its import in any way.
    except Exception as error:
        raise WorkpoolSettingsError(f"{SETTING} names {ascii(named)}, which cannot be imported: {type(error).__name__}.") from error
    if not callable(found):
        raise WorkpoolSettingsError(f'{SETTING} must be "{ALL}" or the dotted path of a function, not {ascii(named)[:100]}.')
    masking: Mask = found
    return masking


def masked(pool: str, func_path: str, name: str, value: Any) -> object:
    """Return what is shown in the place of a value. Never raises: where the mask does, or cannot be used, nothing is shown.

    Args:
        pool: The pool of the work.
        func_path: Its function.
        name: The column: ``arguments``, ``on_complete_context``, ``value``, ``error``, ``callback_error``, ``text``, ``traceback``.
        value: What it holds: decoded, where it is JSON; text, where it is text, or cannot be decoded.
    """
    try:
        masking = mask()
        return value if masking is None else masking(pool, func_path, name, value)
    except Exception as error:
        return f"(hidden: {SETTING} has failed with {type(error).__name__})"


def _hide(pool: str, func_path: str, name: str, value: Any) -> object:
    return HIDDEN
