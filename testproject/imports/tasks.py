"""What the pool runs: read a file, and write down what became of it."""

import hashlib
from datetime import timedelta

from django_workpool import OnCompleteArgs, RetryBehavior, action, on_complete, progress

from . import files
from .models import FoundFile, ImportedFile

#: A file that is being replaced is back after moments; what is still missing then stays missing.
RETRY = RetryBehavior(max_attempts=3, initial_backoff=timedelta(milliseconds=200))


@action(retry=RETRY)
def read_file(folder: str, path: str) -> files.Digest:
    """Read one file, given as ``files.to_text`` has it, and return its digest, size and line count."""
    return files.read(files.from_text(folder), files.from_text(path), progress)


@on_complete
def file_done(done: OnCompleteArgs) -> None:
    """Write the row of a file, in the transaction that ends its work."""
    found = FoundFile.objects.get(work_id=done.work_id)
    told = done.result.value or {}
    ImportedFile.objects.create(
        parent_id=found.parent_id,
        work_id=done.work_id,
        path=found.path,
        path_key=hashlib.sha256(found.path.encode()).hexdigest(),
        ok=done.result.kind == "success",
        sha256=told.get("sha256", ""),
        size=told.get("size"),
        lines=told.get("lines"),
        error=done.result.error,
    )
