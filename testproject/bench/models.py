"""What the bench's functions insert."""

from django.db import models


class Inserted(models.Model):
    """A row that one execution has inserted."""

    number = models.BigIntegerField()

    def __str__(self) -> str:
        return str(self.number)
