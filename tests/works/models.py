"""What the functions did, and a reference that can dangle."""

from django.db import models


class Event(models.Model):
    """Something happened, at a time in seconds since 1970 by the clock of this host."""

    name = models.CharField(max_length=50)
    key = models.TextField()
    text = models.TextField(default="")
    at = models.FloatField()

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


class Counter(models.Model):
    """Counts what must happen once."""

    name = models.CharField(max_length=100, primary_key=True)
    value = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


class Parent(models.Model):
    """What a child refers to."""

    def __str__(self) -> str:
        return str(self.pk)


class Child(models.Model):
    """Refers to a parent by a foreign key, which the database checks at the end of the transaction."""

    parent = models.ForeignKey(Parent, on_delete=models.CASCADE)

    def __str__(self) -> str:
        return str(self.pk)
