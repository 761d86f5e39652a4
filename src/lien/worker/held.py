"""The claims that this process holds: shared by the pump, the lease thread and the executors."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from enum import Enum

from lien.context import Context
from lien.model import Claim


class Cause(Enum):
    """Why the worker itself cancelled a handler: told by this flag, never by the kind of exception."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"
    SHUTDOWN = "shutdown"


class Running:
    """One claim on its way through this process.

    Attributes:
        deadline: local seconds until which the lease surely stands.
        renew_at: local seconds at which to renew it.
        timeout_at: local seconds at which the attempt has taken too long.
        ended: its handler is over; what became of it is on its way to the database.
        opened, acknowledged: its own transaction has begun, and has committed with the acknowledgement.
        cause: why the worker cancelled the handler, if it did.
        task: what runs the handler, if it is a coroutine.
        note, again_in: the error and the seconds until the next try, for those who tell.
    """

    __slots__ = (
        "_gate",
        "acknowledged",
        "again_in",
        "began_at",
        "cause",
        "claim",
        "context",
        "deadline",
        "ended",
        "note",
        "opened",
        "renew_at",
        "task",
        "timeout_at",
    )

    def __init__(self, claim: Claim, context: Context, deadline: float, renew_at: float) -> None:
        self.claim = claim
        self.context = context
        context.held_by(self)
        self.deadline = deadline
        self.renew_at = renew_at
        self.timeout_at = float("inf")
        self.began_at: float | None = None
        self.ended = False
        self.opened = False
        self.acknowledged = False
        self.cause: Cause | None = None
        self.task: asyncio.Task[None] | None = None
        self.note: str | None = None
        self.again_in: float | None = None
        self._gate = [True]

    def begin(self) -> bool:
        """Whether the handler may start; False when the claim was given back before it could.

        Whoever takes the one item of the gate has decided: list.pop is atomic.
        """
        try:
            self._gate.pop()
        except IndexError:
            return False
        return True

    def withdraw(self) -> bool:
        """Whether the handler was kept from starting; False when it has started already."""
        return self.begin()

    @property
    def key(self) -> tuple[int, int]:
        """Which claim this is: the job alone may be claimed again while its lost attempt still runs."""
        return self.claim.id, self.claim.attempt

    def stop(self, cause: Cause) -> None:
        """Cancel the handler for a reason. The first reason stands; the context hears of each."""
        if cause is Cause.LOST:
            self.context.mark_lost()
        elif cause is Cause.CANCELLED:
            self.context.cancel_requested = True
        if self.cause is None:
            self.cause = cause
            self.cancel()

    def cancel(self) -> None:
        """Stop the handler if that can be done, from any thread."""
        if (task := self.task) is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended meanwhile, and the handler with it
                task.get_loop().call_soon_threadsafe(task.cancel)


class HeldClaims:
    """All claims of this process, by job and attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[tuple[int, int], Running] = {}
        self.empty = threading.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, batch: Iterable[Running]) -> None:
        """Claims have come."""
        with self._lock:
            self._by_key.update({running.key: running for running in batch})
            if self._by_key:
                self.empty.clear()

    def remove(self, keys: Iterable[tuple[int, int]]) -> list[Running]:
        """Claims have ended or turned out to be somebody else's."""
        with self._lock:
            gone = [running for key in keys if (running := self._by_key.pop(key, None)) is not None]
            if not self._by_key:
                self.empty.set()
        return gone

    def holds(self, running: Running) -> bool:
        """Whether a claim is still here."""
        return self._by_key.get(running.key) is running

    def all(self) -> list[Running]:
        """A snapshot."""
        with self._lock:
            return list(self._by_key.values())
