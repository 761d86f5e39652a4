"""SQLite 3.37 and later: what is sent, in which order, and what the rows mean.

One writer at a time: inside Begin (BEGIN IMMEDIATE) what was read stays true until Commit, so a
transition may be several statements. Each of them tests its own guards all the same. ``:now`` is
bound by the driver: the host's clock, in microseconds, one moment for all statements of a
transaction. Lists travel as one JSON parameter.
"""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

from lien.commands import Begin, Commit, Copy, Fetch, Op, Rollback, Script
from lien.engines.contract import Migration, Server
from lien.engines.schema import load_migrations
from lien.engines.sqlite import rows as values
from lien.engines.sqlite.acks import acknowledge
from lien.errors import DatabaseError, UsageError
from lien.machine import AttemptOutcome, State
from lien.model import (
    Ack,
    AttemptRecord,
    Claim,
    ClaimRequest,
    Cycle,
    Enqueued,
    Held,
    JobFilter,
    JobRecord,
    NewJob,
    Promote,
    Reaped,
    Renewal,
)
from lien.sqlfile import load, placed_with_prefix

_MAX = 2**63 - 1
_OLDEST = (3, 37)  # STRICT tables
_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNIQUE_ROUNDS = 100
_LONG_WAIT_US = 100_000


class Sqlite:
    """The operations of `lien.engines.contract.Engine` on SQLite.

    Args:
        prefix: what the names of all tables begin with.

    Raises:
        UsageError: the prefix is not an identifier.
    """

    name = "sqlite"
    reserves_ids = False
    """A commit here is known to have happened or not, so no enqueue needs an id beforehand."""

    def __init__(self, prefix: str = "lien_") -> None:
        if not _PREFIX.fullmatch(prefix) or prefix.lower().startswith("sqlite_"):
            raise UsageError(f"prefix={prefix!r}: use letters, digits and _, no digit or sqlite_ first")
        self.prefix = prefix
        self.channel = prefix + "channel"
        self.place: Callable[[str], str] = placed_with_prefix(prefix)
        self.statements = load(__name__, self.place)
        self.migrations: tuple[Migration, ...] = load_migrations(__name__, self.place)

    def _fetch(self, name: str, /, **params: Any) -> Fetch:
        return Fetch(self.statements[name], params)

    # ── enqueue ──

    def reserve(self, n: int) -> Op[list[int]]:
        ids, _ = yield from self._reserve(n)
        return list(ids)

    def _reserve(self, n: int) -> Op[tuple[Sequence[int], int]]:
        rows = yield self._fetch("reserve", n=n)
        if not rows or not isinstance(rows[0][0], int):  # beyond the last integer it would count in floats
            raise DatabaseError(f"{self.prefix}job has no row in sqlite_sequence, or has given its last id")
        last, now = rows[0]
        return range(last - n + 1, last + 1), now

    def enqueue(self, job: NewJob, *, id: int | None = None) -> Op[Enqueued]:
        for _ in range(_UNIQUE_ROUNDS):
            rows = yield Fetch(self.statements["enqueue"], values.job_params(job, id))
            if rows:
                return Enqueued(rows[0][0])
            if job.unique_key is None:
                break
            found = yield from self._find_unique(job.queue, None, job.unique_key)
            if found:
                return found
            # The older job ended between the two statements: its key is free again.
        raise DatabaseError(f"id {id} or unique key {job.unique_key!r} of {job.queue!r}: taken, then not found")

    def enqueue_many(self, jobs: Sequence[NewJob], *, ids: Sequence[int] | None = None) -> Op[list[Enqueued]]:
        done: dict[int, Enqueued] = {}
        yield Begin()
        reserved, now = yield from self._reserve(len(jobs) if ids is None else 0)
        if ids is None:
            ids = reserved
        plain = [i for i, job in enumerate(jobs) if job.unique_key is None]
        if len(plain) < len(jobs):
            for i, job in enumerate(jobs):
                if job.unique_key is not None:
                    done[i] = yield from self.enqueue(job, id=ids[i])
        rows = (values.copy_row(jobs[i], ids[i], now) for i in plain)
        yield Copy(self.statements["enqueue_copy"], rows)
        yield Commit()
        return [done.get(i) or Enqueued(id) for i, id in enumerate(ids)]

    def enqueue_again(self, jobs: Sequence[NewJob], ids: Sequence[int]) -> Op[list[Enqueued]]:
        yield Begin()
        created: set[int] = set()
        for job, id in zip(jobs, ids, strict=True):
            rows = yield Fetch(self.statements["enqueue"], values.job_params(job, id))
            created |= {row[0] for row in rows}
        finished = yield self._fetch("find_finished", ids=json.dumps(list(ids)))
        over = {row[0] for row in finished}
        if over:  # the first try had been committed, all of it, and some of its jobs are over
            yield Rollback()
            created = set()
        found = []
        for job, id in zip(jobs, ids, strict=True):
            older = None
            if id not in created and id not in over and job.unique_key is not None:
                older = yield from self._find_unique(job.queue, None, job.unique_key)
            found.append(older if older and older.id != id else Enqueued(id))
        if not over:
            yield Commit()
        return found

    def _find_unique(self, queue: str, tenant: str | None, unique_key: str | None) -> Op[Enqueued | None]:
        rows = yield self._fetch("find_unique", queue=queue, tenant=tenant, unique_key=unique_key)
        return Enqueued(rows[0][0], created=False) if rows else None

    # ── the pump ──

    def cycle(self, acks: Sequence[Ack], claim: ClaimRequest | None, promote: Promote | None) -> Op[Cycle]:
        if not acks:
            rows = yield self._look(claim, promote)
            due, next_due, runnable = rows[0]
            if not due and not runnable:
                return Cycle(next_due=next_due if promote is not None else None)
        yield Begin()
        ended, unacknowledged = yield from acknowledge(self._fetch, acks)
        promoted, promoted_floor, next_due = yield from self._promote(promote)
        claims, parked, task = yield from self._claim(claim)
        yield Commit()
        return Cycle(ended, unacknowledged, promoted, promoted_floor, next_due, claims, parked, task)

    def finish(self, acks: Sequence[Ack]) -> Op[Cycle]:
        return self.cycle(acks, None, None)

    def find_closed(self, acks: Sequence[Ack]) -> Op[set[int]]:
        closed: set[int] = set()
        for token, batch in groupby(sorted(acks, key=lambda a: a.token.int), key=lambda a: a.token):
            meant = {(ack.id, str(ack.outcome)) for ack in batch}
            rows = yield self._fetch("find_closed", ids=json.dumps([id for id, _ in meant]), token=token.hex)
            closed |= {id for id, outcome in rows if (id, outcome) in meant}
        return closed

    def _look(self, claim: ClaimRequest | None, promote: Promote | None) -> Fetch:
        lanes = claim.lanes if claim is not None else ()
        return self._fetch(
            "look",
            promote_floor=_MAX if promote is None else values.floor_of(promote.floor),
            lanes=json.dumps([(lane.queue, lane.priority, *(lane.floor or (-_MAX, 0))) for lane in lanes]),
        )

    def _promote(self, promote: Promote | None) -> Op[tuple[int, int | None, float | None]]:
        if promote is None:
            return 0, None, None
        moved = yield self._fetch("promote", floor=values.floor_of(promote.floor), limit=promote.limit)
        due = yield self._fetch("next_due")
        return len(moved), min((row[0] for row in moved), default=None), due[0][0] if due else None

    def _claim(self, claim: ClaimRequest | None) -> Op[tuple[list[Claim], int, str | None]]:
        """The picks of all lanes, then one fence and one write for them."""
        picked: list[int] = []
        if claim is None:
            return [], 0, None
        for lane in claim.lanes:
            if len(picked) >= claim.limit:
                break
            floor_at, floor_id = lane.floor or (-_MAX, 0)
            rows = yield self._fetch(
                "claim_pick",
                queue=lane.queue,
                priority=lane.priority,
                floor_at=floor_at,
                floor_id=floor_id,
                limit=claim.limit - len(picked),
            )
            picked += [row[0] for row in rows]
        if not picked:
            return [], 0, None
        ids, tasks = json.dumps(picked), json.dumps(claim.tasks)
        fence = yield self._fetch("claim_fence")
        rows = yield self._fetch(
            "claim",
            ids=ids,
            tasks=tasks,
            token=claim.token.hex,
            worker=claim.worker,
            fence=fence[0][0],
            lease_us=values.microseconds(claim.lease),
        )
        parked = []
        if len(rows) < len(picked):
            parked = yield self._fetch("claim_park", ids=ids, tasks=tasks)
        return values.claimed(claim, rows), len(parked), parked[0][0] if parked else None

    def park(self, queue: str, priority: int, tasks: Sequence[str], limit: int) -> Op[int]:
        known = json.dumps(list(tasks))
        rows = yield self._fetch("park", queue=queue, priority=priority, tasks=known, limit=limit)
        return len(rows)

    def unpark(self, tasks: Sequence[str], limit: int) -> Op[int]:
        rows = yield self._fetch("unpark", tasks=json.dumps(list(tasks)), limit=limit)
        return len(rows)

    def orphans(self, tokens: Sequence[UUID]) -> Op[list[Ack]]:
        rows = yield self._fetch("orphans", tokens=json.dumps([token.hex for token in tokens]))
        return [
            Ack(id, attempt, UUID(token), "release", AttemptOutcome.RELEASED, started=False)
            for id, attempt, token in rows
        ]

    # ── leases ──

    def renew(self, held: Sequence[Held], lease: float) -> Op[Renewal]:
        pairs = json.dumps([(h.id, h.token.hex) for h in held])
        yield Begin()  # so that the lease counts from behind the wait for the lock
        rows = yield self._fetch("renew", held=pairs, lease_us=values.microseconds(lease))
        yield Commit()
        renewed = frozenset(row[0] for row in rows)
        return Renewal(
            renewed=renewed,
            cancel_requested=frozenset(row[0] for row in rows if row[1]),
            lost=frozenset(h.id for h in held) - renewed,
        )

    def cancel_requests(self, ids: Sequence[int]) -> Op[set[int]]:
        rows = yield self._fetch("cancel_requests", ids=json.dumps(list(ids)))
        return {row[0] for row in rows}

    def reap(self, limit: int) -> Op[list[Reaped]]:
        overdue = yield self._fetch("reap_pick", limit=limit)
        if not overdue:
            return []
        before = yield self._fetch("clock")
        yield Begin()
        after = yield self._fetch("clock")
        if after[0][0] - before[0][0] > _LONG_WAIT_US:  # the owners may be waiting for the same lock, to renew
            yield Rollback()
            return []
        overdue = yield self._fetch("reap_pick", limit=limit)
        ids = json.dumps([row[0] for row in overdue])
        for name in ("reap_attempts", "reap_history", "reap_end", "reap"):
            yield self._fetch(name, ids=ids)
        yield Commit()
        return [
            Reaped(id, n, worker, State(state), values.reason_of(reason)) for id, n, worker, state, reason in overdue
        ]

    def expire(self, limit: int) -> Op[int]:
        over = yield self._fetch("expire_pick", limit=limit)
        if not over:
            return 0
        yield Begin()
        over = yield self._fetch("expire_pick", limit=limit)
        ids = json.dumps([row[0] for row in over])
        yield self._fetch("expire_history", ids=ids)
        rows = yield self._fetch("expire", ids=ids)
        yield Commit()
        return len(rows)

    # ── operators ──

    def cancel(self, id: int) -> Op[State | None]:
        yield Begin()
        yield self._fetch("cancel_history", id=id)
        rows = yield self._fetch("cancel", id=id)
        if not rows:
            rows = yield self._fetch("request_cancel", id=id)
        yield Commit()
        return State(rows[0][0]) if rows else None

    def copy_failed(self, id: int) -> Op[Enqueued | None]:
        yield Begin()
        rows = yield self._fetch("copy_failed", id=id)
        answer = Enqueued(rows[0][0]) if rows else (yield from self._older_copy(id))
        yield Commit()
        return answer

    def _older_copy(self, id: int) -> Op[Enqueued | None]:
        record = yield from self.show(id)
        if record is None or record.state is not State.FAILED:
            return None
        return (yield from self._find_unique(record.queue, record.tenant, record.unique_key))

    def show(self, id: int) -> Op[JobRecord | None]:
        rows = yield self._fetch("show", id=id)
        return values.record(rows[0]) if rows else None

    def list(self, filter: JobFilter) -> Op[builtins.list[JobRecord]]:
        rows = yield self._fetch(
            "list",
            state=filter.state and str(filter.state),
            queue=filter.queue,
            task=filter.task,
            upto=_MAX if filter.before is None else filter.before - 1,
            limit=filter.limit,
        )
        return [values.record(row) for row in rows]

    def attempts(self, id: int) -> Op[builtins.list[AttemptRecord]]:
        rows = yield self._fetch("attempts", id=id)
        return [values.attempt_record(row) for row in rows]

    # ── sleep and upkeep: workers learn of commits from the file, so nothing has to be recorded ──

    def sleep(self, worker: str, queues: Sequence[str], seconds: float) -> Op[None]:  # noqa: ARG002
        yield from ()

    def awake(self, worker: str) -> Op[None]:  # noqa: ARG002 - nothing was recorded
        yield from ()

    def upkeep(self) -> Op[None]:
        yield from ()

    # ── schema ──

    def server(self) -> Op[Server]:
        rows = yield self._fetch("server")
        version, read_only = rows[0]
        old = tuple(int(part) for part in version.split(".")[:2]) < _OLDEST
        too_old = f"SQLite {_OLDEST[0]}.{_OLDEST[1]}" if old else None
        return Server("SQLite", version, too_old, bool(read_only))

    def namespace(self) -> Op[str]:
        rows = yield self._fetch("namespace")
        return str(rows[0][0])

    def schema_versions(self) -> Op[builtins.list[int]]:
        present = yield self._fetch("schema_present")
        if not present[0][0]:
            return []
        rows = yield self._fetch("schema_versions")
        return [row[0] for row in rows]

    def migrate(self, migration: Migration) -> Op[bool]:
        # One migrator at a time: the others wait here and then find nothing left to do.
        yield Begin()
        applied = yield from self.schema_versions()
        if migration.version in applied:
            yield Commit()
            return False
        for _, statement in migration.steps:
            yield Script(statement)
        yield self._fetch("schema_record", version=migration.version, name=migration.name)
        yield Commit()
        return True
