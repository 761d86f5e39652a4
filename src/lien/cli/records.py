"""Jobs and attempts as JSON, and as the pieces of text that list and show have in common."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from typing import Any

from lien.cli.text import duration, since, stamp
from lien.machine import State
from lien.model import AttemptRecord, JobRecord

_IDS = frozenset({"id", "job_id", "origin", "fence"})
_PAYLOADS = frozenset({"args", "result"})


def as_json(record: JobRecord | AttemptRecord) -> dict[str, Any]:
    """All fields; ids and fences as text, as they may not fit a JavaScript number; moments as ISO 8601 in UTC."""
    return {field.name: _plain(field.name, getattr(record, field.name)) for field in dataclasses.fields(record)}


def _plain(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _IDS:
        return str(value)
    if name in _PAYLOADS:
        return _payload(value)
    return stamp(value) if isinstance(value, datetime.datetime) else value


def _payload(text: str) -> Any:
    """The JSON inside, or its text where Python cannot hold it."""
    try:
        return json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def state(job: JobRecord) -> str:
    """The state, with its reason."""
    return f"{job.state} ({job.reason})" if job.reason else str(job.state)


def when(job: JobRecord, now: datetime.datetime) -> str:
    """How long the job has been in its state, or until it is due."""
    if job.finished_at is not None:
        return f"{duration(since(job.finished_at, now))} ago"
    if job.claimed_at is not None:
        text = f"for {duration(since(job.claimed_at, now))}"
        return f"{text}, lease expired" if job.lease_expired else text
    if job.state is State.SCHEDULED:
        left = since(now, job.available_at)
        return f"due in {duration(left)}" if left else "due"
    return f"waits {duration(since(job.available_at, now))}"
