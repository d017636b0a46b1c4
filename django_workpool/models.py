"""The tables. Each docstring is the table's contract: who inserts, changes and deletes its rows.

The names after *Inserted by*, *Changed by* and *Deleted by* are modules of this package; a test reads the code
and holds it to them. All tables are private: use the functions of the package, the admin and the commands.
The file is longer than others: it is one contract, to be read as one page.
"""

import uuid
from enum import StrEnum

from django.db import models

from .types import CallbackState, FnType, Follow, Lane, LoopState, Missed, ResultKind

POOL_LENGTH = 100
PATH_LENGTH = 500
NAME_LENGTH = 500
TRACE_LENGTH = 700


def _choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in enum]


LANES = [(Lane.WORK.value, "work"), (Lane.CALLBACK.value, "callback")]


class Globals(models.Model):
    """The live configuration of a pool.

    Inserted by: configuration
    Changed by: configuration
    Deleted by: -
    """

    pool = models.CharField(max_length=POOL_LENGTH, primary_key=True)
    max_parallelism = models.PositiveIntegerField(help_text="Works that may run at once over all processes; 0 pauses the pool.")
    log_level = models.CharField(max_length=10, blank=True, default="", help_text="Empty: WORKPOOL_LOG_LEVEL, else REPORT.")
    paused_limit = models.PositiveIntegerField(null=True, blank=True, help_text="The limit that a paused pool goes on with.")

    class Meta:
        verbose_name = "pool configuration"
        permissions = [("configure_pool", "Can configure pools: limit, pause, log level")]

    def __str__(self) -> str:
        return self.pool


class InternalState(models.Model):
    """The main loop's own state of a pool: its row is the fence, its generation the fencing token.

    Inserted by: configuration
    Changed by: runner.lead, loop.state
    Deleted by: -
    """

    pool = models.CharField(max_length=POOL_LENGTH, primary_key=True)
    generation = models.BigIntegerField(default=0, help_text="Raised by each take-over: what Raft calls a term.")
    #: JSON text: for each lane and priority the (segment, id) of the last row started.
    incoming_cursor = models.TextField(default="{}")
    completion_cursor = models.BigIntegerField(default=0)
    cancelation_cursor = models.BigIntegerField(default=0)
    last_recovery = models.BigIntegerField(default=0)
    completed = models.BigIntegerField(default=0)
    succeeded = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    retries = models.BigIntegerField(default=0)
    canceled = models.BigIntegerField(default=0)
    last_report = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = "internal state"

    def __str__(self) -> str:
        return self.pool


class RunStatus(models.Model):
    """What the main loop does with a pool now: read by kicks, which it makes unnecessary.

    Inserted by: configuration
    Changed by: loop.status
    Deleted by: -
    """

    pool = models.CharField(max_length=POOL_LENGTH, primary_key=True)
    state = models.CharField(max_length=10, choices=_choices(LoopState), default=LoopState.IDLE.value)
    segment = models.BigIntegerField(default=0, help_text="When the loop comes back by itself, if it is scheduled.")
    saturated = models.BooleanField(default=False, help_text="Nothing more can be placed now: enqueue need not kick.")
    generation = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = "run status"
        verbose_name_plural = "run statuses"

    def __str__(self) -> str:
        return f"{self.pool}: {self.state}"


