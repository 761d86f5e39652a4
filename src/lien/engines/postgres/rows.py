"""Rows of PostgreSQL as values, and values as parameters."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from operator import itemgetter
from typing import Any
from uuid import UUID

from lien.commands import Row
from lien.errors import DatabaseError
from lien.machine import AttemptOutcome, Reason, State
from lien.model import Ack, AttemptRecord, Claim, ClaimRequest, Ended, JobRecord, NewJob

_BY_POSITION = itemgetter(6, 0)  # of a Claim: available_at, id


def job_params(job: NewJob, id: int | None) -> dict[str, Any]:
    """The parameters of an enqueue."""
    return {
        "id": id,
        "queue": job.queue,
        "task": job.task,
        "args": job.args,
        "headers": job.headers,
        "priority": job.priority,
        "at": job.at,
        "delay": job.delay,
        "expires": job.expires,
        "unique_key": job.unique_key,
        "timeout": job.timeout,
        "max_failures": job.max_failures,
        "max_lost": job.max_lost,
        "max_interrupted": job.max_interrupted,
        "backoff_base": job.backoff_base,
        "backoff_cap": job.backoff_cap,
        "origin": job.origin,
    }


def copy_row(job: NewJob, id: int, clock: datetime.datetime) -> Row:
    """A row of a bulk load; the clock decides its state."""
    at = job.at if job.at is not None else clock + datetime.timedelta(seconds=job.delay)
    return (
        id,
        job.queue,
        job.task,
        job.args,
        job.headers,
        job.priority,
        at,
        None if job.expires is None else at + datetime.timedelta(seconds=job.expires),
        str(State.RUNNABLE if at <= clock else State.SCHEDULED),
        job.timeout,
        job.max_failures,
        job.max_lost,
        job.max_interrupted,
        job.backoff_base,
        job.backoff_cap,
        job.origin,
    )


def ack_params(kind: str, token: UUID, batch: Sequence[Ack]) -> dict[str, Any]:
    """The parameters of one statement that ends claims."""
    params: dict[str, Any] = {"ids": [ack.id for ack in batch], "token": token}
    match kind:
        case "succeed_with_result":
            params["results"] = [ack.result for ack in batch]
        case "fail":
            params |= {
                "finals": [ack.final for ack in batch],
                "reasons": [ack.reason and str(ack.reason) for ack in batch],
                "outcomes": [str(ack.outcome) for ack in batch],
                "delays": [ack.delay for ack in batch],
                "errors": [ack.error for ack in batch],
                "tracebacks": [ack.traceback for ack in batch],
            }
        case "snooze":
            params |= {
                "delays": [ack.delay for ack in batch],
                "untils": [ack.until for ack in batch],
            }
        case "release":
            params |= {
                "starteds": [ack.started for ack in batch],
                "errors": [ack.error for ack in batch],
            }
    return params


def endings(batches: Sequence[list[Ack]], answers: Sequence[list[Row]]) -> tuple[list[Ended], list[Ack]]:
    """What each batch of acks did, and those that changed nothing."""
    ended: list[Ended] = []
    missing: list[Ack] = []
    for batch, rows in zip(batches, answers, strict=True):
        if batch[0].kind == "succeed" and len(rows) == len(batch):
            ended += [Ended(ack.id, ack.attempt, State.SUCCEEDED, None) for ack in batch]
            continue
        attempts = {ack.id: ack.attempt for ack in batch}
        if batch[0].kind == "succeed":
            ended += [Ended(row[0], attempts[row[0]], State.SUCCEEDED, None) for row in rows]
        else:
            ended += [Ended(id, attempts[id], State(state), reason_of(reason), at) for id, state, reason, at in rows]
        if len(rows) < len(batch):
            done = {row[0] for row in rows}
            missing += [ack for ack in batch if ack.id not in done]
    return ended, missing


def claimed(request: ClaimRequest, rows: Sequence[Row]) -> tuple[list[Claim], int, str | None, int]:
    """Claims in the order to start them; how many rows were parked, one of their tasks, how many had larger fences."""
    *rows, (_, _, task, *_, parked, picked) = rows
    if len(rows) > request.limit:  # the planner trap of claims: must never happen, must never pass unnoticed
        raise DatabaseError(f"a claim of {request.limit} returned {len(rows)} rows")
    token = request.token
    claims = [Claim._make((*row[:-2], token)) for row in rows]
    if len({c.priority for c in claims}) <= 1:
        claims.sort(key=_BY_POSITION)
    else:
        place = {(lane.queue, lane.priority): i for i, lane in enumerate(request.lanes)}
        claims.sort(key=lambda c: (place[c.queue, c.priority], c.available_at, c.id))
    return claims, parked, task, picked - parked - len(claims)


def reason_of(text: str | None) -> Reason | None:
    """A stored reason."""
    return None if text is None else Reason(text)


def utc(value: datetime.datetime | None) -> datetime.datetime | None:
    """The same moment in UTC."""
    return None if value is None else value.astimezone(datetime.UTC)


def record(row: Row) -> JobRecord:
    """A stored job."""
    (id, queue, task, args, priority, state, reason, tenant, ordering_key, unique_key, available_at, created_at,
     expires_at, finished_at, attempt, failures, max_failures, lost, max_lost, interrupted, max_interrupted, timeout,
     fence, claimed_by, claimed_at, lease_expires_at, lease_expired, cancel_requested, last_error, result,
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
        available_at=available_at.astimezone(datetime.UTC),
        created_at=created_at.astimezone(datetime.UTC),
        expires_at=utc(expires_at),
        finished_at=utc(finished_at),
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
        claimed_at=utc(claimed_at),
        lease_expires_at=utc(lease_expires_at),
        lease_expired=lease_expired,
        cancel_requested=cancel_requested,
        last_error=last_error,
        result=result,
        origin=origin,
    )


def attempt(row: Row) -> AttemptRecord:
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
        started_at=started_at.astimezone(datetime.UTC),
        ended_at=ended_at.astimezone(datetime.UTC),
    )
