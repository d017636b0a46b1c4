"""What a function's forked child must not keep: the sockets and files by which others see that this process lives, and leads.

A child has them open, too, and would hold the locks after its parent's death. So in the child they are replaced by
/dev/null, number by number: nothing is said to the server, and whatever closes them later closes nothing of others.
"""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

_sources: "weakref.WeakKeyDictionary[Any, Callable[[Any], Iterable[int]]]" = weakref.WeakKeyDictionary()


def keep_from_children(owner: Any, descriptors: Callable[[Any], Iterable[int]]) -> None:
    """Let children of this process lose the descriptors that ``descriptors(owner)`` returns in the child."""
    _sources[owner] = descriptors


def _let_go() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for owner, descriptors in list(_sources.items()):
        # A connection may be closed, or in any state.
        with contextlib.suppress(Exception):
            for descriptor in descriptors(owner):
                os.dup2(null, descriptor)
    os.close(null)


os.register_at_fork(after_in_child=_let_go)
