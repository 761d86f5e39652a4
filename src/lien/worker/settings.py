"""Every setting of a worker, checked before it starts."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass, field

from lien.errors import UsageError
from lien.policy import seconds
from lien.task import checked_name

MAX_CONCURRENCY = 10_000


def _identity() -> str:
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker works. Durations are in seconds.

    Attributes:
        queues: which queues it serves; empty: those of all registered tasks.
        concurrency: how many jobs run at once; a worker never holds more than it has free slots.
        lease: how long a claim stands without renewal. Renewals happen every third of it.
        poll: longest pause between looks for work; wake-ups make it shorter, polling is what is relied on.
        grace: how long running handlers may go on after a stop was asked for.
        cancel_grace: how long cancelled handlers may take to clean up after that.
        burst: stop when there is nothing left to run.
        identity: written to every claim; new at each start, so that a restarted worker never vouches for the jobs
            of the one before.
    """

    queues: tuple[str, ...] = ()
    concurrency: int = 10
    lease: float = 60.0
    poll: float = 1.0
    grace: float = 20.0
    cancel_grace: float = 3.0
    burst: bool = False
    identity: str = field(default_factory=_identity)

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the setting and the rule."""
        if isinstance(self.queues, str):  # type: ignore[unreachable]  # a slip that types would forbid
            raise UsageError(f"queues is {self.queues!r}: give a tuple of names, as ({self.queues!r},)")
        for queue in self.queues:
            checked_name("queue", queue)
        checked_name("identity", self.identity)
        if (
            isinstance(self.concurrency, bool)
            or not isinstance(self.concurrency, int)
            or not 1 <= self.concurrency <= MAX_CONCURRENCY
        ):
            raise UsageError(f"concurrency is {self.concurrency!r}: give an integer from 1 to {MAX_CONCURRENCY}")
        seconds("lease", self.lease, least=0.3)
        seconds("poll", self.poll, least=0.01)
        seconds("grace", self.grace)
        seconds("cancel_grace", self.cancel_grace)

    @property
    def renew_every(self) -> float:
        """A third of the lease: two renewals may fail before it is lost."""
        return self.lease / 3

    @property
    def reap_every(self) -> float:
        """A quarter of the lease."""
        return self.lease / 4

    @property
    def margin(self) -> float:
        """How long before the lease's end it counts as lost here, as answers take time."""
        return min(max(2.0, self.lease / 10), self.lease / 3)
