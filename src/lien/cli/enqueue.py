"""``lien enqueue``: one job from the command line."""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import click

from lien.cli import app
from lien.cli.invocation import Invocation
from lien.cli.options import Command
from lien.cli.text import line
from lien.cli.values import Arguments, Duration, Moment, Name
from lien.errors import UsageError
from lien.model import PRIORITIES
from lien.task import Task, checked_options


@click.command(cls=Command)
@click.argument("task", type=Name("task"))
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--delay", type=Duration(), metavar="TIME", help="Run it later: 10, 10s, 5m, 2h, 1d.")
@click.option("--at", type=Moment(), metavar="WHEN", help="Run it then: 2026-12-24T18:00Z.")
@click.option("--queue", type=Name("queue"), metavar="NAME", help="Another queue than the task's.")
@click.option("--priority", metavar="CLASS", help=f"{', '.join(PRIORITIES)}, or 0 to 3.  [default: the task's]")
@click.option(
    "--unique",
    type=Name("unique key"),
    metavar="KEY",
    help="At most one live job of the queue has this key; the other one's id is printed.",
)
@click.pass_obj
def enqueue(  # noqa: PLR0913, PLR0917 - each is an option of the job
    invocation: Invocation,
    task: str,
    arguments: str,
    delay: float | None,
    at: datetime.datetime | None,
    queue: str | None,
    priority: str | None,
    unique: str | None,
) -> None:
    """Enqueue one job and print its id.

    JSON is an object with the arguments by name, '{"order_id": 7}' (or an array, by position); - reads it from stdin.
    With an app they are checked against the task's signature; with a URL alone any name and any object will do.
    """
    if delay is not None and at is not None:
        raise click.UsageError("give --delay or --at, not both")
    context = click.get_current_context()
    text = sys.stdin.read() if arguments == "-" else arguments
    given: Any = Arguments().convert(text, _parameter(context), context)
    target = app.app_or_url(invocation)
    registered = _task(target, task, given)
    options = checked_options(
        registered.options,
        delay=delay,
        at=at,
        queue=queue,
        unique=unique,
        priority=int(priority) if priority in {"0", "1", "2", "3"} else priority,
    )
    args, kwargs = (tuple(given), {}) if isinstance(given, list) else ((), given)
    done = target.jobs.enqueue_jobs([registered.job(options, args, kwargs)], None)[0]
    if invocation.json:
        click.echo(json.dumps({"id": str(done.id), "created": done.created}))
    else:
        click.echo(done.id)
    if target.name is None:
        click.echo(f"note: no app given, so task {line(task)!r} and its arguments were not checked", err=True)
    if not done.created:
        click.echo("note: a live job has this unique key already; nothing was added", err=True)


def _task(target: app.Found, name: str, given: object) -> Task[..., Any]:
    if target.name is not None:
        return target.jobs.task_named(name)
    if isinstance(given, list):
        raise UsageError("without an app the arguments must be a JSON object: there is no signature to order them by")
    task: Task[..., Any] = target.jobs.task(name=name)(_anything)
    return task


def _anything(**arguments: object) -> None:
    """Stands in for a task of which the name alone is known."""


def _parameter(context: click.Context) -> click.Parameter:
    return next(p for p in context.command.params if p.name == "arguments")
