"""``lien worker``: run jobs, and tell about each of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from lien.cli import app
from lien.cli.events import Teller
from lien.cli.invocation import Invocation
from lien.cli.options import Command
from lien.cli.text import duration, line
from lien.cli.values import Duration, Name, Queues
from lien.errors import UsageError
from lien.worker.settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])
_DEFAULTS = {f.name: f.default for f in fields(Settings)}
_SECONDS: dict[str, Any] = {"type": Duration(), "metavar": "TIME", "show_envvar": True}


def _seconds(name: str, text: str) -> Callable[[_F], _F]:
    option = "--" + name.replace("_", "-")
    return click.option(
        option,
        envvar=f"LIEN_WORKER_{name.upper()}",
        help=f"{text}  [default: {_DEFAULTS[name]:g}s]",
        **_SECONDS,
    )


@click.command(cls=Command)
@click.option(
    "-q",
    "--queues",
    type=Queues(),
    metavar="A,B",
    envvar="LIEN_WORKER_QUEUES",
    show_envvar=True,
    help="Queues to serve.  [default: those of all tasks]",
)
@click.option(
    "-c",
    "--concurrency",
    type=int,
    metavar="N",
    envvar="LIEN_WORKER_CONCURRENCY",
    show_envvar=True,
    help=f"Jobs that run at once.  [default: {_DEFAULTS['concurrency']}]",
)
@_seconds("lease", "How long a claim stands without renewal.")
@_seconds("poll", "Longest pause between looks for work.")
@_seconds("grace", "How long running jobs may go on after a stop was asked for.")
@_seconds("cancel_grace", "How long cancelled jobs may then take to clean up.")
@click.option(
    "--burst/--no-burst",
    default=None,
    envvar="LIEN_WORKER_BURST",
    show_envvar=True,
    help="Stop when there is nothing left to run.",
)
@click.option(
    "--identity",
    type=Name("identity"),
    metavar="TEXT",
    envvar="LIEN_WORKER_IDENTITY",
    show_envvar=True,
    help="Written to every claim; must be new at each start.  [default: host:pid:random]",
)
@click.pass_obj
def worker(invocation: Invocation, /, **given: Any) -> int:
    """Run jobs until stopped.

    TERM or Ctrl-C drains: running jobs may finish within the grace, the rest goes back; a second signal cuts the grace
    short. Times are 10, 10s, 5m, 2h, 1d. With --json each event is one line of JSON on stdout.
    """
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    found = app.app(invocation)
    if not found.jobs.tasks:
        raise UsageError(
            f"app {found.name!r} has no tasks: import the modules with your @jobs.task functions in "
            f"module {str(found.name).partition(':')[0]}"
        )
    found.jobs.migrations.require()
    _log(verbose=invocation.verbose)
    _banner(found, settings)
    from lien.worker import Worker, tune_collector

    worker = Worker(found.jobs, settings, (Teller(invocation),))
    tune_collector()
    return worker.run()


def _banner(found: app.Found, settings: Settings) -> None:
    store = found.jobs.store
    server = store.run(store.engine.server)
    tasks = found.jobs.tasks
    queues = settings.queues or tuple(sorted({task.options.queue for task in tasks.values()}))
    left_out = sorted({t.options.queue for t in tasks.values()} - set(queues))
    rows = [
        ("app", str(found.name)),
        ("database", f"{store.masked_url} ({server.name} {server.version})"),
        ("queues", ", ".join(queues) + (f" (not: {', '.join(left_out)})" if left_out else "")),
        ("tasks", f"{len(tasks)}: {', '.join(sorted(tasks))}"),
        ("slots", str(settings.concurrency)),
        ("lease", duration(settings.lease)),
        ("worker", settings.identity),
    ]
    for name, text in rows:
        click.echo(f"{name:<10}{line(text)}", err=True)


def _log(*, verbose: bool) -> None:
    """Show what is logged, but for events, which are told already; an app's own set-up is left alone."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    handler.addFilter(lambda record: not (record.name == "lien.worker" and record.msg == "%s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    if not verbose:  # a lost connection is an event, and psycopg need not tell it again
        logging.getLogger("psycopg").setLevel(logging.ERROR)
