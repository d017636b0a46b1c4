"""A module that nothing imports until one of its functions is looked for."""

from django_workpool import action


@action
def late(key: str) -> str:
    """Return the key."""
    return key
