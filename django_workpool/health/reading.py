"""One look at all pools, the leader and the workers: a constant number of statements, however many pools there are."""

import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cached_property

from django.db.models import Count, Min
from django.db.models.expressions import RawSQL

from .. import conf, serialization, stats
from ..database import Database
from ..execution.liveness import WINDOW, WINDOW_WITHOUT_LOCKS
from ..loop.context import PAUSED_CALLBACKS
from ..loop.fleet import Fleet
from ..models import Globals, Lead, Work, Worker
from ..segments import segment_ms
from ..types import Lane
from .states import PATHS_MAX, Health, Held, LeaderHealth, PoolHealth, Reason, WorkerHealth

#: Seconds that a work is due, and that the loop changes nothing in its pool, before that is a fault.
STALLED_AFTER = 10.0
#: Rows counted at most over all pools, and for each of many pools at least.
COUNT_ALL, COUNT_EACH = 1_000_000, 1_000


class Look:
    """What one look reads.

    Args:
        db: The database.
        held: The workers whose liveness lock is held; None where that cannot be seen.
        pools: Only these; None for all.
        dead: The workers that were observed dead; None where nobody has observed them.
        most: Rows that a count of a pool counts; None for what many pools leave each.
    """

    def __init__(
        self,
        db: Database,
        held: set[int] | None,
        pools: Sequence[str] | None = None,
        *,
        dead: Collection[int] | None = None,
        most: int | None = None,
    ) -> None:
        self.db, self.held = db, held
        self.now_ms = db.clock_ms()
        self.fleet = Fleet()
        self.fleet.refresh(db.using, now=True)
        self.rows = list(Worker.objects.using(db.using).order_by("id"))
        self.alive = {row.id for row in self.rows if (self._lives(row) if dead is None else row.id not in dead) and not row.left}
        self.fleet.dead = {worker for worker in self.fleet.workers if worker not in self.alive}
        self.lead = Lead.objects.using(db.using).filter(id=1).values_list("owner", "term", "expires_ms").first() or (None, 0, None)
        self.leader = self._leader()
        self.most = most or max(COUNT_EACH, min(stats.COUNT_MAX, COUNT_ALL // max(1, Globals.objects.using(db.using).count())))
        self.running = self._count_running()
        self.figures = stats.figures(db, int(self.now_ms // 100), self.most, pools)

    def health(self) -> Health:
        return Health(pools=self.pools(), leader=self.leader, workers=self._workers(), count_max=self.most)

    def pools(self) -> tuple[PoolHealth, ...]:
        return tuple(self._pool(one) for one in self.figures)

    # Workers and leader -----------------------------------------------------------------------------------------

    def _age(self, at: datetime) -> float:
        return max(0.0, self.now_ms / 1000 - at.timestamp())

    def _lives(self, row: Worker) -> bool:
        """One look cannot observe a death; but a lock that is held tells of a life, and so does a young beat."""
        if self.held is not None and row.id in self.held:
            return True
        return self._age(row.beat) < (WINDOW_WITHOUT_LOCKS if self.held is None or row.lockless else WINDOW)

    def _leader(self) -> LeaderHealth:
        owner, term, expires_ms = self.lead
        row = next((row for row in self.rows if row.process == owner), None)
        present = leads(self.db, self.lead, self.now_ms, {row.process for row in self.rows if row.id in self.alive})
        if present and not self.db.leases:
            present = not _lead_lock_is_free(self.db)
        left_s = None if expires_ms is None else (expires_ms - self.now_ms) / 1000
        return LeaderHealth(
            present=present,
            absent_s=-left_s if left_s is not None and not present else None,
            expected=any(not row.left for row in self.rows),
            worker=row.id if row else None,
            host=row.host if row else None,
            pid=row.pid if row else None,
            term=term,
            lease_expires_in_s=None if left_s is None else round(left_s, 1),
        )

    def _count_running(self) -> Counter[tuple[str, int]]:
        """Count running rows by pool and lane, and how full each worker is."""
        rows = self.db.fetch(
            "SELECT r.pool, r.lane, r.worker_id, w.func_path, COUNT(*) FROM (SELECT pool, lane, worker_id, work_id FROM {RunningWork} "
            f"LIMIT {stats.COUNT_MAX}) r LEFT JOIN {self.db.each('{Work}', 'w', 'w.id = r.work_id')} "
            "GROUP BY r.pool, r.lane, r.worker_id, w.func_path"
        )
        running: Counter[tuple[str, int]] = Counter()
        for pool, lane, worker_id, path, number in rows:
            running[pool, lane] += number
            if worker_id in self.fleet.workers:
                self.fleet.load[worker_id, self.fleet.workers[worker_id].room_for(lane, path or "")] += number
        return running

    def _workers(self) -> tuple[WorkerHealth, ...]:
        running: Counter[int] = Counter()
        for (worker, _), number in self.fleet.load.items():
            running[worker] += number
        return tuple(
            WorkerHealth(
                id=row.id,
                host=row.host,
                pid=row.pid,
                pools=None if (pools := serialization.decode(row.pools)) is None else tuple(pools),
                capacity=row.capacity,
                async_capacity=row.async_capacity,
                running=running[row.id],
                accepting=row.accepting,
                left=row.left,
                beat_age_s=round(self._age(row.beat), 1),
                lock_held=None if self.held is None else row.id in self.held,
                alive=row.id in self.alive,
            )
            for row in self.rows
        )

    # Pools ------------------------------------------------------------------------------------------------------

    @cached_property
    def heads(self) -> dict[int, tuple[int, str, str]]:
        """Return the segment, the function and its kind of each lane's oldest due work, by the id of its pending start."""
        ids = [one for figures in self.figures for one in figures.oldest if one is not None]
        if not ids:
            return {}
        among, param = self.db.among("s.id", ids)
        rows = self.db.fetch(
            f"SELECT s.id, s.segment, w.func_path, w.fn_type FROM {{PendingStart}} s "
            f"JOIN {self.db.each('{Work}', 'w', 'w.id = s.work_id')} WHERE {among}",
            [param],
        )
        return {start: (segment, path, fn_type) for start, segment, path, fn_type in rows}

    @cached_property
    def held_works(self) -> dict[str, Held]:
        using = self.db.using
        # Not every database takes a LIMIT behind an IN, but one further inside.
        held = f"SELECT id FROM {{Work}} WHERE held_since IS NOT NULL AND NOT canceled LIMIT {stats.COUNT_MAX}"
        first = RawSQL(self.db.sql(f"SELECT f.id FROM ({held}) f"), ())  # noqa: S611
        groups = Work.objects.using(using).filter(id__in=first).values("pool", "func_path").annotate(n=Count("id"), since=Min("held_since"))
        found: dict[str, Held] = {}
        for group in groups.order_by("pool", "func_path"):
            pool, settings = group["pool"], conf.pools().get(group["pool"])
            until = group["since"] + (settings.hold if settings else conf.DEFAULT_HOLD)
            old = found.get(pool, Held(works=0, paths=(), since=group["since"], until=until))
            found[pool] = Held(
                works=old.works + group["n"],
                paths=(*old.paths, group["func_path"])[:PATHS_MAX],
                since=min(old.since, group["since"]),
                until=min(old.until, until),
            )
        return found

    def _pool(self, one: stats.Figures) -> PoolHealth:
        heads = [self.heads.get(start) if start is not None else None for start in one.oldest]
        reasons = [self.reason(one, lane, heads[lane]) for lane in Lane]
        if one.oldest_completion is not None:
            reasons.append(self._reason_of_completions(one, one.oldest_completion))
        held = self.held_works.get(one.pool)
        if held:
            reasons.append(Reason.HELD)
        due = [head[0] for head in heads if head]
        return PoolHealth(
            pool=one.pool,
            reason=min(reasons, key=list(Reason).index),
            lag_s=round(max(0.0, self._seconds_since(min(due))), 1) if due else 0.0,
            due=one.due,
            waiting=one.waiting,
            running=self.running[one.pool, Lane.WORK] + self.running[one.pool, Lane.CALLBACK],
            completing=one.completing,
            canceling=one.canceling,
            max_parallelism=one.max_parallelism,
            held=held,
            head=(*one.oldest, one.oldest_completion),
        )

    def _seconds_since(self, segment: int) -> float:
        return (self.now_ms - segment_ms(segment)) / 1000

    @staticmethod
    def limit(one: stats.Figures, lane: Lane) -> int:
        """Return how many works of a lane may run at once."""
        return one.max_parallelism or (PAUSED_CALLBACKS if lane is Lane.CALLBACK else 0)

    def reason(self, one: stats.Figures, lane: Lane, head: tuple[int, str, str] | None) -> Reason:
        """Return why the oldest due work of a lane does not start."""
        if head is None:
            return Reason.OK
        limit = self.limit(one, lane)
        if not limit:
            return Reason.PAUSED
        if self.leader.is_missing:
            # Nobody has gone, nobody has come yet.
            return Reason.NO_WORKER if not self.alive and self.lead[0] is None else Reason.NO_LEADER
        serving = self.fleet.serving(one.pool)
        if not serving:
            return Reason.NO_WORKER
        if self.running[one.pool, lane] >= limit:
            return Reason.FULL
        segment, path, fn_type = head
        rooms = [(worker, worker.room_for(lane, path)) for worker in serving if worker.knows(path, fn_type)]
        if not rooms:
            return Reason.HELD
        if all(self.fleet.load[worker.id, room] >= worker.capacity[room] for worker, room in rooms):
            return Reason.NO_ROOM
        return self._stalled(one, segment)

    def _reason_of_completions(self, one: stats.Figures, segment: int) -> Reason:
        """Return why ended works keep their slots."""
        return Reason.NO_LEADER if self.leader.is_missing else self._stalled(one, segment)

    def _stalled(self, one: stats.Figures, segment: int) -> Reason:
        # Whatever the loop does in a pool, it writes down within a second or two; that is written with it.
        waits = min(self._seconds_since(segment), self._seconds_since(one.progress)) > STALLED_AFTER
        return Reason.STALLED if waits else Reason.OK


def leads(db: Database, lead: tuple[uuid.UUID | None, int, int | None], now_ms: float, alive: Collection[uuid.UUID]) -> bool:
    """Return whether a lead's row (owner, term, expiry) tells of a process that leads; where there is no lease, of one that lives."""
    owner, _, expires_ms = lead
    if owner is None:
        return False
    return expires_ms is not None and expires_ms > now_ms if db.leases else owner in alive


def _lead_lock_is_free(db: Database) -> bool:
    """Return whether nobody holds the lock that the lead is. It can only be tried, and is given back at once."""
    trial = type(db)(db.using)
    try:
        return trial.take_lead_lock()
    except OSError:
        return False
    finally:
        trial.release_lead_lock()
