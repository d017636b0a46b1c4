"""How far an import is: counts of its rows."""

from dataclasses import dataclass

from django.db.models import Count, Exists, OuterRef, Q, Sum

from django_workpool.models import Archive

from .models import FoundFile, Import, ImportedFile

#: Files shown of those that are read, or are read next.
NEXT = 5


@dataclass(frozen=True)
class Progress:
    """The counts of one import at one moment."""

    total: int
    succeeded: int
    failed: int
    bytes: int
    lines: int

    @property
    def done(self) -> int:
        """Files that have their row."""
        return self.succeeded + self.failed

    @property
    def waiting(self) -> int:
        """Files that have none yet."""
        return self.total - self.done


def progress(made: Import) -> Progress:
    """Return how far an import is."""
    told = made.files.aggregate(
        succeeded=Count("pk", filter=Q(ok=True)), failed=Count("pk", filter=Q(ok=False)), bytes=Sum("size"), lines=Sum("lines")
    )
    return Progress(
        total=made.total, succeeded=told["succeeded"], failed=told["failed"], bytes=told["bytes"] or 0, lines=told["lines"] or 0
    )


def retried(made: Import) -> int:
    """Return how many works of an import needed more than one attempt (of those that the pool still keeps)."""
    works = ImportedFile.objects.filter(parent=made).values("work_id")
    return Archive.objects.filter(pk__in=works, attempts__gt=1).count()


def next_files(made: Import) -> list[FoundFile]:
    """Return the first files of an import that have no row yet."""
    return list(made.found.filter(~Exists(ImportedFile.objects.filter(work_id=OuterRef("work_id")))).order_by("work_id")[:NEXT])
