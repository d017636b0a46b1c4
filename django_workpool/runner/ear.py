"""Where the loop's thread sleeps, and what wakes it."""

import threading

from ..database import Hint


class Ear:
    """Collects hints from other threads for one that waits for them."""

    def __init__(self) -> None:
        self._hints: set[Hint] = set()
        self._woken = False
        self._condition = threading.Condition()

    def hear(self, hint: Hint) -> None:
        """Take a hint."""
        with self._condition:
            self._hints.add(hint)
            self._condition.notify()

    def wake(self) -> None:
        """Let the waiting thread look at its flags."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def wait(self, seconds: float) -> set[Hint]:
        """Wait for hints, at most so long, and return them."""
        with self._condition:
            if not self._hints and not self._woken and seconds > 0:
                self._condition.wait(seconds)
            hints, self._hints, self._woken = self._hints, set(), False
        return hints
