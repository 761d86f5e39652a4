"""What a handler is told about the claim it runs under."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from lien import clock
from lien.errors import LeaseLost, UsageError
from lien.model import Claim


class Block(AbstractContextManager[Any, None], AbstractAsyncContextManager[Any, None], Protocol):
    """What ``transaction()`` gives: for ``with`` and for ``async with``."""


class Context:
    """The claim a handler runs under; ask for it with a first parameter annotated ``lien.Context``.

    Attributes:
        job_id: the job's id.
        attempt: 1 at the first claim of the job; it only grows.
        fence: a number strictly larger at every later claim of this job. Send it along with writes to another store
            that can compare, and refuse smaller ones there.
        task: the task's name.
        queue: the queue it came from.
        cancel_requested: whether an operator wants the job cancelled; coroutines are cancelled, plain functions look.
    """

    __slots__ = (
        "_holder",
        "_lost",
        "_namespace",
        "_open_block",
        "_shutdown",
        "attempt",
        "cancel_requested",
        "fence",
        "job_id",
        "queue",
        "task",
    )

    def __init__(
        self,
        claim: Claim,
        namespace: str,
        shutdown: threading.Event,
        open_block: Callable[[Any], Block] | None = None,
    ) -> None:
        self.job_id = claim.id
        self.attempt = claim.attempt
        self.fence = claim.fence
        self.task = claim.task
        self.queue = claim.queue
        self._namespace = namespace
        self.cancel_requested = False
        self._lost = False
        self._shutdown = shutdown
        self._open_block = open_block
        self._holder: Any = None

    @property
    def idempotency_key(self) -> str:
        """The same at every attempt of this job, and of no other job anywhere; for receivers that drop repetitions."""
        return f"{self._namespace}:{self.job_id}"

    @property
    def shutting_down(self) -> bool:
        """Whether the worker is draining: a long handler should save where it is and return, or raise Snooze."""
        return self._shutdown.is_set()

    @property
    def stale(self) -> bool:
        """Whether the lease could not be renewed in time: another worker may be running this job by now."""
        # By the clock as well: the thread that keeps leases may itself be waiting for the database.
        return self._lost or (self._holder is not None and clock.monotonic() >= self._holder.deadline)

    @property
    def lost(self) -> bool:
        """Whether the worker has been told, or has decided, that the claim is gone."""
        return self._lost

    def check(self) -> None:
        """Raise when there is no sense in going on.

        Raises:
            LeaseLost: the lease could not be renewed in time.
        """
        if self.stale:
            raise LeaseLost(f"the lease of job {self.job_id} (attempt {self.attempt}) was lost: stop")

    def transaction(self) -> Block:
        """A transaction of the jobs' database that acknowledges this job as it commits, once in an attempt.

        ``with ctx.transaction() as connection:`` (``async with`` in coroutines) gives a connection of the database's
        driver, at READ COMMITTED. What is written through it, jobs enqueued through it included, and the success of
        this job are committed together or not at all. What the handler returns afterwards is not kept, and what it
        raises afterwards is logged and changes nothing.

        Raises:
            StaleClaim: at the block's end: another worker has the job by now; everything was rolled back.
            LeaseLost: at its beginning: the lease is lost already.
            UsageError: a second block in one attempt, or a context that no worker made.
            DatabaseUnavailable: no connection, or it broke and the commit did not happen.
        """
        if self._open_block is None:
            raise UsageError("this Context was not made by a worker, so there is no claim to acknowledge")
        return self._open_block(self._holder)

    def held_by(self, holder: object) -> None:
        """Called by the worker: whose claim this is."""
        self._holder = holder

    def mark_lost(self) -> None:
        """Called by the worker when the lease is gone."""
        self._lost = True