class Lead(models.Model):
    """The lease of the one process that leads: a single row.

    Inserted by: configuration
    Changed by: runner.lead
    Deleted by: -
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    owner = models.UUIDField(null=True)
    term = models.BigIntegerField(default=0)
    #: Milliseconds since 1970 by the database's clock: a local time would be ambiguous when summer ends.
    expires_ms = models.BigIntegerField(null=True)

    def __str__(self) -> str:
        return f"term {self.term}"


class Work(models.Model):
    """One piece of work that has not ended: a call of a registered function.

    ``attempts`` counts the *completed* attempts; the running one, if any, is number ``attempts + 1``.

    Inserted by: client, settle, requeue, loop.periodic
    Changed by: settle (attempts, returns), loop.cancelations (canceled), loop.holds, loop.starts (held_since)
    Deleted by: settle
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    pool = models.CharField(max_length=POOL_LENGTH)
    fn_type = models.CharField("kind of function", max_length=10, choices=_choices(FnType))
    func_path = models.CharField("function", max_length=PATH_LENGTH)
    name = models.CharField(max_length=NAME_LENGTH)
    #: JSON text, so that every database gives back exactly what it was given.
    arguments = models.TextField()
    priority = models.SmallIntegerField(default=0)
    attempts = models.BigIntegerField(default=0)
    returns = models.BigIntegerField(default=0)
    held_since = models.DateTimeField(null=True, blank=True)
    on_complete = models.CharField(max_length=PATH_LENGTH, blank=True, default="")
    on_complete_context = models.TextField(default="null")
    #: JSON text of a RetryBehavior; empty: a failed attempt is final.
    retry = models.TextField(blank=True, default="")
    canceled = models.BooleanField(default=False)
    #: For callback work: the finished work whose on_complete it is.
    callback_of = models.UUIDField(null=True, blank=True)
    #: Milliseconds that an attempt may take; null for any time.
    timeout_ms = models.BigIntegerField(null=True, blank=True)
    batch_id = models.UUIDField(null=True, blank=True)
    #: JSON text: what a tracer carries from the caller to the function. Empty where nobody traces.
    trace = models.CharField(max_length=TRACE_LENGTH, blank=True, default="", db_default="")
    created = models.DateTimeField()

    class Meta:
        verbose_name = "work"
        verbose_name_plural = "work"
        permissions = [("cancel_work", "Can cancel work"), ("retry_work", "Can retry finished work")]
        # The first two are almost always empty.
        indexes = [
            # Which paths no live worker knows.
            models.Index(fields=["func_path"], name="workpool_work_held", condition=models.Q(held_since__isnull=False)),
            # Which running works are to be stopped.
            models.Index(fields=["id"], name="workpool_work_canceled", condition=models.Q(canceled=True)),
            # Whether a batch has ended.
            models.Index(fields=["batch_id"], name="workpool_work_batch", condition=models.Q(batch_id__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class PendingStart(models.Model):
    """A work that waits to be started, at its segment.

    Inserted by: client, settle, requeue, loop.retries, loop.periodic
    Changed by: loop.holds (segment, of held work)
    Deleted by: loop.starts, loop.holds, loop.cancelations, requeue
    """

    id = models.BigAutoField(primary_key=True)
    work_id = models.UUIDField(unique=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    lane = models.PositiveSmallIntegerField(choices=LANES, default=Lane.WORK.value)
    priority = models.SmallIntegerField(default=0)
    segment = models.BigIntegerField()

    class Meta:
        indexes = [
            models.Index(fields=["pool", "lane", "priority", "segment", "id"], name="workpool_start_due"),
            models.Index(fields=["pool", "lane", "segment"], name="workpool_start_next"),
        ]

    def __str__(self) -> str:
        return str(self.work_id)


class PendingCompletion(models.Model):
    """An attempt that has ended, until the loop frees its slot.

    Inserted by: complete, settle
    Changed by: -
    Deleted by: loop.completions
    """

    id = models.BigAutoField(primary_key=True)
    work_id = models.UUIDField(unique=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    segment = models.BigIntegerField()
    kind = models.CharField(max_length=10, choices=_choices(ResultKind), help_text="Of the attempt.")
    follow = models.CharField(max_length=10, choices=_choices(Follow))

    class Meta:
        indexes = [models.Index(fields=["pool", "segment", "id"], name="workpool_completion_due")]

    def __str__(self) -> str:
        return str(self.work_id)


class PendingCancelation(models.Model):
    """A wish to cancel one work, or all works of the pool created up to a time.

    Inserted by: client
    Changed by: -
    Deleted by: loop.cancelations
    """

    id = models.BigAutoField(primary_key=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    segment = models.BigIntegerField()
    work_id = models.UUIDField(null=True)
    created_up_to = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["pool", "segment", "id"], name="workpool_cancelation_due"),
            models.Index(fields=["work_id"], name="workpool_cancelation_work"),
            # Almost always empty: which works a cancel_all covers is asked for each work that is to start.
            models.Index(
                fields=["pool", "created_up_to"], name="workpool_cancelation_all", condition=models.Q(created_up_to__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return str(self.work_id or f"all up to {self.created_up_to}")


class RunningWork(models.Model):
    """A started work: what the limit counts. Its id is the token of the run.

    Inserted by: loop.starts
    Changed by: -
    Deleted by: loop.completions, loop.recovery
    """

    id = models.BigAutoField(primary_key=True)
    work_id = models.UUIDField(unique=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    lane = models.PositiveSmallIntegerField(choices=LANES, default=Lane.WORK.value)
    worker_id = models.IntegerField()
    #: The segment at which it was due: what the lag is measured from.
    due = models.BigIntegerField()
    started = models.DateTimeField()

    class Meta:
        verbose_name = "running work"
        verbose_name_plural = "running work"
        indexes = [models.Index(fields=["worker_id"], name="workpool_running_worker")]

    def __str__(self) -> str:
        return str(self.work_id)


class Attempt(models.Model):
    """A failed attempt of a work. A success writes none.

    Inserted by: settle
    Changed by: -
    Deleted by: archive
    """

    id = models.BigAutoField(primary_key=True)
    work_id = models.UUIDField()
    number = models.BigIntegerField(help_text="1 for the first attempt.")
    worker = models.CharField(max_length=255)
    started = models.DateTimeField(null=True)
    ended = models.DateTimeField()
    class_path = models.CharField("exception", max_length=PATH_LENGTH)
    text = models.TextField()
    traceback = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["work_id", "number"], name="workpool_attempt_number")]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.work_id}"


class FunctionSet(models.Model):
    """A list of functions that workers know, kept once for each distinct list.

    Inserted by: execution.workers
    Changed by: -
    Deleted by: execution.workers
    """

    digest = models.CharField(max_length=64, primary_key=True)
    #: JSON text: dotted path -> kind.
    functions = models.TextField()

    def __str__(self) -> str:
        return self.digest


class Worker(models.Model):
    """A process that runs functions.

    Inserted by: execution.workers
    Changed by: execution.workers (by its own process)
    Deleted by: execution.workers
    """

    #: 32 bits: the second half of the key of its session lock.
    id = models.AutoField(primary_key=True)
    process = models.UUIDField(unique=True)
    host = models.CharField(max_length=255)
    pid = models.BigIntegerField()
    #: Works it takes at once: on threads, and as coroutines.
    capacity = models.PositiveIntegerField()
    async_capacity = models.PositiveIntegerField()
    #: JSON text: a list of pools, or null for all.
    pools = models.TextField(default="null")
    function_set = models.CharField(max_length=64, blank=True, default="")
    #: False while it shuts down: it takes nothing more.
    accepting = models.BooleanField(default=True)
    #: It has ended in order: what it had begun is written, and what else is assigned to it was never begun.
    left = models.BooleanField(default=False, db_default=False)
    #: It is behind a pooler, and holds no lock that would tell of its life: its beat alone does.
    lockless = models.BooleanField(default=False, db_default=False)
    started = models.DateTimeField()
    beat = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.host}:{self.pid} ({self.id})"


class Archive(models.Model):
    """Finished work, kept for the pool's retention.

    Inserted by: archive, settle
    Changed by: archive (callback, callback_error)
    Deleted by: archive, requeue
    """

    #: The id the work had.
    id = models.UUIDField(primary_key=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    fn_type = models.CharField("kind of function", max_length=10, choices=_choices(FnType))
    func_path = models.CharField("function", max_length=PATH_LENGTH)
    name = models.CharField(max_length=NAME_LENGTH)
    arguments = models.TextField()
    priority = models.SmallIntegerField()
    attempts = models.BigIntegerField()
    kind = models.CharField("result", max_length=10, choices=_choices(ResultKind))
    #: JSON text of the return value.
    value = models.TextField(default="null")
    error = models.TextField(blank=True, default="")
    worker = models.CharField(max_length=255, blank=True, default="")
    created = models.DateTimeField()
    #: Of the last attempt; null if it never ran.
    started = models.DateTimeField(null=True)
    finished = models.DateTimeField()
    on_complete = models.CharField(max_length=PATH_LENGTH, blank=True, default="")
    on_complete_context = models.TextField(default="null")
    callback = models.CharField(max_length=10, choices=_choices(CallbackState), blank=True, default="")
    callback_error = models.TextField(blank=True, default="")
    callback_of = models.UUIDField(null=True, blank=True)
    batch_id = models.UUIDField(null=True, blank=True)
    #: What it is run with if an operator lets it run again.
    retry = models.TextField(blank=True, default="", db_default="")
    timeout_ms = models.BigIntegerField(null=True, blank=True)

    class Meta:
        verbose_name = "finished work"
        verbose_name_plural = "finished work"
        indexes = [
            models.Index(fields=["pool", "finished"], name="workpool_archive_finished"),
            models.Index(fields=["batch_id"], name="workpool_archive_batch", condition=models.Q(batch_id__isnull=False)),
            # What an operator looks for among many that have succeeded.
            models.Index(fields=["kind", "id"], name="workpool_archive_unwell", condition=~models.Q(kind=ResultKind.SUCCESS.value)),
            # What became of the on_complete of a work.
            models.Index(fields=["callback_of"], name="workpool_archive_callback", condition=models.Q(callback_of__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class UniqueKey(models.Model):
    """Which work a key was given to last. It is taken as long as that work has not ended: rows of ended work mean nothing.

    Inserted by: keys
    Changed by: keys (work_id)
    Deleted by: keys
    """

    id = models.BigAutoField(primary_key=True)
    #: SHA-256 of pool and key: databases differ in what texts they take for the same.
    digest = models.CharField(max_length=64, unique=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    key = models.CharField(max_length=NAME_LENGTH)
    work_id = models.UUIDField()

    def __str__(self) -> str:
        return self.key


class Batch(models.Model):
    """Works that were enqueued together, and what is called when all of them have ended.

    Inserted by: batches
    Changed by: loop.batches (ended)
    Deleted by: batches
    """

    id = models.UUIDField(primary_key=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    name = models.CharField(max_length=NAME_LENGTH, blank=True, default="")
    on_complete = models.CharField(max_length=PATH_LENGTH, blank=True, default="")
    on_complete_context = models.TextField(default="null")
    total = models.BigIntegerField()
    created = models.DateTimeField()
    ended = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "batches"
        indexes = [
            models.Index(fields=["pool"], name="workpool_batch_open", condition=models.Q(ended__isnull=True)),
            models.Index(fields=["pool", "ended"], name="workpool_batch_ended"),
        ]

    def __str__(self) -> str:
        return self.name or str(self.id)


class BatchFailure(models.Model):
    """A work of a batch that has ended otherwise than as a success.

    Inserted by: settle
    Changed by: -
    Deleted by: batches
    """

    id = models.BigAutoField(primary_key=True)
    batch_id = models.UUIDField()
    work_id = models.UUIDField()
    kind = models.CharField(max_length=10, choices=_choices(ResultKind))

    class Meta:
        indexes = [models.Index(fields=["batch_id", "id"], name="workpool_batch_failure")]

    def __str__(self) -> str:
        return str(self.work_id)


class Periodic(models.Model):
    """A work that is enqueued again and again, at the times of a cron expression.

    Inserted by: periodic
    Changed by: periodic, loop.periodic (next_ms, last_ms, error)
    Deleted by: periodic
    """

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=200, unique=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    func_path = models.CharField("function", max_length=PATH_LENGTH)
    #: What a Work takes over from its function: the leader need not know it.
    fn_type = models.CharField("kind of function", max_length=10, choices=_choices(FnType))
    retry = models.TextField(blank=True, default="")
    #: JSON text, as Work has it.
    arguments = models.TextField(default='{"args": [], "kwargs": {}}')
    priority = models.SmallIntegerField(default=0)
    cron = models.CharField(max_length=200)
    time_zone = models.CharField(max_length=64, help_text="In whose local time the expression is read, such as Europe/London.")
    missed = models.CharField(max_length=10, choices=_choices(Missed), default=Missed.LAST.value)
    enabled = models.BooleanField(default=True)
    #: Milliseconds since 1970 by the database's clock; null: the leader works it out.
    next_ms = models.BigIntegerField(null=True, blank=True)
    last_ms = models.BigIntegerField(null=True, blank=True, help_text="The last tick that was enqueued.")
    error = models.CharField(max_length=500, blank=True, default="", help_text="Why the leader passes it over, until it is changed.")

    class Meta:
        verbose_name = "periodic work"
        verbose_name_plural = "periodic work"

    def __str__(self) -> str:
        return self.name


class Tally(models.Model):
    """What one iteration has counted in a lane of a pool, or what the iterations of a minute have: sums of it are exact.

    Rows are only added. Those of a minute that is over become one; those that are older than what charts show become one for all time
    (minute 0), so that the sum over all rows never changes by it.

    Inserted by: loop.tallies, tallies
    Changed by: -
    Deleted by: tallies
    """

    id = models.BigAutoField(primary_key=True)
    pool = models.CharField(max_length=POOL_LENGTH)
    lane = models.PositiveSmallIntegerField(choices=LANES, default=Lane.WORK.value)
    #: Minutes since 1970 by the database's clock.
    minute = models.BigIntegerField()
    started = models.BigIntegerField(default=0)
    #: Works that have ended, by their result.
    succeeded = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    canceled = models.BigIntegerField(default=0)
    #: Attempts that have ended otherwise: they are rows of Attempt; and of these, those that are followed by another one.
    failed_attempts = models.BigIntegerField(default=0)
    retried = models.BigIntegerField(default=0)
    #: Runs that were given back uncounted.
    returned = models.BigIntegerField(default=0)
    #: Finished works that an operator has let run again: they are not in the archive any more, but were counted.
    requeued = models.BigIntegerField(default=0)
    #: Starts by their lag since they were due: each counts those that no earlier one does.
    lag_100ms = models.BigIntegerField(default=0)
    lag_200ms = models.BigIntegerField(default=0)
    lag_500ms = models.BigIntegerField(default=0)
    lag_1s = models.BigIntegerField(default=0)
    lag_2s = models.BigIntegerField(default=0)
    lag_5s = models.BigIntegerField(default=0)
    lag_10s = models.BigIntegerField(default=0)
    lag_1min = models.BigIntegerField(default=0)
    lag_10min = models.BigIntegerField(default=0)
    lag_longer = models.BigIntegerField(default=0)
    #: Once a minute, while a pool has anything to do: what it held at that moment. The largest of a minute.
    waiting = models.BigIntegerField(null=True, blank=True)
    running = models.BigIntegerField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "tallies"
        indexes = [models.Index(fields=["minute", "pool"], name="workpool_tally_minute")]

    def __str__(self) -> str:
        return f"{self.pool}: minute {self.minute}"


class Progress(models.Model):
    """How far the function of a running work has come, as it says itself.

    Inserted by: execution.progress
    Changed by: execution.progress
    Deleted by: execution.progress
    """

    work_id = models.UUIDField(primary_key=True)
    #: The run that says so: what an earlier one has said means nothing.
    token = models.BigIntegerField()
    done = models.FloatField()
    total = models.FloatField()
    said = models.DateTimeField()

    class Meta:
        verbose_name_plural = "progress"

    def __str__(self) -> str:
        return f"{self.done:g} of {self.total:g}"
