"""What happens inside a worker, as one stream that the log, the command line and users' hooks read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

logger = logging.getLogger("lien.worker")


class What(StrEnum):
    """The kind of an event."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    FAILED = "failed"
    SNOOZED = "snoozed"
    RELEASED = "released"
    CANCELLED = "cancelled"
    STALE = "stale"
    LOST = "lost"
    REAPED = "reaped"
    PARKED = "parked"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        what: its kind.
        job_id, task, queue, attempt, max_failures: of the job, where there is one.
        seconds: how long the attempt took.
        again_in: seconds until the next try.
        error: one line.
        count: how many, where it is about several.
    """

    what: What
    job_id: int | None = None
    task: str | None = None
    queue: str | None = None
    attempt: int | None = None
    max_failures: int | None = None
    seconds: float | None = None
    again_in: float | None = None
    error: str | None = None
    count: int | None = None


Hook = Callable[[Event], None]

_LEVELS = {
    What.STARTED: logging.DEBUG,
    What.SUCCEEDED: logging.DEBUG,
    What.FAILED: logging.ERROR,
    What.RETRYING: logging.WARNING,
    What.STALE: logging.WARNING,
    What.LOST: logging.WARNING,
    What.REAPED: logging.WARNING,
    What.PARKED: logging.WARNING,
    What.DISCONNECTED: logging.WARNING,
}


class Stream:
    """Hands each event to the log and to the hooks; a hook that raises is logged and goes on being called."""

    def __init__(self, hooks: tuple[Hook, ...] = ()) -> None:
        self._hooks = hooks
        self.wanted = bool(hooks) or logger.isEnabledFor(logging.DEBUG)

    def emit(self, event: Event) -> None:
        """Tell everybody."""
        level = _LEVELS.get(event.what, logging.INFO)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", describe(event))
        for hook in self._hooks:
            try:
                hook(event)
            except Exception:
                logger.exception("a hook raised on %s", event.what)


def describe(event: Event) -> str:
    """The event as one line of text."""
    parts = [str(event.what)]
    if event.job_id is not None:
        parts.append(f"job {event.job_id}")
    if event.task is not None:
        parts.append(event.task)
    if event.attempt is not None:
        parts.append(f"attempt {event.attempt}")
    if event.count is not None:
        parts.append(f"({event.count})")
    if event.seconds is not None:
        parts.append(f"after {event.seconds:.3f} s")
    if event.again_in is not None:
        parts.append(f"again in {event.again_in:.1f} s")
    if event.error is not None:
        parts.append(f"- {event.error}")
    return " ".join(parts)
