"""``lien jobs show``: everything that storage knows of one job."""

from __future__ import annotations

import datetime
import json

import click

from lien.cli import app, records
from lien.cli.invocation import Invocation
from lien.cli.options import Command
from lien.cli.text import block, duration, line, now, since, stamp
from lien.cli.values import JobId
from lien.model import PRIORITIES, AttemptRecord, JobRecord

_CLASSES = {number: name for name, number in PRIORITIES.items()}


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("job_id", type=JobId(), metavar="ID")
@click.pass_obj
def show(invocation: Invocation, job_id: int) -> None:
    """Show a job and its attempts; -v unfolds the tracebacks."""
    lien = app.database(invocation)
    job = lien.job(job_id)
    attempts = lien.attempts(job_id)
    if invocation.json:
        document = {**records.as_json(job), "attempts": [records.as_json(a) for a in attempts]}
        click.echo(json.dumps(document))
        return
    at = now()
    fields = [(name, text) for name, text in _fields(job, at) if text]
    indent = max(len(name) for name, _ in fields) + 2
    for name, text in fields:
        click.echo(f"{name:<{indent}}{text}")
    if attempts:
        click.echo("\nattempts")
    for attempt in attempts:
        _attempt(attempt, verbose=invocation.verbose)


def _fields(job: JobRecord, at: datetime.datetime) -> list[tuple[str, str]]:
    def moment(value: datetime.datetime | None) -> str:
        if value is None:
            return ""
        if value > at:
            return f"{stamp(value)} (in {duration(since(at, value))})"
        return f"{stamp(value)} ({duration(since(value, at))} ago)"

    return [
        ("job", str(job.id)),
        ("task", line(job.task)),
        ("state", records.state(job)),
        ("claim", _claim(job, at)),
        ("cancel", "requested" if job.cancel_requested else ""),
        ("queue", line(job.queue)),
        ("priority", f"{job.priority} ({_CLASSES.get(job.priority, '?')})"),
        ("tenant", line(job.tenant or "")),
        ("ordering key", line(job.ordering_key or "")),
        ("unique key", line(job.unique_key or "")),
        ("args", line(job.args)),
        ("created", moment(job.created_at)),
        ("available", moment(job.available_at)),
        ("expires", moment(job.expires_at)),
        ("finished", moment(job.finished_at)),
        ("attempt", str(job.attempt)),
        ("failures", f"{job.failures} of {job.max_failures}"),
        ("lost", f"{job.lost} of {job.max_lost}"),
        ("interrupted", f"{job.interrupted} of {job.max_interrupted}"),
        ("timeout", duration(job.timeout)),
        ("fence", str(job.fence)),
        ("copy of", f"job {job.origin}" if job.origin is not None else ""),
        ("error", line(job.last_error or "")),
        ("result", line(job.result or "")),
    ]


def _claim(job: JobRecord, at: datetime.datetime) -> str:
    if job.claimed_by is None:
        return ""
    text = f"by {line(job.claimed_by)}"
    if job.claimed_at is not None:
        text += f" for {duration(since(job.claimed_at, at))}"
    if job.lease_expires_at is None:
        return text
    if job.lease_expired:
        ago = duration(since(job.lease_expires_at, at))
        return f"{text}, lease expired {ago} ago: any worker may take it back"
    return f"{text}, lease expires in {duration(since(at, job.lease_expires_at))}"


def _attempt(attempt: AttemptRecord, *, verbose: bool) -> None:
    took = duration(since(attempt.started_at, attempt.ended_at))
    outcome = str(attempt.outcome) + (f" ({line(attempt.reason)})" if attempt.reason else "")
    click.echo(
        f"  {attempt.attempt}  {outcome}  {stamp(attempt.started_at)}, {took}, "
        f"by {line(attempt.worker)}, fence {attempt.fence}"
    )
    if attempt.error:
        click.echo(f"     {line(attempt.error)}")
    if not attempt.traceback:
        return
    rows = block(attempt.traceback).rstrip("\n").split("\n")
    if verbose:
        for row in rows:
            click.echo(f"     │ {row}")
    else:
        click.echo(f"     traceback of {len(rows)} lines: -v shows it")
