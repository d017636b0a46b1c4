"""From a run to the call of its function, and from what that returns to the stored value."""

import uuid
from typing import Any

from .. import callbacks, functions, serialization
from ..batch_values import BatchResult
from ..exceptions import InvalidWork, UnstorableResult
from ..types import FnType, OnCompleteArgs, ResultKind, Run, RunResult

_KINDS = {kind: frozenset({kind}) for kind in FnType}


def prepare(run: Run) -> tuple[functions.Registered, list[Any], dict[str, Any]]:
    """Return a run's function and its arguments.

    Raises:
        UnregisteredFunction: this process does not know the function.
    """
    registered = functions.resolve(run.func_path, _KINDS[run.fn_type])
    call = serialization.decode(run.arguments)
    if run.fn_type is not FnType.CALLBACK:
        return registered, call["args"], call["kwargs"]
    stored = call["kwargs"]
    if "batch_id" in stored:
        # By its path again: what was registered at enqueue may be another kind of function by now.
        ends = BatchResult(**stored | {"batch_id": uuid.UUID(stored["batch_id"])})
        return callbacks.of_batch(run.func_path), [ends], {}
    kind = ResultKind(stored["kind"])
    result = RunResult(kind=kind, value=stored["value"] if kind is ResultKind.SUCCESS else None, error=stored["error"])
    return registered, [OnCompleteArgs(work_id=uuid.UUID(stored["work_id"]), context=stored["context"], result=result)], {}


def encode_value(value: Any) -> str:
    """Return what a function has returned as it is stored.

    Raises:
        UnstorableResult: JSON cannot carry it.
    """
    if value is None:
        return "null"
    try:
        return serialization.encode_result(value)
    except InvalidWork as error:
        raise UnstorableResult(f"the return value cannot be stored: {error}") from None
