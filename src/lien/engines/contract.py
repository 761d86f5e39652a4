"""What every engine does: one sentence for each verb, none optional.

All verbs are operations (generators, see `lien.commands`): they say what is sent and what the rows mean, and do no
I/O. An engine is complete when the conformance suite passes on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from lien.commands import Op
from lien.machine import State
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
from lien.sqlfile import Statement


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema: its version, its name, and its statements with what each one locks."""

    version: int
    name: str
    steps: tuple[tuple[str, Statement], ...]


@dataclass(frozen=True, slots=True)
class Server:
    """The database server as found: ``version`` for people, ``too_old`` says what is needed (None: it will do)."""

    name: str
    version: str
    too_old: str | None
    read_only: bool


class Engine(Protocol):
    """One database's statements and the operations over them."""

    name: str
    """``postgresql``, ``sqlite`` …: also the word in results of the bench."""
    place: Callable[[str], str]
    """Puts a SQL text into the configured schema or prefix."""
    statements: dict[str, Statement]
    migrations: tuple[Migration, ...]
    reserves_ids: bool
    """Whether a lost connection can leave the outcome of an enqueue unknown, so that ids are reserved first."""
    channel: str
    """Where enqueues notify sleeping workers, if the engine can; a name unique to the schema."""

    def reserve(self, n: int) -> Op[list[int]]:
        """Ids for n jobs to come, so that an enqueue of unknown outcome can be looked up."""

    def enqueue(self, job: NewJob, *, id: int | None = None) -> Op[Enqueued]:
        """Write one job in the surrounding transaction; an equal live unique key answers with the older job."""

    def enqueue_many(self, jobs: Sequence[NewJob], *, ids: Sequence[int] | None = None) -> Op[list[Enqueued]]:
        """Write many jobs, all or none, in the order given; under these ids where they were reserved."""

    def enqueue_again(self, jobs: Sequence[NewJob], ids: Sequence[int]) -> Op[list[Enqueued]]:
        """Repeat an enqueue whose outcome is unknown under its reserved ids; never makes a second job."""

    def cycle(self, acks: Sequence[Ack], claim: ClaimRequest | None, promote: Promote | None) -> Op[Cycle]:
        """Acknowledge, promote what is due and claim, in one commit and as few round trips as the driver can."""

    def finish(self, acks: Sequence[Ack]) -> Op[Cycle]:
        """Acknowledge only: what an ack falls back to, as it never depends on a claim."""

    def find_closed(self, acks: Sequence[Ack]) -> Op[set[int]]:
        """Of acks that changed nothing, the ids whose attempt ended so under their token: already done."""

    def park(self, queue: str, priority: int, tasks: Sequence[str], limit: int) -> Op[int]:
        """Park up to ``limit`` runnable jobs of other tasks than these; how many."""

    def unpark(self, tasks: Sequence[str], limit: int) -> Op[int]:
        """Make up to ``limit`` parked jobs of these tasks runnable; how many."""

    def orphans(self, tokens: Sequence[UUID]) -> Op[list[Ack]]:
        """Claims made under these tokens, as releases that cost the job nothing."""

    def renew(self, held: Sequence[Held], lease: float) -> Op[Renewal]:
        """Extend leases by ``lease`` seconds from now, and say which claims are lost or to be cancelled."""

    def cancel_requests(self, ids: Sequence[int]) -> Op[set[int]]:
        """Of these claimed jobs, those that an operator wants cancelled."""

    def reap(self, limit: int) -> Op[list[Reaped]]:
        """Take back up to ``limit`` jobs whose lease is over."""

    def expire(self, limit: int) -> Op[int]:
        """End up to ``limit`` unclaimed jobs whose ``expires_at`` has come; how many."""

    def cancel(self, id: int) -> Op[State | None]:
        """Cancel a waiting job (answers FAILED), flag a claimed one (CLAIMED), or find none live (None)."""

    def copy_failed(self, id: int) -> Op[Enqueued | None]:
        """Enqueue a copy of a failed job that names it as origin; None when it is not a failed job."""

    def show(self, id: int) -> Op[JobRecord | None]:
        """One job, live or terminal."""

    def list(self, filter: JobFilter) -> Op[Sequence[JobRecord]]:
        """A page of jobs, newest first."""

    def attempts(self, id: int) -> Op[Sequence[AttemptRecord]]:
        """The ended attempts of a job, oldest first."""

    def sleep(self, worker: str, queues: Sequence[str], seconds: float) -> Op[None]:
        """Record that this worker sleeps on these queues, so that an enqueue wakes it."""

    def awake(self, worker: str) -> Op[None]:
        """Take that back."""

    def upkeep(self) -> Op[None]:
        """Whatever storage needs now and then: partitions of the coming days, left-over sleepers."""

    def server(self) -> Op[Server]:
        """Which server this is, and whether it will do."""

    def namespace(self) -> Op[str]:
        """A name that no other installation has: what makes idempotency keys unique in the world."""

    def schema_versions(self) -> Op[Sequence[int]]:
        """Versions applied, in order; empty when there is no schema."""

    def migrate(self, migration: Migration) -> Op[bool]:
        """Apply one migration unless somebody has; whether this call did it."""
