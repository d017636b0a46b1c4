"""An import of a folder, its files as they were found, and what became of each."""

from django.db import models


class Import(models.Model):
    """One folder that was taken in."""

    #: As text (see ``files.to_text``).
    folder = models.TextField()
    created = models.DateTimeField(auto_now_add=True)
    total = models.PositiveBigIntegerField(help_text="Files found.")
    unlisted = models.PositiveBigIntegerField(default=0, help_text="Folders below it that could not be listed.")

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.folder


class FoundFile(models.Model):
    """A file that was found and handed to the pool: tells which work is whose, also when the work fails."""

    work_id = models.UUIDField(primary_key=True)
    parent = models.ForeignKey(Import, models.CASCADE, related_name="found")
    #: Relative to the folder, as text.
    path = models.TextField()

    def __str__(self) -> str:
        return self.path


class ImportedFile(models.Model):
    """What became of a file: written once, when its work ends."""

    parent = models.ForeignKey(Import, models.CASCADE, related_name="files")
    work_id = models.UUIDField(unique=True)
    path = models.TextField()
    #: SHA-256 of the path: paths can be longer than what a database takes into an index.
    path_key = models.CharField(max_length=64, editable=False)
    ok = models.BooleanField()
    sha256 = models.CharField(max_length=64, blank=True, default="")
    size = models.PositiveBigIntegerField(null=True)
    lines = models.PositiveBigIntegerField(null=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["parent", "path_key"], name="imports_file_path")]

    def __str__(self) -> str:
        return self.path
