"""Step 5 of a work's way: run one function, on a thread or as a coroutine, and bring its outcome home.

An action runs outside a transaction, and is completed afterwards. A mutation (and callback work) runs in one transaction with
its completion: both happen or neither. A query runs in a read-only transaction and is completed afterwards.
"""

import time
from collections.abc import Callable

from asgiref.sync import async_to_sync

from .. import functions
from ..complete import Completed, complete_one
from ..database import database
from ..database_errors import is_connection_loss, may_pass
from ..failures import class_path_of, describe
from ..types import Attempted, Failure, FnType, Outcome, Run
from . import limits
from .calls import encode_value, prepare
from .courier import announce, announce_async
from .guests import Guests
from .isolation import Isolation
from .mutations import CONFLICT_TRIES, perform_mutation, perform_together, worth_repeating
from .persist import persist, tell, wait_for_database


class Performer:
    """Runs functions for one worker.

    Args:
        using: The database.
        worker: The worker's name, kept with failed attempts.
        write: Takes outcomes of works without on_complete; they are completed in batches.
        aside: Takes runs that have ended elsewhere, to be completed on a thread.
        done: Told each run whose completion has been committed here (others are written by ``write``).
        is_stopping: Whether to give up waiting for a database that is away.
        ends: Whether works may be ended here; if not, all outcomes go to ``write``.
    """

    def __init__(
        self,
        using: str,
        worker: str,
        write: Callable[[Attempted], None],
        aside: Callable[[list[Run]], None],
        done: Callable[..., None],
        is_stopping: Callable[[], bool],
        ends: bool = True,
    ) -> None:
        self.using, self.worker, self.write, self.aside, self.done, self.is_stopping = using, worker, write, aside, done, is_stopping
        self.ends = ends
        self.guests = Guests(using, worker)
        #: Those that wait for a thread, by token.
        self._ended: dict[int, Attempted] = {}
        #: Runs that could not share a transaction, and run alone next.
        self._announced: set[int] = set()

    def perform(self, run: Run, isolation: Isolation) -> None:
        """Run a function on this thread; never raises."""
        if run.token in self._announced:
            self._announced.discard(run.token)
        else:
            announce(run, isolation)
        limits.begin(run)
        try:
            self._perform(run, isolation)
        except BaseException as error:
            limits.came_to(run, "failed", class_path_of(error))
            raise
        finally:
            limits.end(run)

    def _perform(self, run: Run, isolation: Isolation) -> None:
        if run.fn_type in (FnType.MUTATION, FnType.CALLBACK):
            failure = perform_mutation(self.using, self.worker, run, isolation, self.is_stopping)
            if failure is not None:
                self._complete(run, self._attempted(run, limits.failed(run, failure)), isolation)
            self.done(run)
            return
        began = time.monotonic()
        isolation.begin(run.func_path)
        try:
            outcome = self._query(run, isolation) if run.fn_type is FnType.QUERY else self._action(run, isolation)
        finally:
            isolation.end()
        if self._ends_here(run):
            self._complete(run, self._attempted(run, outcome), isolation)
        else:
            self.guests.leave(run)
            self.write(Attempted(run, outcome, self.worker, time.monotonic() - began))

    def most_together(self, run: Run) -> int:
        """Return how many runs like this one may share a transaction."""
        shares = run.fn_type is FnType.MUTATION and not run.has_callback and run.timeout_ms is None
        return functions.batch_of(run.func_path) if shares else 1

    def perform_together(self, runs: list[Run], isolation: Isolation) -> list[Run]:
        """Run mutations of one function that may share a transaction; return those that are still to run, each alone."""
        left = runs
        for run in runs:
            announce(run, isolation)
        while len(left) > 1 and (ended := perform_together(self.using, self.worker, left, isolation)):
            self.done(*ended)
            left = left[len(ended) :]
        self._announced.update(run.token for run in left)
        return left

    def perform_aside(self, run: Run, isolation: Isolation) -> None:
        """Run callback work, or complete a run that has ended elsewhere and has an on_complete."""
        attempted = self._ended.pop(run.token, None)
        if attempted is None:
            self.perform(run, isolation)
        else:
            self._complete(run, attempted, isolation)

    async def perform_async(self, run: Run) -> None:
        """Run a coroutine function; everything it raises is its failure."""
        try:
            await announce_async(run)
            registered, args, kwargs, before = self.guests.prepare(run)
            outcome = Outcome(kind="success", value=encode_value(await limits.acall(run, registered.func, args, kwargs, before)))
        except BaseException as error:
            outcome = limits.failed(run, self.guests.describe(run, error))
        finally:
            traced = limits.traced(run) if run.has_callback else run
            limits.end(run)
        self.bring_home(run, outcome, traced)

    def bring_home(self, run: Run, outcome: Outcome, traced: Run | None = None) -> None:
        """Take the outcome of a run that has ended where nothing can be completed: on the event loop, or in another process.

        Args:
            run: The run.
            outcome: What it came to.
            traced: The run with what it carries to its on_complete, where that is its own span.
        """
        attempted = Attempted(run=traced or run, outcome=outcome, worker=self.worker)
        if self._ends_here(run):
            self._ended[run.token] = attempted
            self.aside([run])
        else:
            self.write(attempted)

    def take_outcome(self, run: Run) -> Outcome | None:
        """Return the outcome of a run that waits for a thread to be completed on; it is the caller's from now on."""
        ended = self._ended.pop(run.token, None)
        return None if ended is None else ended.outcome

    def _attempted(self, run: Run, outcome: Outcome) -> Attempted:
        return Attempted(run=limits.traced(run) if run.has_callback else run, outcome=outcome, worker=self.worker)

    def _ends_here(self, run: Run) -> bool:
        """Return whether an outcome is completed by itself, on a thread that may run the project's code."""
        return self.ends and (run.has_callback or self.guests.are(run))

    def _action(self, run: Run, isolation: Isolation) -> Outcome:
        try:
            registered, args, kwargs, before = self.guests.prepare(run)
            if registered.is_async:
                # Where there is no event loop: in the tests of projects. Its timeout is that of a coroutine all the same.
                value = isolation.call(async_to_sync(limits.acall), (run, registered.func, args, kwargs, before))
            else:
                value = limits.call(run, isolation, registered.func, args, kwargs, before)
            return Outcome("success", encode_value(value))
        except BaseException as error:
            return limits.failed(run, self.guests.describe(run, error))

    def _query(self, run: Run, isolation: Isolation) -> Outcome:
        tries = 0
        while tries < CONFLICT_TRIES:
            begun = False
            try:
                registered, args, kwargs = prepare(run)
                with database(self.using).read_only():
                    begun = True
                    return Outcome(kind="success", value=encode_value(limits.call(run, isolation, registered.func, args, kwargs)))
            except BaseException as error:
                # A read-only transaction's refusal to write is the function's own failure, whatever the server.
                away = is_connection_loss(error)
                # Before it has begun, nothing is said about the function.
                repeats = worth_repeating(error, tries, away=away) if begun else away or may_pass(error)
                if not repeats or (away and not wait_for_database(self.using, self.is_stopping)):
                    return limits.failed(run, describe(error))
                tries += begun or not away
                isolation.end()
                isolation.begin(run.func_path)
        text = "conflicts with other transactions, again and again"
        return limits.failed(run, Failure(class_path="django_workpool.Conflict", text=text))

    def _complete(self, run: Run, attempted: Attempted, isolation: Isolation) -> None:
        """Complete with the on_complete, on this thread's connection."""

        def once(attempted: Attempted) -> Completed | None:
            with isolation.function(f"on_complete of {run.func_path}"):
                return complete_one(self.using, attempted)

        completed = persist(self.using, attempted, once, self.is_stopping)
        tell(run, completed)
        self.done(run)
        self.guests.tell(run, completed, isolation)
