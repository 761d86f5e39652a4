"""The nouns: what is enqueued, claimed, acknowledged and looked at. Values only."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from lien.machine import AttemptOutcome, Reason, State
from lien.policy import (
    DEFAULT_MAX_FAILURES,
    DEFAULT_MAX_INTERRUPTED,
    DEFAULT_MAX_LOST,
    DEFAULT_TIMEOUT,
)

PRIORITIES = {"critical": 0, "high": 1, "normal": 2, "low": 3}
DEFAULT_QUEUE = "default"
MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to enqueue, already checked. Every limit travels with the row, so that reaping needs the row only."""

    task: str
    args: str
    queue: str = DEFAULT_QUEUE
    headers: str | None = None
    priority: int = PRIORITIES["normal"]
    delay: float = 0.0
    at: datetime.datetime | None = None
    unique_key: str | None = None
    expires: float | None = None
    timeout: float = DEFAULT_TIMEOUT
    max_failures: int = DEFAULT_MAX_FAILURES
    max_lost: int = DEFAULT_MAX_LOST
    max_interrupted: int = DEFAULT_MAX_INTERRUPTED
    backoff_base: float = 5.0
    backoff_cap: float = 3600.0
    origin: int | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What an enqueue did: the job's id, and whether this call created it (``unique`` may find an older one)."""

    id: int
    created: bool = True


class Claim(NamedTuple):
    """One job as one worker holds it. ``available_at`` is the engine's own value: compare, never compute."""

    id: int
    attempt: int
    task: str
    args: str
    queue: str
    priority: int
    available_at: Any
    fence: int
    failures: int
    max_failures: int
    lost: int
    timeout: float
    backoff_base: float
    backoff_cap: float
    token: UUID


class Lane(NamedTuple):
    """Where to look for plain jobs: a queue, a class, and the position to start from (None: the start)."""

    queue: str
    priority: int
    floor: tuple[Any, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A wish for up to ``limit`` jobs of known tasks; lanes are tried in order. ``lease`` in seconds."""

    lanes: tuple[Lane, ...]
    limit: int
    tasks: tuple[str, ...]
    token: UUID
    worker: str
    lease: float


class Promote(NamedTuple):
    """A wish to make due jobs runnable: up to ``limit``, from the position ``floor`` on (None: the start)."""

    floor: Any
    limit: int


class Ack(NamedTuple):
    """The end of one attempt as the worker reports it; which transition it makes is its kind.

    ``delay`` is in seconds from the moment of writing. ``final`` and ``reason`` are used by ``fail`` only.
    """

    id: int
    attempt: int
    token: UUID
    kind: str  # succeed | fail | snooze | release
    outcome: AttemptOutcome
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    delay: float = 0.0
    until: datetime.datetime | None = None
    final: bool = False
    reason: Reason | None = None
    started: bool = True


class Ended(NamedTuple):
    """What an accepted acknowledgement did to its job."""

    id: int
    attempt: int
    state: State
    reason: Reason | None
    available_at: Any = None


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one round trip of the pump did.

    ``unacknowledged`` are acks that changed nothing: already done, or stale. ``promoted_floor`` is the least
    ``available_at`` made runnable, ``next_due`` the seconds until the next scheduled job (None: there is none).
    ``parked_task`` is one of the unknown tasks met.
    """

    ended: list[Ended] = field(default_factory=list)
    unacknowledged: list[Ack] = field(default_factory=list)
    promoted: int = 0
    promoted_floor: Any = None
    next_due: float | None = None
    claims: list[Claim] = field(default_factory=list)
    parked: int = 0
    parked_task: str | None = None


class Held(NamedTuple):
    """A claim by its proof."""

    id: int
    token: UUID


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal, by job id. ``locked``: another transaction holds the row just now; ask again soon."""

    renewed: frozenset[int] = frozenset()
    cancel_requested: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    locked: frozenset[int] = frozenset()


class Reaped(NamedTuple):
    """One job taken back from a silent worker."""

    id: int
    attempt: int
    worker: str
    state: State
    reason: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as storage has it, live or terminal. Times are aware datetimes in UTC."""

    id: int
    queue: str
    task: str
    args: str
    priority: int
    state: State
    reason: Reason | None
    tenant: str | None
    ordering_key: str | None
    unique_key: str | None
    available_at: datetime.datetime
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    finished_at: datetime.datetime | None
    attempt: int
    failures: int
    max_failures: int
    lost: int
    max_lost: int
    interrupted: int
    max_interrupted: int
    timeout: float
    fence: int
    claimed_by: str | None
    claimed_at: datetime.datetime | None
    lease_expires_at: datetime.datetime | None
    lease_expired: bool
    cancel_requested: bool
    last_error: str | None
    result: str | None
    origin: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt as its write-once record says it."""

    job_id: int
    attempt: int
    outcome: AttemptOutcome
    reason: str | None
    error: str | None
    traceback: str | None
    worker: str
    fence: int
    started_at: datetime.datetime
    ended_at: datetime.datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list: newest first, below id ``before``."""

    state: State | None = None
    queue: str | None = None
    task: str | None = None
    before: int | None = None
    limit: int = 50
