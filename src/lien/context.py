"""What a handler is told about the claim it runs under."""

from __future__ import annotations

import threading

from lien.errors import LeaseLost
from lien.model import Claim


class Context:
    """The claim a handler runs under; ask for it with a first parameter annotated ``lien.Context``.

    Attributes:
        job_id: the job's id.
        attempt: 1 at the first claim of the job; it only grows.
        fence: a number strictly larger at every later claim of this job. Send it along with writes to another store
            that can compare, and refuse smaller ones there.
        idempotency_key: the same at every attempt of this job; for receivers that drop repeated requests.
        task: the task's name.
        queue: the queue it came from.
    """

    __slots__ = (
        "_lost",
        "_shutdown",
        "attempt",
        "cancel_requested",
        "fence",
        "idempotency_key",
        "job_id",
        "queue",
        "task",
    )

    def __init__(self, claim: Claim, namespace: str, shutdown: threading.Event) -> None:
        self.job_id = claim.id
        self.attempt = claim.attempt
        self.fence = claim.fence
        self.task = claim.task
        self.queue = claim.queue
        self.idempotency_key = f"{namespace}:{claim.id}"
        self.cancel_requested = False
        self._lost = False
        self._shutdown = shutdown

    @property
    def shutting_down(self) -> bool:
        """Whether the worker is draining: a long handler should save where it is and return, or raise Snooze."""
        return self._shutdown.is_set()

    @property
    def stale(self) -> bool:
        """Whether the lease could not be renewed in time: another worker may be running this job by now."""
        return self._lost

    def check(self) -> None:
        """Raise when there is no sense in going on.

        Raises:
            LeaseLost: the lease could not be renewed in time.
        """
        if self._lost:
            raise LeaseLost(f"the lease of job {self.job_id} (attempt {self.attempt}) was lost: stop")

    def mark_lost(self) -> None:
        """Called by the worker when the lease is gone."""
        self._lost = True
