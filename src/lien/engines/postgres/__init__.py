"""PostgreSQL 13 and later: what is sent, in which order, and what the rows mean."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

from lien.commands import Begin, Commit, Copy, Fetch, Op, Pipe, Rollback, Script, Settings
from lien.engines.batches import batched
from lien.engines.contract import Migration, Server
from lien.engines.postgres.rows import ack_params, attempt, claimed, copy_row, endings, job_params, reason_of, record
from lien.engines.schema import load_migrations
from lien.errors import DatabaseError
from lien.machine import TERMINAL, AttemptOutcome, State
from lien.model import (
    Ack,
    AttemptRecord,
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
from lien.sqlfile import load, placed_in_schema

_START = datetime.datetime(1900, 1, 1, tzinfo=datetime.UTC)  # the CHECK on available_at allows nothing earlier
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MAX_ID = 2**63 - 1
_OLDEST_SERVER = 130_000
_PARTITION_DAYS = 8
_ROUNDS = 100


class Postgres:
    """The operations of `lien.engines.contract.Engine` on PostgreSQL.

    Args:
        schema: the schema that holds the tables.
    """

    name = "postgresql"
    reserves_ids = True

    def __init__(self, schema: str = "lien") -> None:
        self.schema = schema
        self.channel = "lien_" + hashlib.sha256(schema.encode()).hexdigest()[:16]
        in_schema = placed_in_schema(schema)

        def place(text: str) -> str:
            text = text.replace("'lien.lien_channel'", f"'{self.channel}'")
            text = in_schema(text.replace("'lien.lien_schema'", "'" + schema.replace("'", "''") + "'"))
            return text.replace("EXISTS lien;", 'EXISTS "' + schema.replace('"', '""') + '";')

        self.place: Callable[[str], str] = place
        self.statements = load(__name__, place)
        self.migrations: tuple[Migration, ...] = load_migrations(__name__, place)

    def _fetch(self, name: str, /, **params: Any) -> Fetch:
        return Fetch(self.statements[name], params)

    # ── enqueue ──

    def reserve(self, n: int) -> Op[list[int]]:
        rows = yield self._fetch("reserve", n=n)
        return [row[0] for row in rows]

    def enqueue(self, job: NewJob, *, id: int | None = None) -> Op[Enqueued]:
        for _ in range(_ROUNDS):
            rows = yield Fetch(self.statements["enqueue"], job_params(job, id))
            if rows:
                return Enqueued(rows[0][0])
            if job.unique_key is None:
                break
            rows = yield self._find_unique(job.queue, None, job.unique_key)
            if rows:
                return Enqueued(rows[0][0], created=False)
            # The older job ended between the two statements: its key is free again.
        raise DatabaseError(f"id {id} or unique key {job.unique_key!r} of {job.queue!r}: taken, then not found")

    def _find_unique(self, queue: str, tenant: str | None, unique_key: str | None) -> Fetch:
        return self._fetch("find_unique", queue=queue, tenant=tenant, unique_key=unique_key)

    def enqueue_many(self, jobs: Sequence[NewJob], *, ids: Sequence[int] | None = None) -> Op[list[Enqueued]]:
        done: dict[int, Enqueued] = {}
        plain = [i for i, job in enumerate(jobs) if job.unique_key is None]
        # In key order, so that two bulk enqueues of the same keys cannot wait for one another.
        keyed = sorted(
            (i for i, job in enumerate(jobs) if job.unique_key is not None),
            key=lambda i: (jobs[i].queue, str(jobs[i].unique_key)),
        )
        yield Begin()
        rows = yield self._fetch("reserve", n=len(jobs) if ids is None else 1)
        clock = _EPOCH + datetime.timedelta(microseconds=rows[0][1])
        if ids is None:
            ids = [row[0] for row in rows]
        for i in keyed:
            done[i] = yield from self.enqueue(jobs[i], id=ids[i])
        if plain:
            yield Copy(self.statements["enqueue_copy"], [copy_row(jobs[i], ids[i], clock) for i in plain])
            yield self._fetch("wake", queues=sorted({jobs[i].queue for i in plain}))
        yield Commit()
        return [done.get(i) or Enqueued(id) for i, id in enumerate(ids)]

    def enqueue_again(self, jobs: Sequence[NewJob], ids: Sequence[int]) -> Op[list[Enqueued]]:
        yield Begin()
        created: set[int] = set()
        for job, id in zip(jobs, ids, strict=True):
            rows = yield Fetch(self.statements["enqueue"], job_params(job, id))
            created |= {row[0] for row in rows}
        # Read after the inserts: they have waited for a first try still in progress, so this look is not too early.
        finished = yield self._fetch("find_finished", ids=list(ids))
        if finished:  # the first try had been committed, all of it, and some of its jobs are over
            yield Rollback()
            created = set()
        found = []
        over = {row[0] for row in finished}
        for job, id in zip(jobs, ids, strict=True):
            older = id
            if id not in created and id not in over and job.unique_key is not None:
                rows = yield self._find_unique(job.queue, None, job.unique_key)
                older = rows[0][0] if rows else id
            found.append(Enqueued(older, created=older == id))
        if not finished:
            yield Commit()
        return found

    # ── the pump ──

    def cycle(self, acks: Sequence[Ack], claim: ClaimRequest | None, promote: Promote | None) -> Op[Cycle]:
        batches, repeated = batched(acks)
        finishes = [
            Fetch(self.statements[kind], ack_params(kind, token, batch)) for (kind, token), batch in batches.items()
        ]
        commands: list[Fetch | Settings] = [Settings(self.statements["settings"]), *finishes]
        if promote is not None:
            commands.append(self._fetch("promote", floor=promote.floor or _START, limit=promote.limit))
        if claim is not None:
            commands.append(self._claim(claim))
        answers = yield Pipe(tuple(commands))
        ended, unacknowledged = endings(list(batches.values()), answers[: len(finishes)])
        rest = list(answers[len(finishes) :])
        promoted, promoted_floor, next_due = rest.pop(0)[0] if promote is not None else (0, None, None)
        claims, parked, task, behind = claimed(claim, rest.pop(0)) if claim is not None else ([], 0, None, 0)
        if behind:  # rows with larger fences than the sequence gives, as after a restore: they would never be claimed
            yield self._fetch("raise_fences")
        return Cycle(ended, unacknowledged + repeated, promoted, promoted_floor, next_due, claims, parked, task)

    def finish(self, acks: Sequence[Ack]) -> Op[Cycle]:
        return self.cycle(acks, None, None)

    def find_closed(self, acks: Sequence[Ack]) -> Op[set[int]]:
        closed: set[int] = set()
        for token, batch in groupby(sorted(acks, key=lambda a: a.token.int), key=lambda a: a.token):
            meant = {(ack.id, str(ack.outcome)) for ack in batch}
            rows = yield self._fetch("find_closed", ids=sorted(id for id, _ in meant), token=token)
            closed |= {id for id, outcome in rows if (id, outcome) in meant}
        return closed

    def _claim(self, claim: ClaimRequest) -> Fetch:
        lanes = claim.lanes
        return self._fetch(
            "claim",
            queues=[lane.queue for lane in lanes],
            priorities=[lane.priority for lane in lanes],
            floor_ats=[lane.floor[0] if lane.floor else _START for lane in lanes],
            floor_ids=[lane.floor[1] if lane.floor else 0 for lane in lanes],
            tasks=list(claim.tasks),
            limit=claim.limit,
            token=claim.token,
            worker=claim.worker,
            lease=claim.lease,
        )

    def park(self, queue: str, priority: int, tasks: Sequence[str], limit: int) -> Op[int]:
        rows = yield self._fetch("park", queue=queue, priority=priority, tasks=list(tasks), limit=limit)
        return len(rows)

    def unpark(self, tasks: Sequence[str], limit: int) -> Op[int]:
        rows = yield self._fetch("unpark", tasks=list(tasks), limit=limit)
        return len(rows)

    def orphans(self, tokens: Sequence[UUID]) -> Op[list[Ack]]:
        rows = yield self._fetch("orphans", tokens=list(tokens))
        return [
            Ack(id, attempt, token, "release", AttemptOutcome.RELEASED, started=False) for id, attempt, token in rows
        ]

    # ── leases ──

    def renew(self, held: Sequence[Held], lease: float) -> Op[Renewal]:
        held = sorted(held)
        ids, tokens = [h.id for h in held], [h.token for h in held]
        # One pipeline: a process frozen between two statements would keep these rows locked.
        renew = self._fetch("renew", ids=ids, tokens=tokens, lease=lease)
        (rows,) = yield Pipe((Settings(self.statements["settings"]), renew))
        renewed = frozenset(row[0] for row in rows)
        missing = [h for h in held if h.id not in renewed]
        locked: frozenset[int] = frozenset()
        if missing:
            still = yield self._fetch("still_held", ids=[h.id for h in missing], tokens=[h.token for h in missing])
            locked = frozenset(row[0] for row in still)
        return Renewal(
            renewed=renewed,
            cancel_requested=frozenset(row[0] for row in rows if row[1]),
            lost=frozenset(h.id for h in missing) - locked,
            locked=locked,
        )

    def cancel_requests(self, ids: Sequence[int]) -> Op[set[int]]:
        rows = yield self._fetch("cancel_requests", ids=list(ids))
        return {row[0] for row in rows}

    def reap(self, limit: int) -> Op[list[Reaped]]:
        rows = yield self._fetch("reap", limit=limit)
        return [Reaped(id, n, worker, State(state), reason_of(reason)) for id, n, worker, state, reason in rows]

    def expire(self, limit: int) -> Op[int]:
        rows = yield self._fetch("expire", limit=limit)
        return len(rows)

    # ── operators ──

    def cancel(self, id: int) -> Op[State | None]:
        for _ in range(_ROUNDS):
            rows = yield self._fetch("cancel", id=id)
            if rows:
                return State(rows[0][0])
            record = yield from self.show(id)
            if record is None or record.state in TERMINAL:
                return None
            # Somebody moved it while the statement waited for its row; a fresh snapshot sees where it is now.
        raise DatabaseError(f"job {id} moved too often to be cancelled")

    def copy_failed(self, id: int) -> Op[Enqueued | None]:
        yield Begin()
        rows = yield self._fetch("copy_failed", id=id)
        if rows:
            yield Commit()
            return Enqueued(rows[0][0])
        record = yield from self.show(id)
        if record is None or record.state is not State.FAILED:
            yield Commit()
            return None
        found = yield self._find_unique(record.queue, record.tenant, record.unique_key)
        yield Commit()
        return Enqueued(found[0][0], created=False) if found else None

    def show(self, id: int) -> Op[JobRecord | None]:
        rows = yield self._fetch("show", id=id)
        return record(rows[0]) if rows else None

    def list(self, filter: JobFilter) -> Op[Sequence[JobRecord]]:
        rows = yield self._fetch(
            "list",
            state=filter.state and str(filter.state),
            queue=filter.queue,
            task=filter.task,
            upto=_MAX_ID if filter.before is None else filter.before - 1,
            limit=filter.limit,
        )
        return [record(row) for row in rows]

    def attempts(self, id: int) -> Op[Sequence[AttemptRecord]]:
        rows = yield self._fetch("attempts", id=id)
        return [attempt(row) for row in rows]

    # ── sleep and upkeep ──

    def sleep(self, worker: str, queues: Sequence[str], seconds: float) -> Op[None]:
        yield self._fetch("sleep", worker=worker, queues=list(queues), seconds=seconds)

    def awake(self, worker: str) -> Op[None]:
        yield self._fetch("awake", worker=worker)

    def upkeep(self) -> Op[None]:
        yield self._fetch("prepare_partitions", days=_PARTITION_DAYS)
        yield self._fetch("dead_sleepers")

    # ── schema ──

    def server(self) -> Op[Server]:
        rows = yield self._fetch("server")
        number, version, read_only, encoding = rows[0]
        too_old = f"PostgreSQL {_OLDEST_SERVER // 10_000}" if number < _OLDEST_SERVER else None
        if encoding != "UTF8":
            too_old = f"a database with the encoding UTF8 (this one has {encoding})"
        return Server("PostgreSQL", version, too_old, read_only)

    def namespace(self) -> Op[str]:
        rows = yield self._fetch("namespace")
        return str(rows[0][0])

    def schema_versions(self) -> Op[Sequence[int]]:
        present = yield self._fetch("schema_present")
        if not present[0][0]:
            return []
        rows = yield self._fetch("schema_versions")
        return [row[0] for row in rows]

    def migrate(self, migration: Migration) -> Op[bool]:
        yield Begin()
        yield self._fetch("schema_lock")
        applied = yield from self.schema_versions()
        if migration.version in applied:
            yield Commit()
            return False
        for _, statement in migration.steps:
            yield Script(statement)
        yield self._fetch("schema_record", version=migration.version, name=migration.name)
        yield Commit()
        return True
