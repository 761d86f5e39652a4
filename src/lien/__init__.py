"""Lien: durable jobs for Python that live in your own database."""

from __future__ import annotations

from lien.context import Context
from lien.errors import (
    DatabaseError,
    DatabaseUnavailable,
    JobNotFound,
    LeaseLost,
    LienError,
    PayloadError,
    SchemaError,
    ServerTooOld,
    SignatureError,
    StaleClaim,
    TransitionRefused,
    UnknownTask,
    UnsupportedConnection,
    UsageError,
)
from lien.machine import AttemptOutcome, Reason, State
from lien.model import AttemptRecord, Enqueued, JobFilter, JobRecord
from lien.outcomes import Cancel, Discard, Retry, Snooze
from lien.policy import Backoff
from lien.queue import Lien
from lien.task import Bound, Call, Task

__version__ = "0.1.0"

__all__ = [
    "AttemptOutcome",
    "AttemptRecord",
    "Backoff",
    "Bound",
    "Call",
    "Cancel",
    "Context",
    "DatabaseError",
    "DatabaseUnavailable",
    "Discard",
    "Enqueued",
    "JobFilter",
    "JobNotFound",
    "JobRecord",
    "LeaseLost",
    "Lien",
    "LienError",
    "PayloadError",
    "Reason",
    "Retry",
    "SchemaError",
    "ServerTooOld",
    "SignatureError",
    "Snooze",
    "StaleClaim",
    "State",
    "Task",
    "TransitionRefused",
    "UnknownTask",
    "UnsupportedConnection",
    "UsageError",
]
