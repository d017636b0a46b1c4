"""What the package raises.

WorkpoolError
├── InvalidWork            (ValueError)   an argument, option or identifier cannot be taken
│   └── UnserializableWork (TypeError)    a value that JSON cannot carry
├── UnregisteredFunction   (LookupError, ValueError)   not a registered function of the wanted kind
├── WorkExists             using(unique=..., if_taken="raise"): the key is taken
├── UnknownPool            (LookupError, ValueError)   a pool the settings do not name
├── WorkpoolSettingsError  (ImproperlyConfigured)      the WORKPOOLS setting cannot be used
├── NonRetryableError      raised *by* a function: fail now, whatever the retry behaviour says
│   └── UnstorableResult (ValueError)     a return value that JSON cannot carry
├── WorkCanceled           raised *by* a function: its work was canceled, and it stops
├── WorkTimeout            raised *in* a function that takes longer than it may
├── NoCurrentWork          (LookupError)    current() outside of a work
├── StaleRun               this run no longer owns its work: another one, or nobody, does
└── StaleGeneration        this process no longer leads

And WorkerLost, ExecutorLost, Interrupted, Conflict, NotStored, which stand for attempts that failed without an exception of their own.
"""

import uuid

from django.core.exceptions import ImproperlyConfigured


class WorkpoolError(Exception):
    """Base class of the package's errors. Do not raise directly."""


class InvalidWork(WorkpoolError, ValueError):
    """An argument, an option or an identifier that the pool cannot take."""


class UnserializableWork(InvalidWork, TypeError):
    """A value that JSON cannot carry without changing it."""


class UnregisteredFunction(WorkpoolError, LookupError, ValueError):
    """The callable or dotted path is not a registered function of the wanted kind."""


class UnknownPool(WorkpoolError, LookupError, ValueError):
    """The pool is not named in the WORKPOOLS setting."""


class WorkExists(WorkpoolError):
    """The unique key of an enqueue is taken by work that has not ended."""

    def __init__(self, key: str, work_id: uuid.UUID) -> None:
        super().__init__(f"The key {key!r} is taken by work {work_id}, which has not ended.")
        self.work_id = work_id


class WorkpoolSettingsError(WorkpoolError, ImproperlyConfigured):
    """The WORKPOOLS setting cannot be used as it is."""


class NonRetryableError(WorkpoolError):
    """Raised by a function to fail at once, without the attempts that are left."""


class UnstorableResult(NonRetryableError, ValueError):
    """A function returned what JSON cannot carry: another attempt would return the same."""


class WorkCanceled(WorkpoolError):
    """The work was canceled before it could succeed or finally fail. ``current().raise_if_canceled()`` raises it."""


class WorkTimeout(WorkpoolError):
    """Raised inside a function when its timeout is over: a failed attempt, unless the function catches it and goes on.

    No ``TimeoutError``: that is an ``OSError``, which libraries take for a word of the network or of a file, and pass over or try again.
    """


class NoCurrentWork(WorkpoolError, LookupError):
    """``current()`` was called by something that no pool runs."""


class StaleRun(WorkpoolError):
    """The run lost its work (recovered, or completed before): what it did must be rolled back."""


class StaleGeneration(WorkpoolError):
    """Another process took the lead: this one must write nothing more."""


class WorkerLost(WorkpoolError):
    """The process that ran the attempt died. Never raised: it stands in the rows, like those that follow."""


class ExecutorLost(WorkpoolError):
    """The executor of others to which the attempt was handed did not bring it home."""


class Interrupted(WorkpoolError):
    """The worker was stopped while the attempt ran."""


class Conflict(WorkpoolError):
    """The database's conflicts with other transactions did not end."""


class NotStored(WorkpoolError):
    """The database refused what the attempt had come to."""


for _kind in (WorkerLost, ExecutorLost, Interrupted, Conflict, NotStored):
    # As the rows name them.
    _kind.__module__ = "django_workpool"
