"""``lien jobs``: look at jobs, cancel them, retry them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

import click

from lien.cli import app, errors, records
from lien.cli.invocation import Invocation
from lien.cli.options import Group
from lien.cli.show import show
from lien.cli.text import line, now, table
from lien.cli.values import JobId, Name
from lien.errors import JobNotFound, LienError, TransitionRefused
from lien.machine import State
from lien.model import JobFilter, JobRecord

_HEAD = ("id", "task", "state", "attempt", "when", "error")
_MOST = 10_000


jobs = Group("jobs", help="List, show, cancel and retry jobs; a URL alone is enough.")
jobs.add_command(show)


@jobs.command("list")
@click.option("--state", type=click.Choice([str(s) for s in State]), help="Only jobs in this state.")
@click.option("--queue", type=Name("queue"), metavar="NAME", help="Only jobs of this queue.")
@click.option("--task", type=Name("task"), metavar="NAME", help="Only jobs of this task.")
@click.option("--limit", type=click.IntRange(1, _MOST), default=50, show_default=True, help="How many at most.")
@click.option("--before", type=JobId(), metavar="ID", help="Only older ones: the next page.")
@click.pass_obj
def list_(
    invocation: Invocation,
    state: str | None,
    queue: str | None,
    task: str | None,
    limit: int,
    before: int | None,
) -> None:
    """List jobs, newest first."""
    wanted = JobFilter(state=State(state) if state else None, queue=queue, task=task, before=before, limit=limit)
    found = app.database(invocation).list(wanted)
    if invocation.json:
        after = str(found[-1].id) if len(found) == limit else None
        rows = [records.as_json(job) for job in found]
        click.echo(json.dumps({"jobs": rows, "before": after}))
        return
    if not found:
        click.echo("no jobs" if wanted == JobFilter(limit=limit) else "no such jobs", err=True)
        return
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    at = now()
    head, *rest = table(_HEAD, [_row(job, at) for job in found], columns)
    click.echo(click.style(head, bold=True), color=invocation.color)
    for text in rest:
        click.echo(text)
    if len(found) == limit:
        click.echo(f"older ones: --before {found[-1].id}", err=True)


def _row(job: JobRecord, at: Any) -> tuple[str, ...]:
    error = "" if job.state is State.SUCCEEDED else job.last_error or ""
    return (
        str(job.id),
        line(job.task),
        records.state(job),
        str(job.attempt),
        records.when(job, at),
        line(error),
    )


_IDS: dict[str, Any] = {
    "context_settings": {"ignore_unknown_options": True},  # so that -1 is answered as an id
}


@jobs.command("cancel", **_IDS)
@click.argument("ids", type=JobId(), nargs=-1, required=True, metavar="ID...")
@click.pass_obj
def cancel(invocation: Invocation, ids: tuple[int, ...]) -> int:
    """Cancel jobs: a waiting one ends now, a running one is told to stop.

    Goes on after one that cannot be cancelled; exit 5 then.
    """
    lien = app.database(invocation)

    def one(job_id: int) -> tuple[str, dict[str, Any]]:
        state = lien.cancel(job_id)
        asked = state is State.CLAIMED
        text = "is running: asked to stop" if asked else "cancelled"
        return text, {"state": str(state)}

    return _each(invocation, ids, one)


@jobs.command("retry", **_IDS)
@click.argument("ids", type=JobId(), nargs=-1, required=True, metavar="ID...")
@click.pass_obj
def retry(invocation: Invocation, ids: tuple[int, ...]) -> int:
    """Retry failed jobs: each is enqueued as a fresh copy that names it as its origin.

    Goes on after one that cannot be retried; exit 5 then.
    """
    lien = app.database(invocation)

    def one(job_id: int) -> tuple[str, dict[str, Any]]:
        copy = lien.retry(job_id)
        text = f"retried as job {copy.id}"
        if not copy.created:
            text = f"not copied: job {copy.id} is alive with its unique key"
        return text, {"copy": str(copy.id), "created": copy.created}

    return _each(invocation, ids, one)


def _each(invocation: Invocation, ids: tuple[int, ...], one: Callable[[int], tuple[str, dict[str, Any]]]) -> int:
    """Do it to every id, once; a job that refuses stops nothing, a database that fails stops all."""
    results: list[dict[str, Any]] = []
    code = errors.Exit.OK
    failure: LienError | None = None
    for job_id in dict.fromkeys(ids):
        result: dict[str, Any] = {"id": str(job_id)}
        results.append(result)
        try:
            text, more = one(job_id)
        except (JobNotFound, TransitionRefused) as refusal:
            code = errors.Exit.REFUSED
            result |= {"done": False, "error": errors.as_json(refusal, invocation)}
            click.echo(line(str(refusal)), err=True)
        except LienError as error:
            failure = error
            result |= {"done": False, "error": errors.as_json(error, invocation)}
            break
        else:
            result |= {"done": True, **more}
            if not invocation.json:
                click.echo(f"job {job_id} {text}")
    if failure is not None and not (invocation.json and len(results) > 1):
        raise failure
    if invocation.json:
        click.echo(json.dumps({"jobs": results}))
    return errors.exit_code(failure) if failure is not None else code
