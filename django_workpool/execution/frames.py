"""Runs and outcomes as lines of JSON, for processes that share nothing but a pipe. Importable without settings."""

import dataclasses
import json
import uuid
from datetime import datetime
from typing import Any

from ..types import Failure, FnType, Outcome, Run

Frame = dict[str, Any]


def pack(frame: Frame) -> bytes:
    """Return a frame as one line of ASCII, its end included."""
    return json.dumps(frame, separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes | str) -> Frame:
    """Return the frame of a line."""
    frame: Frame = json.loads(line)
    return frame


def run_frame(run: Run) -> Frame:
    """Return a run as a frame."""
    return {**run._asdict(), "work_id": run.work_id.hex, "started": run.started.isoformat()}


def read_run(frame: Frame) -> Run:
    """Return the run of a frame."""
    changed = {
        "work_id": uuid.UUID(frame["work_id"]),
        "fn_type": FnType(frame["fn_type"]),
        "started": datetime.fromisoformat(frame["started"]),
    }
    return Run(**{**frame, **changed})


def outcome_frame(outcome: Outcome) -> Frame:
    """Return an outcome as a frame."""
    return {**outcome._asdict(), "failure": None if outcome.failure is None else dataclasses.asdict(outcome.failure)}


def read_outcome(frame: Frame) -> Outcome:
    """Return the outcome of a frame."""
    failure = frame["failure"]
    return Outcome(kind=frame["kind"], value=frame["value"], failure=None if failure is None else Failure(**failure))


class Lines:
    """Puts lines together from what arrives in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece; return the lines that it ends."""
        self._rest += piece
        if b"\n" not in piece:
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return lines
