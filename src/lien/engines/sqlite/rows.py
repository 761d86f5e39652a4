"""Rows of SQLite as values, and values as parameters."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from lien.commands import Row
from lien.errors import DatabaseError
from lien.machine import AttemptOutcome, Reason, State
from lien.model import Ack, AttemptRecord, Claim, ClaimRequest, JobRecord, NewJob

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
MAX = 2**63 - 1

_BY_POSITION = itemgetter(6, 0)  # of a Claim: available_at, id


def packed(value: object) -> str:
    """A list as one JSON parameter."""
    return json.dumps(value, ensure_ascii=False)


def microseconds(seconds: float) -> int:
    """Seconds as the engine counts them."""
    return round(seconds * 1_000_000)


def floor_of(floor: int | None) -> int:
    """A position to start from; the beginning of time without one."""
    return -MAX if floor is None else floor


def instant(at: datetime.datetime) -> int:
    """A moment as microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def utc(instant: int) -> datetime.datetime:
    """The way back."""
    return _EPOCH + datetime.timedelta(microseconds=instant)


def utc_or_none(instant: int | None) -> datetime.datetime | None:
    """The way back, where there is one."""
    return None if instant is None else utc(instant)


def reason_of(text: str | None) -> Reason | None:
    """A stored reason."""
    return None if text is None else Reason(text)


def job_params(job: NewJob, id: int | None) -> dict[str, Any]:
    """The parameters of an enqueue."""
    return {
        "id": id,
        "queue": job.queue,
        "task": job.task,
        "args": job.args,
        "headers": job.headers,
        "priority": job.priority,
        "at_us": None if job.at is None else instant(job.at),
        "delay_us": microseconds(job.delay),
        "expires_us": None if job.expires is None else microseconds(job.expires),
        "unique_key": job.unique_key,
        "timeout": job.timeout,
        "max_failures": job.max_failures,
        "max_lost": job.max_lost,
        "max_interrupted": job.max_interrupted,
        "backoff_base": job.backoff_base,
        "backoff_cap": job.backoff_cap,
        "origin": job.origin,
    }


def copy_row(job: NewJob, id: int, now: int) -> Row:
    """A row of a bulk load; the clock decides its state."""
    at = now + microseconds(job.delay) if job.at is None else instant(job.at)
    return (
        id,
        job.queue,
        job.task,
        job.args,
        job.headers,
        job.priority,
        at,
        now,
        None if job.expires is None else at + microseconds(job.expires),
        at <= now,
        job.timeout,
        job.max_failures,
        job.max_lost,
        job.max_interrupted,
        job.backoff_base,
        job.backoff_cap,
        job.origin,
    )


def fail_fields(ack: Ack) -> Row:
    """What a failure writes."""
    return (
        ack.id,
        ack.final,
        ack.reason,
        ack.outcome,
        microseconds(ack.delay),
        ack.error,
        ack.traceback,
    )


def snooze_fields(ack: Ack) -> Row:
    """What a snooze writes."""
    return (ack.id, None if ack.until is None else instant(ack.until), microseconds(ack.delay))


def release_fields(ack: Ack) -> Row:
    """What a release writes."""
    return (ack.id, ack.started, ack.error)


ACK_FIELDS = {"fail": fail_fields, "snooze": snooze_fields, "release": release_fields}


def claimed(request: ClaimRequest, rows: Sequence[Row]) -> list[Claim]:
    """The claims of an answer, in the order to start them."""
    if len(rows) > request.limit:  # must never happen, must never pass unnoticed
        raise DatabaseError(f"a claim of {request.limit} returned {len(rows)} rows")
    token = request.token
    claims = [Claim._make((*row, token)) for row in rows]
    if len({c.priority for c in claims}) <= 1:
        claims.sort(key=_BY_POSITION)
    else:
        place = {(lane.queue, lane.priority): i for i, lane in enumerate(request.lanes)}
        claims.sort(key=lambda c: (place[c.queue, c.priority], c.available_at, c.id))
    return claims


def record(row: Row) -> JobRecord:
    """A stored job."""
    (id, queue, task, args, priority, state, reason, tenant, ordering_key, unique_key,
     available_at, created_at, expires_at, finished_at, attempt, failures, max_failures, lost,
     max_lost, interrupted, max_interrupted, timeout, fence, claimed_by, claimed_at,
     lease_expires_at, lease_expired, cancel_requested, last_error, result,
     origin) = row  # fmt: skip
    return JobRecord(
        id=id,
        queue=queue,
        task=task,
        args=args,
        priority=priority,
        state=State(state),
        reason=reason_of(reason),
        tenant=tenant,
        ordering_key=ordering_key,
        unique_key=unique_key,
        available_at=utc(available_at),
        created_at=utc(created_at),
        expires_at=utc_or_none(expires_at),
        finished_at=utc_or_none(finished_at),
        attempt=attempt,
        failures=failures,
        max_failures=max_failures,
        lost=lost,
        max_lost=max_lost,
        interrupted=interrupted,
        max_interrupted=max_interrupted,
        timeout=timeout,
        fence=fence,
        claimed_by=claimed_by,
        claimed_at=utc_or_none(claimed_at),
        lease_expires_at=utc_or_none(lease_expires_at),
        lease_expired=bool(lease_expired),
        cancel_requested=bool(cancel_requested),
        last_error=last_error,
        result=result,
        origin=origin,
    )


def attempt_record(row: Row) -> AttemptRecord:
    """A stored attempt."""
    job_id, attempt, outcome, reason, error, traceback, worker, fence, started_at, ended_at = row
    return AttemptRecord(
        job_id=job_id,
        attempt=attempt,
        outcome=AttemptOutcome(outcome),
        reason=reason,
        error=error,
        traceback=traceback,
        worker=worker,
        fence=fence,
        started_at=utc(started_at),
        ended_at=utc(ended_at),
    )
