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
├── WorkCanceled           stands for the result of canceled work
├── StaleRun               this run no longer owns its work: another one, or nobody, does
└── StaleGeneration        this process no longer leads
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
    """The work was canceled before it could succeed or finally fail."""


class StaleRun(WorkpoolError):
    """The run lost its work (recovered, or completed before): what it did must be rolled back."""


class StaleGeneration(WorkpoolError):
    """Another process took the lead: this one must write nothing more."""
