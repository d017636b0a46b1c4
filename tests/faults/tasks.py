"""What a worker imports when it starts: so it knows the drills' functions from the beginning."""

from . import works as works
