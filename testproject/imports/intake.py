"""Hand a folder to the pool: the import, its works and their names are one transaction."""

from itertools import islice

from django.db import transaction

from django_workpool import Workpool, call

from . import files
from .models import FoundFile, Import
from .tasks import file_done, read_file

POOL = "imports"
#: Files handed over by one statement.
CHUNK = 1000


def take_in(folder: str) -> Import:
    """Record an import of ``folder`` and enqueue one action for each file below it.

    Raises:
        OSError: the folder cannot be listed. Nothing has been written.
    """
    found = files.find(folder)
    pool = Workpool(POOL).using(on_complete=file_done)
    folder_text = files.to_text(folder)
    with transaction.atomic():
        made = Import.objects.create(folder=folder_text, total=len(found.files), unlisted=len(found.unlisted))
        remaining = iter(found.files)
        while paths := [files.to_text(path) for path in islice(remaining, CHUNK)]:
            work_ids = pool.enqueue_many(read_file, [call(folder_text, path) for path in paths])
            FoundFile.objects.bulk_create(
                FoundFile(work_id=work_id, parent=made, path=path) for work_id, path in zip(work_ids, paths, strict=True)
            )
    return made
